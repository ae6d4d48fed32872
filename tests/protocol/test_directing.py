"""Guidance, steering, earlier takes and code grids, in every dialect and body."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgpack
import numpy as np
import pytest

from rt_drama3.protocol import (
    Directing,
    Outcome,
    ProtocolLimits,
    Refused,
    SpeechOrder,
    parse_fish_tts,
    parse_openai_speech,
    sse_done,
    take_of,
)
from rt_drama3.scenes.takes import load_takes
from tests.protocol.test_native_start import bad_start, order_of
from tests.protocol.tools import FACTS, check, native, started

LIMITS = ProtocolLimits()
CODES = np.arange(40, dtype=np.int64).reshape(10, 4)
BIN = CODES.astype("<u2").tobytes()
TEXT64 = base64.b64encode(BIN).decode()
MARKS = {"family": "fish_drama3", "schema": "drama3_take_v1"}


def fish(**fields: Any) -> SpeechOrder:
    check({"text": "Hi.", **fields}, "http", "fish_request")
    body = json.dumps({"text": "Hi.", **fields}).encode()
    return parse_fish_tts(body, "application/json", FACTS, LIMITS)


def fish_packed(**fields: Any) -> SpeechOrder:
    body = msgpack.packb({"text": "Hi.", **fields})
    return parse_fish_tts(body, "application/msgpack", FACTS, LIMITS)


def openai(**fields: Any) -> SpeechOrder:
    check({"input": "Hi.", **fields}, "http", "openai_request")
    return parse_openai_speech(json.dumps({"input": "Hi.", **fields}).encode(), FACTS, LIMITS)


EVERYWHERE = pytest.mark.parametrize("read", [order_of, fish, fish_packed, openai])
IN_JSON = pytest.mark.parametrize("read", [fish, openai])


@EVERYWHERE
def test_nothing_is_directed_by_default(read: Any) -> None:
    assert read().directing == Directing()
    nothing = dict.fromkeys(("guidance", "steering", "previous_takes"))
    assert read(**nothing).directing == Directing()
    settings = read().settings(FACTS)
    assert (settings["guidance"], settings["steering"], settings["previous_takes"]) == (
        None,
        (),
        (),
    )


@EVERYWHERE
def test_guidance_and_steering_arrive(read: Any) -> None:
    given = [{"name": "glad", "strength": 1.5}, {"name": "calm", "strength": -2}]
    order = read(guidance=4, steering=given)
    assert order.directing.guidance == 4.0
    assert order.directing.steering == (("glad", 1.5), ("calm", -2.0))
    settings = order.settings(FACTS)
    assert (settings["guidance"], settings["steering"]) == (4.0, (("glad", 1.5), ("calm", -2.0)))


@EVERYWHERE
def test_takes_arrive_in_order_and_in_every_form(read: Any) -> None:
    takes = read(
        previous_takes=[
            {**MARKS, "text": "One.", "codes": CODES.tolist(), "seed": 7, "complete": True},
            {"text": "Two."},
            {"text": "Three.", "codes": CODES.tolist()},
        ]
    ).directing.previous_takes
    assert [take.text for take in takes] == ["One.", "Two.", "Three."]
    assert np.array_equal(takes[0].codes, CODES)
    assert takes[1].codes is takes[1].audio is None


def test_takes_as_bytes() -> None:
    given = [{"text": "One.", "vq_codes": BIN}, {"text": "Two.", "audio": b"RIFF"}]
    for read in (order_of, fish_packed):
        order = read(previous_takes=given)
        one, two = order.directing.previous_takes
        assert np.array_equal(one.codes, CODES)
        assert two.audio == b"RIFF"
        first, second = order.settings(FACTS)["previous_takes"]
        assert first.text == "One."
        assert np.array_equal(first.codes, CODES)
        assert second.audio == b"RIFF"


@IN_JSON
def test_takes_as_base64(read: Any) -> None:
    audio = base64.b64encode(b"RIFF").decode()
    given = [{"text": "One.", "vq_codes": TEXT64}, {"text": "Two.", "audio": audio}]
    one, two = read(previous_takes=given).directing.previous_takes
    assert np.array_equal(one.codes, CODES)
    assert two.audio == b"RIFF"


@EVERYWHERE
def test_references_may_be_grids_and_name_their_speaker(read: Any) -> None:
    given = [
        {"text": "Hm.", "vq_codes": CODES.tolist(), "speaker": 0},
        {"text": "Ah.", "vq_codes": CODES.tolist(), "speaker": 15},
        {"text": "<|speaker:3|> Oh.", "vq_codes": CODES.tolist(), "speaker": 4},
    ]
    references = read(references=given).references
    assert [clip.text for clip in references] == [
        "<|speaker:0|> Hm.",
        "<|speaker:15|> Ah.",
        "<|speaker:3|> Oh.",
    ]
    assert all(np.array_equal(clip.codes, CODES) for clip in references)


BAD = [
    ({"guidance": -1}, "bad_field"),
    ({"guidance": 21}, "bad_field"),
    ({"guidance": "4"}, "bad_field"),
    ({"guidance": True}, "bad_field"),
    ({"steering": {"glad": 1}}, "bad_field"),
    ({"steering": ["glad"]}, "bad_field"),
    ({"steering": [{"name": "glad"}]}, "bad_field"),
    ({"steering": [{"strength": 1}]}, "bad_field"),
    ({"steering": [{"name": "", "strength": 1}]}, "bad_field"),
    ({"steering": [{"name": "x" * 65, "strength": 1}]}, "text_too_long"),
    ({"steering": [{"name": "glad", "strength": 101}]}, "bad_field"),
    ({"steering": [{"name": "glad", "strength": "1"}]}, "bad_field"),
    ({"steering": [{"name": "glad", "strength": 1}] * 17}, "bad_field"),
    ({"previous_takes": {}}, "bad_field"),
    ({"previous_takes": ["Hi."]}, "bad_field"),
    ({"previous_takes": [{"text": "Hi."}] * 17}, "bad_field"),
    ({"previous_takes": [{"codes": [[1]] * 10}]}, "bad_reference"),
    ({"previous_takes": [{"text": " "}]}, "bad_reference"),
    ({"previous_takes": [{"text": "<|im_end|>"}]}, "bad_reference"),
    ({"previous_takes": [{**MARKS, "family": "x", "text": "Hi."}]}, "bad_reference"),
    ({"previous_takes": [{"schema": "drama3_take_v1", "text": "Hi."}]}, "bad_reference"),
    ({"previous_takes": [{"text": "Hi.", "codes": [[1]] * 9}]}, "bad_reference"),
    ({"previous_takes": [{"text": "Hi.", "codes": [[1]] * 11}]}, "bad_reference"),
    ({"previous_takes": [{"text": "Hi.", "codes": [[]] * 10}]}, "bad_reference"),
    ({"previous_takes": [{"text": "Hi.", "codes": [[1, 2]] + [[1]] * 9}]}, "bad_reference"),
    ({"previous_takes": [{"text": "Hi.", "codes": [[1.5]] * 10}]}, "bad_reference"),
    ({"previous_takes": [{"text": "Hi.", "codes": [[True]] * 10}]}, "bad_reference"),
    ({"previous_takes": [{"text": "Hi.", "codes": [[-1]] * 10}]}, "bad_reference"),
    ({"previous_takes": [{"text": "Hi.", "codes": [[1 << 16]] * 10}]}, "bad_reference"),
    ({"previous_takes": [{"text": "Hi.", "codes": 5}]}, "bad_reference"),
    ({"previous_takes": [{"text": "Hi.", "audio": 5}]}, "bad_reference"),
    (
        {"previous_takes": [{"text": "Hi.", "codes": [[1]] * 10, "vq_codes": [[1]] * 10}]},
        "bad_reference",
    ),
    ({"references": [{"text": "Hi.", "vq_codes": [[1]] * 10, "speaker": 16}]}, "bad_field"),
    ({"references": [{"text": "Hi.", "vq_codes": [[1]] * 10, "speaker": "a"}]}, "bad_field"),
    ({"references": [{"text": "Hi.", "vq_codes": [[1]] * 3}]}, "bad_reference"),
]


@pytest.mark.parametrize(("fields", "code"), BAD, ids=lambda value: str(value)[:60])
def test_what_cannot_be_is_refused_everywhere(fields: dict[str, Any], code: str) -> None:
    assert bad_start(**fields)["code"] == code
    for body, parse in (
        ({"text": "Hi.", **fields}, lambda b: parse_fish_tts(b, "", FACTS, LIMITS)),
        ({"input": "Hi.", **fields}, lambda b: parse_openai_speech(b, FACTS, LIMITS)),
    ):
        with pytest.raises(Refused) as refused:
            parse(json.dumps(body).encode())
        assert refused.value.code == code


def test_codes_of_a_take_are_as_long_as_a_clip_may_be() -> None:
    frames = int(LIMITS.reference_seconds / FACTS.frame_seconds) + 2
    long = np.zeros((10, frames), dtype="<u2").tobytes()
    assert bad_start(previous_takes=[{"text": "Hi.", "vq_codes": long}])["code"] == "bad_reference"


def test_native_messages_carry_no_base64() -> None:
    error = bad_start(previous_takes=[{"text": "Hi.", "vq_codes": TEXT64}])
    assert error["code"] == "bad_reference"


@pytest.mark.parametrize("read", [fish, openai])
def test_the_best_of_some(read: Any) -> None:
    assert read().best_of == read(best_of=None).best_of == read(best_of=1).best_of == 0
    assert read(best_of=4).best_of == 4
    assert read(best_of=32).best_of == 32


@pytest.mark.parametrize("count", [0, 33, -1, 1.5, "2", True])
def test_a_count_that_cannot_be(count: Any) -> None:
    for parse in (
        lambda: parse_fish_tts(
            json.dumps({"text": "Hi.", "best_of": count}).encode(), "", FACTS, LIMITS
        ),
        lambda: parse_openai_speech(
            json.dumps({"input": "Hi.", "best_of": count}).encode(), FACTS, LIMITS
        ),
    ):
        with pytest.raises(Refused, match="best_of"):
            parse()


def test_the_best_of_some_is_not_for_streams() -> None:
    client = native()
    utterance = started(client, best_of=4)
    assert utterance.order.best_of == 0
    (ready,) = client.bytes_of(utterance.ready)
    assert "'best_of'" in msgpack.unpackb(ready)["ignored"]


def test_a_take_comes_with_its_text() -> None:
    client = native()
    utterance = started(client, take=True, text="Hi.", final=True)
    (done,) = client.bytes_of(utterance.done, Outcome(4, 7, True, 1, {}, CODES, "Hi."))
    message = msgpack.unpackb(done)
    check(message, "native", "server_done")
    take = message["take"]
    assert {**take, "vq_codes": b""} == {
        **MARKS, "text": "Hi.", "num_codebooks": 10, "frames": 4, "vq_codes": b"",
    }  # fmt: skip
    # What came can be sent back as it is.
    (again,) = order_of(previous_takes=[take]).directing.previous_takes
    assert again.text == "Hi."
    assert np.array_equal(again.codes, CODES)


def test_the_last_event_has_the_take_that_was_asked_for() -> None:
    take = take_of(Outcome(4, 7, True, 1, {}, CODES, "Hi."))
    event = json.loads(sse_done(3, 4, take)[6:])
    check(event, "http", "sse_done")
    assert event["take"]["text"] == "Hi."
    (again,) = openai(previous_takes=[event["take"]]).directing.previous_takes
    assert np.array_equal(again.codes, CODES)
    assert take_of(Outcome()) is None
    assert "take" not in json.loads(sse_done(3, 4)[6:])


def test_the_take_of_an_event_is_an_artefact(nano: Any) -> None:
    books = nano.config.num_codebooks
    take = take_of(Outcome(4, 7, True, 1, {}, CODES[:books], "Hi."))
    (found,) = load_takes(json.dumps(take), nano.config)
    assert np.array_equal(found.codes, CODES[:books])
