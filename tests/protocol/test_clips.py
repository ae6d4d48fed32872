"""Audio of references as clients send it."""

from __future__ import annotations

import base64
import json
import random

import pytest

from rt_drama3.protocol import ProtocolLimits, Refused
from rt_drama3.protocol.clips import BASE64_PART, from_base64, read_clip
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.wire import LONG, pack, parse_json, unpack

LIMITS = ProtocolLimits()


@pytest.mark.parametrize("size", [1, 2, 3, BASE64_PART * 3 // 4, BASE64_PART, 5 * BASE64_PART + 7])
def test_base64_of_any_length(size: int) -> None:
    data = random.Random(size).randbytes(size)
    encoded = base64.b64encode(data)
    assert from_base64(encoded.decode()) == data
    assert from_base64(memoryview(encoded)) == data
    assert from_base64("data:audio/wav;base64," + encoded.decode()) == data
    assert from_base64(memoryview(b"data:audio/wav;base64," + encoded)) == data


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 56, 57, 58, 3 * BASE64_PART + 1])
def test_base64_with_line_breaks(size: int, end: bytes) -> None:
    """As base64(1) and MIME break it; in JSON, where some writers escape slashes, too."""
    data = random.Random(size).randbytes(size)
    encoded = base64.encodebytes(data).replace(b"\n", end)
    assert from_base64(encoded.decode()) == data
    assert from_base64(memoryview(encoded)) == data
    text = b'{"audio": ' + json.dumps(encoded.decode()).replace("/", "\\/").encode() + b"}"
    assert from_base64(parse_json(text, LIMITS)["audio"]) == data


def test_large_clips_with_line_breaks_are_long_strings() -> None:
    """As long as a message may be: they do not count as text."""
    data = random.Random(1).randbytes(8 << 20)
    for encoded in (base64.encodebytes(data), base64.b64encode(data).replace(b"/", b"\\/")):
        body = b'{"audio": "' + encoded.replace(b"\n", b"\\n") + b'", "text": "A\\/b."}'
        found = parse_json(body, LIMITS)
        assert isinstance(found["audio"], memoryview)
        assert from_base64(found["audio"]) == data
        assert found["text"] == "A/b."


@pytest.mark.parametrize("end", ["\\\\n", "\\u0041", '\\"', "\\\\"])
@pytest.mark.parametrize("shift", range(3))
def test_long_strings_are_what_json_says(end: str, shift: int) -> None:
    """Also where an escape lies across the end of a part."""
    for escape in ("\\n", "\\/", end):
        text = "x" * (LONG - shift) + escape + "y" * LONG + end
        body = f'{{"text": "{text}"}}'
        assert parse_json(body.encode(), LIMITS) == json.loads(body)


@pytest.mark.parametrize(
    "text",
    [
        "!",
        "AAA",
        "AAAA\v",
        "AA==\nAAAA",
        "A" * (BASE64_PART - 2) + "==" + "\n" * BASE64_PART + "AAAA",
        "\u00e9AAA",
        "A" * (BASE64_PART - 2) + "==AAAA",
        "A" * (BASE64_PART - 4) + "AA==",
        "A" * BASE64_PART + "!",
    ],
)
def test_what_is_not_base64(text: str) -> None:
    if text.endswith("AA=="):  # padding at the end of a part that is the last
        assert from_base64(text)
        text += "AAAA"
    with pytest.raises(Refused) as caught:
        from_base64(text)
    assert caught.value.code == "bad_reference"


def test_strings_are_base64_in_json_alone() -> None:
    entry = Fields({"audio": base64.b64encode(b"RIFF").decode()}, "references[0]")
    assert read_clip(entry, "Said.", LIMITS).audio == b"RIFF"
    with pytest.raises(Refused, match="bytes of an audio file"):
        read_clip(entry, "Said.", LIMITS, base64_too=False)
    url = Fields({"audio": "http://example.com/"}, "references[0]")
    assert read_clip(url, "Said.", LIMITS, base64_too=False).url == "http://example.com/"


def test_strings_that_are_too_long_for_any_text_are_refused() -> None:
    long = "x" * (4 * LIMITS.pending_characters + 1)
    for message in (
        parse_json(json.dumps({"text": long}).encode(), LIMITS),
        unpack(pack({"text": long}), LIMITS),
    ):
        with pytest.raises(Refused) as caught:
            Fields(message).text("text", LIMITS.pending_characters)
        assert caught.value.code == "text_too_long"


def test_large_values_arrive_unharmed() -> None:
    chance = random.Random(1)
    message = {
        "a": chance.randbytes(3 * LONG),
        "b": [{"c": chance.randbytes(2 * LONG + 1), "d": "\u00e9" * 2 * LONG}, chance.randbytes(9)],
        "e": "x" * 3 * LONG,
        "f": 1.5,
    }
    assert unpack(pack(message), LIMITS) == message


def test_a_broken_message_with_large_values_is_refused() -> None:
    whole = pack({"a": bytes(3 * LONG), "b": "x" * 3 * LONG})
    broken = whole.replace(b"xxxx", b"\xff\xff\xff\xff", 1)
    for data in (whole[:-1], whole + b"\x00", broken):
        with pytest.raises(Refused) as caught:
            unpack(data, LIMITS)
        assert caught.value.code == "bad_message"
