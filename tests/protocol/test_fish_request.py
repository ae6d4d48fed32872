"""TTSRequest: which fields are honoured, mapped or ignored, as docs/protocol.md has it."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from rt_drama3.protocol import Refused, Sampling, SpeechOrder
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.fish_request import read_request
from rt_drama3.protocol.limits import ProtocolLimits
from tests.protocol.tools import FACTS, check

LIMITS = ProtocolLimits()
CLIP = {"audio": b"RIFF", "text": "Said."}


def order(model: str = "", **request: Any) -> SpeechOrder:
    check(request, "fish_live", "request")
    return read_request(Fields(request), "Hi.", False, FACTS, LIMITS, model)


def refused(**request: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        read_request(Fields(request), "Hi.", False, FACTS, LIMITS, "")
    return caught.value


@pytest.mark.parametrize(
    ("request_", "name", "rate", "bitrate"),
    [
        ({}, "mp3", 44_100, None),
        ({"format": None, "sample_rate": None}, "mp3", 44_100, None),
        ({"format": "wav", "sample_rate": None}, "wav", 44_100, None),
        ({"format": "opus", "opus_bitrate": 32}, "opus", 48_000, 32_000),
        ({"format": "opus", "opus_bitrate": 64_000}, "opus", 48_000, 64_000),
        ({"format": "opus", "opus_bitrate": 1000}, "opus", 48_000, 6_000),
        ({"format": "opus", "opus_bitrate": -1000}, "opus", 48_000, None),
        ({"format": "mp3", "mp3_bitrate": 0}, "mp3", 44_100, None),
        ({"format": "mp3", "mp3_bitrate": 192, "sample_rate": 32_000}, "mp3", 32_000, 192_000),
        ({"format": "mp3", "opus_bitrate": 64_000}, "mp3", 44_100, None),
        ({"format": "pcm", "sample_rate": 16_000, "mp3_bitrate": 64}, "pcm", 16_000, None),
    ],
)
def test_format_rate_and_bit_rate(
    request_: dict[str, Any], name: str, rate: int, bitrate: int | None
) -> None:
    output = order(**request_).output
    assert (output.format, output.sample_rate, output.bitrate) == (name, rate, bitrate)


def test_a_sample_rate_of_zero_is_none() -> None:
    found = read_request(Fields({"sample_rate": 0}), "", False, FACTS, LIMITS, "")
    assert found.output.sample_rate == 44_100


@pytest.mark.parametrize(
    ("request_", "sampling"),
    [
        ({"temperature": 0.7, "top_p": 0.7}, Sampling()),
        ({"temperature": float(np.float32(0.7)), "top_p": 0.7}, Sampling()),
        ({"temperature": 0.7}, Sampling(temperature=0.7)),
        ({"top_p": 0.7}, Sampling(top_p=0.7)),
        ({"temperature": 0.7, "top_p": 0.9}, Sampling(temperature=0.7, top_p=0.9)),
        ({"temperature": 0.2, "top_p": 0.7}, Sampling(temperature=0.2, top_p=0.7)),
        ({"temperature": 0, "top_p": 0}, Sampling(temperature=0.0, top_p=0.001)),
        ({"temperature": 0.7, "top_p": 0.7, "seed": 5}, Sampling(seed=5)),
        ({"temperature": None, "top_p": None}, Sampling()),
        (
            {"repetition_penalty": 1.2, "max_new_tokens": 10, "early_stop_threshold": 0.5},
            Sampling(),
        ),
    ],
)
def test_the_pair_that_sdks_send_counts_as_not_set(
    request_: dict[str, Any], sampling: Sampling
) -> None:
    assert order(**request_).sampling == sampling


def test_prosody() -> None:
    louder = order(prosody={"speed": 1.0, "volume": 6, "normalize_loudness": True})
    assert (louder.gain_db, louder.notices) == (6.0, ())
    faster = order(prosody={"speed": 1.25})
    assert faster.gain_db == 0
    assert faster.notices == ("speed 1.25 is ignored: the model speaks at its own pace.",)
    assert order(prosody=None).notices == ()
    assert "prosody.volume is 40" in refused(prosody={"volume": 40}).message
    assert "prosody.speed is 9" in refused(prosody={"speed": 9}).message
    assert "prosody is 5" in refused(prosody=5).message


def test_latency_chooses_the_resampler() -> None:
    assert order(latency="normal").quality == "high"
    for latency in ("balanced", "low", None, "new"):
        assert order(latency=latency).quality == "low_latency"


def test_everything_else_is_ignored() -> None:
    plain = order()
    assert order(chunk_length=1, normalize="no", features=[1], foo={"bar": 1}) == plain


@pytest.mark.parametrize(
    ("sent", "meant"),
    [(None, "auto"), (True, "auto"), (False, "off"), ("on", "on"), ("off", "off"), ([], "auto")],
)
def test_normalize_is_left_to_the_checkpoint_unless_it_is_switched(sent: Any, meant: str) -> None:
    assert order(normalize=sent).normalize == meant


def test_voices() -> None:
    assert order(reference_id="anna").voices == ("anna",)
    for nothing in (None, "", []):
        assert order(reference_id=nothing).voices == ()
    assert order(reference_id=["anna", "ben"]).voices == ("anna", "ben")
    assert "reference_id" in refused(reference_id="../../etc/passwd").message
    assert "reference_id" in refused(reference_id=["ok", 5]).message
    assert "17 entries" in refused(reference_id=["x"] * 17).message


def test_references() -> None:
    assert order(references=[CLIP]).references[0].source == ("Said.", b"RIFF")
    assert order(references=None).references == ()
    several = order(references=[[CLIP, CLIP], [{**CLIP, "text": "<|speaker:5|> So."}]])
    texts = [clip.text for clip in several.references]
    assert texts == ["<|speaker:0|> Said."] * 2 + ["<|speaker:5|> So."]
    assert len(order(references=[[CLIP] * 9, [CLIP] * 7]).references) == 16
    second = order(references=[[CLIP], [CLIP]]).references[1]
    assert second.text == "<|speaker:1|> Said."
    codes = {"vq_codes": bytes(40), "text": "Said."}
    found = read_request(Fields({"references": [codes]}), "", False, FACTS, LIMITS, "")
    assert found.references[0].codes is not None


@pytest.mark.parametrize(
    "audio",
    [
        base64.b64encode(b"RIFF").decode(),
        "data:audio/wav;base64," + base64.b64encode(b"RIFF").decode(),
    ],
)
def test_audio_in_json_is_base64(audio: str) -> None:
    assert order(references=[{"audio": audio, "text": "Said."}]).references[0].audio == b"RIFF"


def test_a_url_of_a_clip_is_left_to_the_server() -> None:
    url = "HTTPS://example.com/a.wav?b=c"
    (clip,) = order(references=[{"audio": url, "text": "Said."}]).references
    assert (clip.url, clip.audio, clip.text) == (url, None, "Said.")
    clips = order(references=[[{"audio": url, "text": "A"}], [CLIP]]).references
    assert clips[0].url == url
    assert clips[0].text.startswith("<|speaker:0|>")


@pytest.mark.parametrize(
    ("references", "says"),
    [
        ([{"audio": "https://example.com/a b.wav", "text": "S"}], "printable ASCII"),
        ([{"audio": "https://example.com/" + "a" * 2_048, "text": "S"}], "2048"),
        ([{"audio": "file:///etc/passwd", "text": "S"}], "http:// or https://"),
        ([{"audio": "/etc/passwd", "text": "S"}], "not valid base64"),
        ([{"audio": "", "text": "S"}], "is empty"),
        ([{"audio": b"", "text": "S"}], "is empty"),
        ([{"audio": 5, "text": "S"}], "references[0].audio is 5"),
        ([{"audio": b"x"}], "references[0].text is None"),
        ([{"audio": b"x", "text": "..<|im_end|>"}], "<|im_end|>"),
        ([5], "references[0] is 5"),
        ([[CLIP], [5]], "references[1] is 5"),
        (5, "references is 5"),
        ([CLIP] * 17, "17 entries"),
        ([[CLIP] * 9, [CLIP] * 8], "more than 16 clips"),
    ],
)
def test_wrong_references_are_refused(references: Any, says: str) -> None:
    assert says in refused(references=references).message


def test_the_model_header_is_kept_for_logs_only() -> None:
    assert order(model="s2-pro").model == "s2-pro"
    assert order(model="x\ny" * 100).model == ("x y" * 100)[:64]
