"""Bytes to maps and back: MessagePack and JSON, safe for any input.

Both decoders allocate what a message claims and holds, and a few bytes can claim or hold a lot (an
array of 2^32 - 1 values, a million empty maps). So every message is first scanned without
allocating anything, which bounds the number of values and, in MessagePack, their nesting.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any, NoReturn

import msgpack

from rt_drama3.protocol.limits import ProtocolLimits
from rt_drama3.protocol.refusals import Refused, show

# By first byte: bytes of the length field, what one unit of length is worth in bytes of payload
# and in values inside, and a fixed payload. From the MessagePack specification.
_SHAPES: dict[int, tuple[int, int, int, int]] = {
    **{head: (0, 0, 0, 0) for head in (0xC0, 0xC2, 0xC3)},  # nil, false, true
    0xC4: (1, 1, 0, 0), 0xC5: (2, 1, 0, 0), 0xC6: (4, 1, 0, 0),  # bin
    0xCA: (0, 0, 0, 4), 0xCB: (0, 0, 0, 8),  # float
    0xCC: (0, 0, 0, 1), 0xCD: (0, 0, 0, 2), 0xCE: (0, 0, 0, 4), 0xCF: (0, 0, 0, 8),  # uint
    0xD0: (0, 0, 0, 1), 0xD1: (0, 0, 0, 2), 0xD2: (0, 0, 0, 4), 0xD3: (0, 0, 0, 8),  # int
    0xD9: (1, 1, 0, 0), 0xDA: (2, 1, 0, 0), 0xDB: (4, 1, 0, 0),  # str
    0xDC: (2, 0, 1, 0), 0xDD: (4, 0, 1, 0),  # array
    0xDE: (2, 0, 2, 0), 0xDF: (4, 0, 2, 0),  # map
}  # fmt: skip
_BIN32, _STR32 = 0xC6, 0xDB
# Every value of JSON but the first comes behind one of these.
_JSON_MARKS = (b"[", b"{", b",", b":")
_EMPTY = re.compile(rb"\[\s*\]|\{\s*\}")
_ROW = re.compile(rb"\[[\d\s,]{30,65536}\]")  # whole numbers: a take's codes of one codebook
_MAX_CODES = 1 << 18  # in such rows; 16 takes of a minute have 206,720
# Copying or decoding megabytes in one call holds the interpreter lock, and so stops every stream,
# even from a thread. So long values are handled in parts of this size; joining them lets others
# run. Long JSON strings (clips in base64), unless they have escapes that base64 has no use for, and
# rows of codes are taken out before decoding and put back afterwards.
LONG = 1 << 16
_ESCAPES = {rb"\n": b"\n", rb"\r": b"\r", rb"\t": b"\t", rb"\/": b"/"}
_ESCAPED = re.compile(rb"[\x00-\x1f]|\\[^nrt/]")
_BACKSLASH = 0x5C
_MAX_PLAIN = 12  # bytes that a character of text may have, as two escapes


def pack(message: Mapping[str, Any]) -> bytes:
    """One message as MessagePack; bytes become bin, text becomes str."""
    packed: bytes = msgpack.packb(message, use_bin_type=True)
    return packed


def unpack(data: bytes | bytearray | memoryview | str, limits: ProtocolLimits) -> dict[str, Any]:
    """One incoming MessagePack message.

    A string that is too long to be text becomes a memoryview, as in ``parse_json``.

    Args:
        data: payload of a WebSocket message (str for a text message) or an HTTP body.
        limits: for its size.

    Raises:
        Refused: ``too_large``, ``too_complex``, or ``bad_message`` for anything that is not one
            whole map with text keys that occur once.
    """
    if isinstance(data, str):
        raise Refused("bad_message", "the message is text; messages are binary MessagePack.")
    _check_size(len(data), limits)
    message = bytes(data)
    large = _check_shape(message, limits)
    try:
        found = _unpack(message, large, 4 * limits.pending_characters)
    except UnicodeDecodeError:
        raise Refused("bad_message", "the message has a string that is not UTF-8.") from None
    except ValueError:  # what is left: a key that is neither text nor bytes
        raise Refused("bad_message", "the message has a map key that is not text.") from None
    if not isinstance(found, dict):
        raise Refused("bad_message", f"the message is {show(found)}, not a map.")
    return found


def parse_json(body: bytes | bytearray | memoryview, limits: ProtocolLimits) -> dict[str, Any]:
    """A JSON body that must be an object.

    A string that is too long to be text becomes a memoryview of its bytes, to read base64 from.

    Raises:
        Refused: ``too_large``, ``too_complex`` or ``bad_message``.
    """
    try:
        return _parse_json(body, limits)
    except Refused as error:
        raise error.advising(bad_message="Send one JSON object.") from None


def _parse_json(body: bytes | bytearray | memoryview, limits: ProtocolLimits) -> dict[str, Any]:
    _check_size(len(body), limits)
    data, taken = bytes(body), dict[str, Any]()
    try:
        if len(data) > LONG or 1 + sum(map(data.count, _JSON_MARKS)) > limits.items:
            data, taken = _take_out(data, limits)
        if len(data) > _MAX_PLAIN * limits.pending_characters + LONG:
            raise Refused("too_complex", f"the body has {len(data)} bytes besides long strings.")
        text = data.decode("utf-8-sig")  # json itself would let halves of surrogate pairs in
        found = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_as_map)
        if taken:
            found = _put_back(found, taken, 4 * limits.pending_characters)
    except UnicodeDecodeError:
        raise Refused("bad_message", "the body is not UTF-8.") from None
    except RecursionError:
        raise Refused("too_complex", "the body is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise Refused("bad_message", f"the body is not JSON: {error}.") from None
    except ValueError:  # Python limits the digits of an integer
        raise Refused("bad_message", "the body has a number of too many digits.") from None
    if not isinstance(found, dict):
        raise Refused("bad_message", f"the body is {show(found)}, not an object.")
    return found


def _take_out(data: bytes, limits: ProtocolLimits) -> tuple[bytes, dict[str, Any]]:
    """Walks over a body and counts its values; a row of codes is one.

    Returns:
        The body with a name in place of every long string and row, and those by their names: views
        of strings, and lists of numbers.
    """
    mark, parts, taken = secrets.token_hex(16), list[bytes](), dict[str, Any]()
    size, place, kept, quote = len(data), 0, 0, -1
    values, codes = limits.items - 1, _MAX_CODES
    quotes = 4 * limits.items + limits.pending_characters
    while place < size:
        if quote < place:
            quote = data.find(b'"', place)
            quote = size if quote < 0 else quote
        found: Any = None
        if quote == place:
            start, end = quote, data.find(b'"', quote + 1)
            while min(end, quotes) >= 0 and _backslashes(data, end) % 2:
                end = data.find(b'"', end + 1)
                quotes -= 1
            if end < 0:
                break  # the decoder will complain
            quotes -= 2
            place = end + 1
            if end - start > LONG:
                found = _long_string(data, start + 1, end)
        else:
            end = min(place + LONG, quote)
            row = _ROW.search(data, place, min(end + LONG, quote))
            start = end if row is None else min(end, row.start())
            values -= sum(data.count(sign, place, start) for sign in _JSON_MARKS)
            values += len(_EMPTY.findall(data, place, start))
            place = start
            if row is not None and start < end:
                count = row[0].count(b",") + 1
                codes -= count
                values -= 1 if count <= limits.items else count
                place = row.end()
                found = json.loads(row[0])
        if min(values, codes, quotes) < 0:
            limit = f"the limit is {limits.items}, and {_MAX_CODES} in rows of codes."
            raise Refused("too_complex", f"the body has too many values: {limit}")
        if found is not None:
            name = f"{mark}{len(taken)}"
            taken[name] = found
            parts += [data[kept:start], f'"{name}"'.encode()]
            kept = place
    return (b"".join([*parts, data[kept:]]) if taken else data), taken


def _backslashes(data: bytes, end: int) -> int:
    """How many backslashes stand right before a place."""
    size = 8
    while True:
        before = data[max(0, end - size) : end]
        found = len(before) - len(before.rstrip(b"\\"))
        if found < size:
            return found
        size *= 2


def _long_string(data: bytes, start: int, end: int) -> memoryview | None:
    """A string without its escapes; None if it has others than ``_ESCAPES``, or is not JSON."""
    escaped = data.find(b"\\", start, end) >= 0
    parts, place = list[bytes](), start
    while place < end:
        stop = min(end, place + LONG)
        if data[stop - 1] == _BACKSLASH:
            stop += 1  # an escape stays in one part; none is cut off by the end of a string
        if _ESCAPED.search(data, place, stop):
            return None
        if escaped:
            part = data[place:stop]
            for escape, character in _ESCAPES.items():
                part = part.replace(escape, character)
            parts.append(part)
        place = stop
    return memoryview(b"".join(parts)) if escaped else memoryview(data)[start:end]


def _put_back(value: Any, taken: Mapping[str, Any], longest: int) -> Any:
    """The value with what was taken out: strings that are too long for any text as views."""
    if isinstance(value, str):
        found = taken.get(value, value)
        return _text(found, longest) if isinstance(found, memoryview) else found
    if isinstance(value, list):
        return [_put_back(item, taken, longest) for item in value]
    if isinstance(value, dict):
        if not taken.keys().isdisjoint(value):
            raise Refused("too_complex", f"the body has a key of more than {LONG} bytes.")
        return {key: _put_back(item, taken, longest) for key, item in value.items()}
    return value


def _text(raw: memoryview, longest: int) -> str | memoryview:
    return str(raw, "utf-8") if len(raw) <= longest else raw


def _check_size(size: int, limits: ProtocolLimits) -> None:
    if size > limits.message_bytes:
        raise Refused(
            "too_large", f"the message is {size} bytes; the limit is {limits.message_bytes}."
        )


def _unpack(message: bytes, large: list[tuple[int, int, int]], longest: int) -> Any:
    """Unpacks a message whose shape was checked; its large bins are copied part by part.

    Extension types stand in for large values; no message has any of its own.
    """
    parts, kept = [], 0
    for number, (head, _, end) in enumerate(large):
        parts += [message[kept:head], msgpack.packb(msgpack.ExtType(0, number.to_bytes(4, "big")))]
        kept = end

    def in_place(code: int, number: bytes) -> bytes | str | memoryview:
        head, start, end = large[int.from_bytes(number, "big")]
        if message[head] == _BIN32:
            return b"".join(message[at : min(end, at + LONG)] for at in range(start, end, LONG))
        return _text(memoryview(message)[start:end], longest)

    small = b"".join([*parts, message[kept:]]) if large else message
    return msgpack.unpackb(small, object_pairs_hook=_as_map, ext_hook=in_place)


def _check_shape(data: bytes, limits: ProtocolLimits) -> list[tuple[int, int, int]]:
    """Walks over the message: whole, within the limits, and of types that are used.

    Returns:
        Where the header, the payload and the end of every large bin and text is.
    """
    large = []
    end, place, items = len(data), 0, 0
    to_come = [1]  # values still to come, outer containers first
    while to_come:
        if not to_come[-1]:
            to_come.pop()
            continue
        to_come[-1] -= 1
        if place >= end:
            raise Refused("bad_message", f"the message is cut short after {end} bytes.")
        items += 1
        if items > limits.items:
            raise Refused("too_complex", f"the message has more than {limits.items} values.")
        head = place
        payload, inside, place = _value(data, place)
        if payload > 2 * LONG and data[head] in (_BIN32, _STR32):
            large.append((head, place, place + payload))
        place += payload
        if place + inside > end:
            raise Refused(
                "bad_message",
                f"the message is cut short: a value announces more than the {end} bytes there are.",
            )
        if inside:
            to_come.append(inside)
            if len(to_come) - 1 > limits.nesting:
                raise Refused(
                    "too_complex", f"the message is nested more than {limits.nesting} deep."
                )
    if place != end:
        raise Refused("bad_message", f"{end - place} bytes follow the end of the message.")
    return large


def _value(data: bytes, place: int) -> tuple[int, int, int]:
    """Bytes of payload, values inside, and where the payload begins, of the value at a place."""
    head = data[place]
    place += 1
    if head < 0x80 or head >= 0xE0:  # small integers
        return 0, 0, place
    if head < 0x90:  # map
        return 0, 2 * (head & 15), place
    if head < 0xA0:  # array
        return 0, head & 15, place
    if head < 0xC0:  # str
        return head & 31, 0, place
    shape = _SHAPES.get(head)
    if shape is None:
        raise Refused(
            "bad_message",
            f"byte 0x{head:02x} at {place - 1}: extension types (timestamps, too) are not used.",
        )
    field, worth, values, fixed = shape
    # A truncated field reads as a smaller number; the position after it exposes that.
    length = int.from_bytes(data[place : place + field], "big")
    return fixed + worth * length, values * length, place + field


def _as_map(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise Refused("bad_message", "the message has a map key that is not text.")
        if key in found:
            raise Refused("bad_message", f"the key {show(key)} occurs twice in one map.")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise Refused("bad_message", f"the body has {name}, which is not JSON.")
