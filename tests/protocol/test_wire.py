"""Decoding: what is taken, and that nothing else gets through or costs more than its bytes."""

from __future__ import annotations

import contextlib
import json
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import msgpack
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rt_drama3.protocol import wire
from rt_drama3.protocol.limits import ProtocolLimits
from rt_drama3.protocol.refusals import Refused
from rt_drama3.protocol.wire import pack, parse_json, unpack

LIMITS = ProtocolLimits()
SMALL = replace(LIMITS, message_bytes=64, items=10, nesting=3)


def refusal(data: bytes | str, limits: ProtocolLimits = LIMITS) -> Refused:
    with pytest.raises(Refused) as caught:
        unpack(data, limits)
    return caught.value


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=5), plain, max_size=4))
def test_every_map_of_plain_values_comes_through(message: dict[str, object]) -> None:
    limits = replace(LIMITS, nesting=100)
    assert unpack(pack(message), limits) == message
    assert unpack(memoryview(msgpack.packb(message, use_single_float=False)), limits) == message


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_every_length_of_strings_and_bins(size: int) -> None:
    message = {"s": "x" * size, "b": bytes(size)}
    assert unpack(pack(message), LIMITS) == message


def test_every_length_of_integers() -> None:
    edges = [2**n + d for n in (5, 7, 8, 15, 16, 31, 32, 63) for d in (-1, 0, 1)] + [2**64 - 1]
    message = {"up": edges, "down": [-edge for edge in edges if edge <= 2**63]}
    assert unpack(pack(message), LIMITS) == message


@pytest.mark.parametrize("count", [15, 16, 1_000])
def test_every_length_of_lists_and_maps(count: int) -> None:
    message = {"a": list(range(count)), "m": {str(n): n for n in range(count)}}
    assert unpack(pack(message), LIMITS) == message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cut short after 0 bytes"),
        (b"\x81\xa4type\xa5sta", "cut short"),
        (b"\x81\xa4type", "cut short"),
        (b"\x81\xa1a\xcb\x00", "cut short"),
        (b"\x81\xa1a\xdb\xff", "cut short"),
        (b"\x81\xa1a\xdd\xff\xff\xff\xff", "cut short"),  # 2^32 - 1 values announced
        (b"\x81\xa1a\xdf\xff\xff\xff\xff", "cut short"),
        (b"\x81\xa1a\xc6\xff\xff\xff\xff", "cut short"),
        (b"\x81\xa1a\xdb\xff\xff\xff\xff", "cut short"),
        (b"\x80\x80", "1 bytes follow"),
        (b"\xc0", "None, not a map"),
        (b"\x90", "a list of 0, not a map"),
        (b"\x01", "1, not a map"),
        (b"\xa5hello", "'hello', not a map"),
        (b"\x81\xa1a\xc1", "0xc1"),
        (b"\x81\xa1a\xd6\xff\x00\x00\x00\x00", "extension types"),  # a timestamp
        (b"\x81\xa1a\xc7\x0c\xff" + bytes(12), "extension types"),
        (b"\x81\xa1a\xd4\x05\x00", "extension types"),
        (b"\x82\xa1a\x01\xa1a\x02", "'a' occurs twice"),
        (b"\x81\xa1a\x82\xa1b\x01\xa1b\x02", "'b' occurs twice"),
        (b"\x81\x01\x02", "key that is not text"),
        (b"\x81\xc4\x01a\x02", "key that is not text"),
        (b"\x81\x90\x02", "key that is not text"),
        (b"\x81\xa1a\xa2\xc3\x28", "not UTF-8"),
        (b"\x81\xa1a\xa3\xed\xa0\x80", "not UTF-8"),  # half a surrogate pair
        ("text", "the message is text"),
    ],
)
def test_what_is_not_one_whole_map_is_a_bad_message(data: bytes | str, says: str) -> None:
    error = refusal(data)
    assert error.code == "bad_message"
    assert says in error.message


def test_size_values_and_nesting_are_bounded() -> None:
    assert unpack(pack({"a": [[1]]}), SMALL)
    assert refusal(pack({"a": [[[1]]]}), SMALL).code == "too_complex"
    assert unpack(pack({"a": list(range(7))}), SMALL)
    assert refusal(pack({"a": list(range(8))}), SMALL).code == "too_complex"
    assert unpack(pack({"a": "x" * 58}), SMALL)
    error = refusal(pack({"a": "x" * 80}), SMALL)
    assert error.code == "too_large"
    assert "85 bytes" in error.message


def test_many_small_containers_are_refused_before_they_are_made() -> None:
    bomb = b"\x81\xa1a\xdd" + (8_000_000).to_bytes(4, "big") + b"\x80" * 8_000_000
    deep = b"\x91" * 8_000_000
    tracemalloc.start()
    assert refusal(bomb).code == "too_complex"
    assert refusal(deep).code == "too_complex"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@settings(max_examples=2_000, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_map_or_a_refusal(data: bytes) -> None:
    with contextlib.suppress(Refused):
        assert isinstance(unpack(data, LIMITS), dict)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=5), plain, max_size=4), st.data())
def test_a_message_cut_or_changed_anywhere_does_not_escape(
    message: dict[str, object], data: st.DataObject
) -> None:
    packed = bytearray(pack(message))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] = data.draw(st.integers(0, 255))
    for changed in (packed, packed[:place]):
        with contextlib.suppress(Refused):
            unpack(changed, LIMITS)


def refused_json(body: bytes, limits: ProtocolLimits = LIMITS) -> Refused:
    with pytest.raises(Refused) as caught:
        parse_json(body, limits)
    return caught.value


def test_json_objects_come_through() -> None:
    message = {"text": "Grüße, [laughs] 😀", "n": 1.5, "l": [None, True]}
    assert parse_json(json.dumps(message, ensure_ascii=False).encode(), LIMITS) == message
    assert parse_json(b"\xef\xbb\xbf{}", LIMITS) == {}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "a list of 0, not an object"),
        (b'"x"', "not an object"),
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "digits"),
    ],
)
def test_what_is_not_a_json_object_is_a_bad_message(body: bytes, says: str) -> None:
    error = refused_json(body)
    assert error.code == "bad_message"
    assert says in error.message


def test_json_is_bounded() -> None:
    assert refused_json(b"{}" + b" " * 70, SMALL).code == "too_large"
    assert refused_json(b'{"a": ' + b"[" * 100_000).code == "too_complex"
    bomb = b'{"a": [' + b"{}," * 3_000_000 + b"{}]}"
    tracemalloc.start()
    assert refused_json(bomb).code == "too_complex"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(bomb)
    text = "a, [b] " * (LIMITS.pending_characters // 7)
    assert parse_json(json.dumps({"text": text}).encode(), LIMITS)["text"] == text


def code(parse: Callable[..., object], data: bytes, limits: ProtocolLimits) -> str:
    """The code of the refusal; empty if there is none."""
    try:
        parse(data, limits)
    except Refused as error:
        return error.code
    return ""


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=3), plain, max_size=4), st.integers(1, 40))
def test_a_body_may_have_as_many_values_as_a_message(
    message: dict[str, object], items: int
) -> None:
    """JSON and MessagePack count the same, whatever is in the texts and between the values."""
    limits = replace(LIMITS, items=items, nesting=100)
    message = json.loads(json.dumps(message, default=lambda value: f"[{value!r},:"))
    texts = [json.dumps(message), json.dumps(message, indent=1, ensure_ascii=False)]
    assume("Infinity" not in texts[0])
    expected = code(unpack, pack(message), limits)
    for body in map(str.encode, texts):
        with mock.patch.object(wire, "_ROW", re.compile(rb"(?!)")):
            assert code(parse_json, body, limits) == expected
        if not expected:
            assert parse_json(body, limits) == message


@pytest.mark.parametrize("value", ["{}", "[]", '""', "0", "null", '{"a":[]}', " 1 , 2 "])
@pytest.mark.parametrize("long", [False, True])
def test_thousands_of_values_are_refused(value: str, long: bool) -> None:
    text = f'"{"x" * 70_000}",' if long else ""
    few = f'{{"a": [{text}{",".join(1_300 * [value])}]}}'
    assert parse_json(few.encode(), LIMITS)
    many = f'{{"a": [{text}{",".join(4_100 * [value])}]}}'
    assert refused_json(many.encode()).code == "too_complex"


@pytest.mark.parametrize("indent", [None, 1])
def test_codes_of_takes_are_not_counted_one_by_one(indent: int | None) -> None:
    """An artefact has a number for every code: a minute has 12,920."""
    rows = [[(n * 37 + book) % 1_024 for n in range(1_292)] for book in range(10)]
    takes = [{"text": "[x], {y}: 1,2", "codes": rows} for _ in range(16)]
    message = {"input": "Hi.", "previous_takes": takes, "n": [1, 2]}
    assert parse_json(json.dumps(message, indent=indent).encode(), LIMITS) == message
    message["previous_takes"] = takes + takes
    assert refused_json(json.dumps(message, indent=indent).encode()).code == "too_complex"


@pytest.mark.parametrize("row", ["1,,2", "01,2", "1 2", ",1", "1,", "9" * 5_000])
def test_rows_of_codes_are_json(row: str) -> None:
    body = f'{{"a": [{" " * 40}{row}], "b": [{"1," * 5_000}1]}}'.encode()
    assert refused_json(body).code == "bad_message"
    key = f'{{[{"1," * 50}1]: 1, "b": [{"1," * 5_000}1]}}'.encode()
    assert refused_json(key).code in ("bad_message", "too_complex")


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [' + b"[" + b"1," * 20 + b"1]," * 200_000,
        b'{"a": "' + b'\\"' * 4_000_000,
        b'"' * 8_000_000,
        b"[" + b" " * 8_000_000,
    ],
    ids=["rows", "escapes", "quotes", "spaces"],
)
def test_bodies_without_end_are_refused_soon(body: bytes) -> None:
    assert refused_json(body).code in ("too_complex", "bad_message")


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_any_body_gives_an_object_or_a_refusal(body: bytes) -> None:
    with contextlib.suppress(Refused):
        assert isinstance(parse_json(body, LIMITS), dict)


def test_a_long_key_of_json_is_refused_and_not_replaced() -> None:
    limits = ProtocolLimits()
    long = "k" * 70_000
    for body in ({long: 1}, {"text": "a", "inner": [{long: "v" * 70_000}]}):
        with pytest.raises(Refused) as caught:
            parse_json(json.dumps(body).encode(), limits)
        assert caught.value.code == "too_complex"
    body = {"a": long, "n": [1, long, None]}
    assert parse_json(json.dumps(body).encode(), limits) == body


def test_large_bodies_are_bounded_and_complained_about_like_small_ones() -> None:
    limits = ProtocolLimits()
    many = b'{"a": ["' + b'","' * 150_000 + b'"]}'
    open_ended = b'{"a": "' + b"x" * 70_000
    escaped = b'{"a": "' + b"\\\\" * 40_000 + b'", "b": "\\\\\\""}'
    padded = b'{"a": 1' + b" " * (13 * limits.pending_characters) + b"}"
    wrong = [(body, "too_complex") for body in (many, padded, b"[" * 300_000)]
    for body, code in (*wrong, (open_ended, "bad_message")):
        with pytest.raises(Refused) as caught:
            parse_json(body, limits)
        assert caught.value.code == code
    assert parse_json(escaped, limits) == {"a": "\\" * 40_000, "b": '\\"'}
