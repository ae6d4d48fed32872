"""HTTP bodies of Fish's and OpenAI's routes, their errors, headers and events."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from rt_drama3.errors import DeviceError, Overloaded, RtDrama3Error
from rt_drama3.protocol import (
    KINDS,
    ProtocolLimits,
    Refused,
    SpeechOrder,
    audio_headers,
    error_headers,
    fish_error,
    openai_error,
    parse_fish_tts,
    parse_openai_speech,
    sse_delta,
    sse_done,
    sse_error,
)
from rt_drama3.protocol.wire import pack
from tests.protocol.tools import FACTS, check

LIMITS = ProtocolLimits()


def openai(**body: Any) -> SpeechOrder:
    check(body, "http", "openai_request")
    return parse_openai_speech(json.dumps(body).encode(), FACTS, LIMITS)


def refused_openai(**body: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        parse_openai_speech(json.dumps(body).encode(), FACTS, LIMITS)
    return caught.value


# --- Fish -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "encode"),
    [
        ("application/msgpack", pack),
        ("Application/MsgPack; v=1", pack),
        ("application/json", lambda body: json.dumps(body).encode()),
        ("application/json; charset=utf-8", lambda body: json.dumps(body).encode()),
        ("", lambda body: json.dumps(body).encode()),
    ],
)
def test_fish_takes_both_encodings(content_type: str, encode: Any) -> None:
    body = {"text": "Hello.", "format": "wav", "reference_id": "anna"}
    check(body, "http", "fish_request")
    order = parse_fish_tts(encode(body), content_type, FACTS, LIMITS, "s1")
    assert (order.text, order.final, order.voices) == ("Hello.", True, ("anna",))
    assert (order.output.format, order.model) == ("wav", "s1")


def test_fish_refuses_other_media_types() -> None:
    with pytest.raises(Refused, match="multipart/form-data") as caught:
        parse_fish_tts(b"", "multipart/form-data; boundary=x", FACTS, LIMITS)
    assert caught.value.kind.http == 415


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "bad_text"),
        ({"text": ""}, "bad_text"),
        ({"text": "  \n"}, "bad_text"),
        ({"text": None}, "bad_text"),
        ({"text": 5}, "bad_field"),
        ({"text": "<|im_start|>"}, "bad_text"),
        ({"text": "\ud800"}, "bad_text"),
        ({"text": "x" * 262_145}, "text_too_long"),
    ],
)
def test_fish_refuses_text_that_cannot_be_spoken(body: dict[str, Any], code: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_fish_tts(json.dumps(body).encode(), "application/json", FACTS, LIMITS)
    assert caught.value.code == code
    json.dumps(fish_error(caught.value)[1]).encode()


@pytest.mark.parametrize("text", ["...", "😀", "<|speaker:0|> ?!"])
def test_text_without_words_is_silent(text: str) -> None:
    assert openai(input=text).is_speechless(True)
    assert not openai(input="x" + text).is_speechless(True)


def test_long_text_is_taken_whole() -> None:
    text = "Sentence after sentence. " * 800  # 20,000 characters
    assert openai(input=text).text == text


# --- OpenAI -----------------------------------------------------------------------------------


def test_openai_defaults() -> None:
    order = openai(input="Hello.", model="tts-1", voice="alloy")
    assert (order.text, order.final, order.model) == ("Hello.", True, "tts-1")
    assert (order.output.format, order.output.sample_rate) == ("mp3", 44_100)
    assert order.voices == ("alloy",)
    assert not order.sse
    assert order.notices == ()


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("pcm", 24_000),
        ("wav", 24_000),
        ("mp3", 44_100),
        ("flac", 44_100),
        ("aac", 44_100),
        ("opus", 48_000),
    ],
)
def test_openai_formats(name: str, rate: int) -> None:
    output = openai(input="Hi.", response_format=name).output
    assert (output.format, output.sample_rate) == (name, rate)


def test_openai_fields() -> None:
    order = openai(
        input="Hi.", voice={"id": "anna"}, response_format="pcm", stream_format="sse",
        sample_rate=16_000, bitrate=5, seed=3, temperature=0.5, top_p=0.5, speed=1, foo=[1],
    )  # fmt: skip
    assert (order.voices, order.sse) == (("anna",), True)
    assert order.output.sample_rate == 16_000
    assert (order.sampling.seed, order.sampling.temperature) == (3, 0.5)
    assert order.notices == ()
    for nothing in (None, ""):
        assert openai(input="Hi.", voice=nothing).voices == ()
    request = openai(input="Hi.", speed=1.5, instructions="Be cheerful.")
    assert request.instructions == "Be cheerful."
    assert len(request.notices) == 2
    assert "speed 1.5 is ignored" in audio_headers(request, "r")["X-Notice"]


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({}, "bad_text", "input is empty"),
        ({"input": None}, "bad_text", "input is empty"),
        ({"input": " "}, "bad_text", "input is empty"),
        ({"input": "<|im_end|>"}, "bad_text", "input contains"),
        ({"input": ["Hi."]}, "bad_field", "input is a list of 1"),
        ({"input": "Hi.", "response_format": "ogg"}, "unsupported_format", "one of mp3, opus"),
        ({"input": "Hi.", "speed": 5}, "bad_field", "speed is 5; a number from 0.25 to 4"),
        ({"input": "Hi.", "speed": "fast"}, "bad_field", "speed is 'fast'"),
        ({"input": "Hi.", "stream_format": "x"}, "bad_field", "one of sse, audio"),
        ({"input": "Hi.", "voice": {"id": 5}}, "bad_field", "voice"),
        ({"input": "Hi.", "voice": "/etc"}, "bad_field", "voice is '/etc'"),
        ({"input": "Hi.", "instructions": "x" * 5_000}, "text_too_long", "instructions"),
        ({"input": "Hi.", "model": "x" * 300}, "text_too_long", "model"),
        ({"input": "Hi.", "temperature": 10**400}, "bad_field", "temperature is a huge number"),
        ({"input": "Hi.", "seed": 2**64}, "bad_field", "seed is a huge number"),
    ],
)
def test_openai_refusals(body: dict[str, Any], code: str, says: str) -> None:
    error = refused_openai(**body)
    assert error.code == code
    assert says in error.message


# --- answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(KINDS))
def test_every_error_has_its_shape_on_both_routes(code: str) -> None:
    error = Refused(code, "Something was wrong.")
    status, body = fish_error(error, "r1")
    check(body, "http", "fish_error")
    assert status == body["status"] == KINDS[code].http
    assert (body["message"], body["request_id"]) == ("Something was wrong.", "r1")
    status, body = openai_error(error)
    check(body, "http", "openai_error")
    assert body["error"]["code"] == code
    assert body["error"]["message"] == f"Something was wrong. {KINDS[code].remedy}".strip()
    assert ("Retry-After" in error_headers(error)) == KINDS[code].retriable
    event = json.loads(sse_error(error)[6:])
    check(event, "http", "sse_error")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Overloaded("too many"), 429, "rate_limit_error"),
        (DeviceError("broken"), 503, "server_error"),
        (RtDrama3Error("secret"), 500, "server_error"),
        (Refused("unauthorized", "no key"), 401, "authentication_error"),
        (Refused("forbidden", "origin"), 403, "permission_error"),
        (Refused("unknown_voice", "anna"), 404, "invalid_request_error"),
    ],
)
def test_errors_of_the_engine(error: RtDrama3Error, status: int, kind: str) -> None:
    found, body = openai_error(error, "r1")
    assert (found, body["error"]["type"]) == (status, kind)
    assert error_headers(error, "r1")["X-Request-Id"] == "r1"
    assert "secret" not in json.dumps(body)


def test_headers_of_audio() -> None:
    assert audio_headers(openai(input="Hi.", response_format="pcm"), "r1") == {
        "Content-Type": "audio/pcm; rate=24000; channels=1",
        "X-Request-Id": "r1",
        "X-Sample-Rate": "24000",
        "X-Channels": "1",
        "X-Bit-Depth": "16",
    }
    headers = audio_headers(openai(input="Hi.", stream_format="sse"), "r1")
    assert headers["Content-Type"] == "text/event-stream"
    assert "X-Bit-Depth" not in headers


def test_events() -> None:
    for event, name in ((sse_delta(b"\0\1"), "sse_delta"), (sse_done(3, 40), "sse_done")):
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        check(json.loads(event[6:]), "http", name)
    assert base64.b64decode(json.loads(sse_delta(b"\0\1")[6:])["audio"]) == b"\0\1"
    assert json.loads(sse_done(3, 40)[6:])["usage"]["total_tokens"] == 43


@pytest.mark.parametrize(
    ("body", "kind", "remedy"),
    [
        (b"{", "application/json", "Send one JSON object."),
        (b"[]", "", "Send one JSON object."),
        (b'{"a": 1, "a": 1}', "", "Send one JSON object."),
        (b'{"a": NaN}', "", "Send one JSON object."),
        (b"\xc1", "application/msgpack", "Send one MessagePack map."),
        (b"text=Hi", "application/x-www-form-urlencoded", KINDS["unsupported_media_type"].remedy),
    ],
)
def test_remedies_are_those_of_http(body: bytes, kind: str, remedy: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_fish_tts(body, kind, FACTS, LIMITS)
    assert caught.value.remedy == remedy
    assert fish_error(caught.value)[1]["remedy"] == remedy
    assert openai_error(caught.value)[1]["error"]["remedy"] == remedy


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "text/plain", "audio/wav"])
def test_openai_takes_json_alone(kind: str) -> None:
    body = b'{"input": "Hello."}'
    assert parse_openai_speech(body, FACTS, LIMITS, "Application/JSON; charset=utf-8").text
    assert parse_openai_speech(body, FACTS, LIMITS).text
    with pytest.raises(Refused) as caught:
        parse_openai_speech(body, FACTS, LIMITS, kind)
    assert (caught.value.code, caught.value.remedy) == (
        "unsupported_media_type",
        "Send application/json.",
    )
