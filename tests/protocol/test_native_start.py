"""The native dialect: every field of start, and what is said to wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rt_drama3.protocol import ProtocolLimits, SpeechOrder
from tests.protocol.tools import FACTS, check, kinds, native, started

CODES = np.arange(40, dtype=np.int64).reshape(10, 4)
CODES_BIN = CODES.astype("<u2").tobytes()


def order_of(**fields: Any) -> SpeechOrder:
    """What a start with these fields asks for; the fields are valid by the schema, too."""
    check({"type": "start", **fields}, "native", "client_start")
    order: SpeechOrder = started(native(), **fields).order
    return order


def bad_start(limits: ProtocolLimits | None = None, **fields: Any) -> dict[str, Any]:
    """The error that such a start is answered with."""
    client = native(limits)
    assert kinds(client.send({"type": "start", **fields})) == ["Send"]
    error = client.last()
    assert (error["type"], error["scope"]) == ("error", "utterance")
    return error


def test_a_bare_start_has_every_default() -> None:
    assert order_of() == SpeechOrder(output=order_of().output)
    assert order_of(**dict.fromkeys(("voice", "format", "seed", "references", "final"))) == (
        order_of()
    )


def test_every_field_arrives() -> None:
    order = order_of(
        version=1, text="Hi.", final=True, voice="Anna 2", format="opus", sample_rate=48_000,
        bitrate=32_000, quality="high", gain_db=-3, temperature=0.5, head_temperature=0.25,
        top_p=0.5, top_k=20, repetition_aware=False, seed=2**64 - 1, max_seconds=1.5,
        timings=True, take=True, normalize="on", references=[{"text": "Ref.", "audio": b"RIFF"}],
    )  # fmt: skip
    assert (order.text, order.final, order.voices) == ("Hi.", True, ("Anna 2",))
    assert (order.output.format, order.output.sample_rate) == ("opus", 48_000)
    assert (order.output.bitrate, order.quality, order.gain_db) == (32_000, "high", -3.0)
    assert order.references[0].source == ("Ref.", b"RIFF")
    assert order.timings
    assert order.take
    settings = order.settings(FACTS)
    assert settings == {
        "text": "Hi.", "final": True, "history": (), "max_frames": 32, "temperature": 0.5,
        "head_temperature": 0.25, "top_p": 0.5, "top_k": 20, "repetition_aware": False,
        "seed": 2**64 - 1, "guidance": None, "steering": (), "previous_takes": (),
        "normalize": "on",
    }  # fmt: skip
    assert order_of().settings(FACTS)["max_frames"] is None
    assert order_of(max_seconds=0.001).max_frames(FACTS) == 1


def test_the_settings_are_those_of_a_speech_request() -> None:
    from rt_drama3.engine.speech import SpeechRequest

    order = order_of(text="Hi.", references=[{"text": "R", "vq_codes": CODES_BIN}])
    request = SpeechRequest(
        references=[clip.source for clip in order.references], **order.settings(FACTS)
    )
    assert request.text == "Hi."
    np.testing.assert_array_equal(request.references[0][1], CODES)


def test_unknown_fields_are_named_in_ready() -> None:
    client = native()
    started(client, temprature=0.5, seed=1)
    assert client.last()["ignored"] == ["'temprature'"]
    started(client, **{f"{n:04}" * 1_000: n for n in range(1_000)})  # and fit into the message
    assert len(client.last()["ignored"]) == 20


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"version": 2}, "unsupported_version", "version is 2; this server speaks 1"),
        ({"version": "1"}, "bad_field", "version is '1'"),
        ({"text": 5}, "bad_field", "text is 5; a string is needed"),
        ({"text": "<|voice|>", "final": True}, "bad_text", "<|voice|>"),
        ({"text": "<|voice|>"}, "bad_text", "<|voice|>"),
        ({"text": "x" * 262_145}, "text_too_long", "262145 characters; the limit is 262144"),
        ({"final": 1}, "bad_field", "final is 1; true or false is needed"),
        ({"voice": "../x"}, "bad_field", "voice is '../x'; a voice's name"),
        ({"voice": ".x"}, "bad_field", "voice"),
        ({"voice": "a/b"}, "bad_field", "voice"),
        ({"voice": "x" * 129}, "bad_field", "voice"),
        ({"voice": 5}, "bad_field", "voice"),
        ({"format": "ogg"}, "unsupported_format", "format is 'ogg'; one of pcm, pcm_f32"),
        ({"format": 5}, "unsupported_format", "format is 5"),
        ({"sample_rate": 44_000}, "unsupported_format", "sample_rate is 44000"),
        ({"sample_rate": 0}, "bad_field", "sample_rate is 0"),
        ({"sample_rate": "16000"}, "bad_field", "sample_rate is '16000'"),
        ({"sample_rate": True}, "bad_field", "sample_rate is True"),
        ({"sample_rate": 16_000.5}, "bad_field", "sample_rate is 16000.5"),
        ({"quality": "best"}, "bad_field", "one of low_latency, high is needed"),
        ({"gain_db": 21}, "bad_field", "gain_db is 21; a number from -20 to 20"),
        ({"temperature": -0.1}, "bad_field", "temperature is -0.1"),
        ({"temperature": float("nan")}, "bad_field", "temperature is nan"),
        ({"temperature": float("inf")}, "bad_field", "temperature is inf"),
        ({"temperature": True}, "bad_field", "temperature is True"),
        ({"temperature": "hot"}, "bad_field", "temperature is 'hot'"),
        ({"top_p": 0}, "bad_field", "top_p is 0; a number above 0 to 1"),
        ({"top_p": 2**63}, "bad_field", "top_p is 9223372036854775808"),
        ({"top_k": 0}, "bad_field", "top_k is 0"),
        ({"seed": -1}, "bad_field", "seed is -1"),
        ({"max_seconds": 0}, "bad_field", "max_seconds is 0"),
        ({"max_seconds": 601}, "bad_field", "max_seconds is 601"),
        ({"references": {}}, "bad_field", "references is a map of 0; a list is needed"),
        ({"references": [5]}, "bad_field", "references[0] is 5; a map is needed"),
        ({"references": [{"text": "R", "audio": b"x"}] * 17}, "bad_field", "17 entries"),
        ({"references": [{"audio": b"x"}]}, "bad_reference", "references[0].text is None"),
        ({"references": [{"audio": b"x", "text": ""}]}, "bad_reference", "is empty"),
        ({"references": [{"audio": b"x", "text": 5}]}, "bad_field", "a string is needed"),
        ({"references": [{"audio": b"x", "text": "<|text|>"}]}, "bad_reference", "<|text|>"),
        ({"references": [{"audio": b"x", "text": "x" * 5_000}]}, "text_too_long", "4096"),
        ({"references": [{"text": "R"}]}, "bad_reference", "references[0].audio is None"),
        ({"references": [{"text": "R", "audio": "x"}]}, "bad_reference", "audio is 'x'"),
        ({"references": [{"text": "R", "audio": b""}]}, "bad_reference", "is empty"),
        (
            {"references": [{"text": "R", "audio": b"x", "vq_codes": CODES_BIN}]},
            "bad_reference",
            "send one of them",
        ),
        ({"references": [{"text": "R", "vq_codes": "x"}]}, "bad_reference", "bin is needed"),
        ({"references": [{"text": "R", "vq_codes": b""}]}, "bad_reference", "has 0 bytes"),
        ({"references": [{"text": "R", "vq_codes": bytes(21)}]}, "bad_reference", "21 bytes"),
        ({"history": [{"text": "R", "audio": b"x"}]}, "bad_reference", "history[0].vq_codes"),
        ({"history": [{"text": "R", "vq_codes": bytes(20_000_0)}]}, "bad_reference", "464.4 s"),
    ],
)
def test_wrong_fields_are_named_with_value_and_remedy(
    fields: dict[str, Any], code: str, says: str
) -> None:
    error = bad_start(**fields)
    assert error["code"] == code
    assert says in error["message"]
    assert error["remedy"]


def test_reference_audio_is_bounded() -> None:
    clip = {"text": "R", "audio": bytes(11)}
    error = bad_start(ProtocolLimits(reference_bytes=10), references=[clip])
    assert "11 bytes; the limit is 10" in error["message"]


def test_thirty_seconds_of_reference_fit() -> None:
    clip = bytes(44_100 * 2 * 30 + 44)
    assert order_of(references=[{"text": "R", "audio": clip}] * 4).references[3].audio == clip
    assert len(order_of(references=[{"text": "R", "audio": b"x"}] * 16).references) == 16


def test_both_ends_of_a_range_are_in_it() -> None:
    for gain in (-20, 20):
        assert order_of(gain_db=gain).gain_db == gain
    assert order_of(top_p=1, temperature=0).sampling.top_p == 1
    assert order_of(seed=0, top_k=1).sampling.seed == 0


def test_whole_floats_are_integers() -> None:
    assert order_of(sample_rate=16_000.0).output.sample_rate == 16_000
