"""Right messages made wrong: in their values, in their structure, and in their bytes."""

from __future__ import annotations

import random
from typing import Any

import msgpack

NESTED: Any = []
for _ in range(40):
    NESTED = [NESTED]
# Values that are at an edge, of a wrong type, or that no field expects.
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 255, 2**31, 2**32, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 0.5,
    24_000.0, 1e308, 5e-324, float("nan"), float("inf"), -float("inf"), "", " ", "\x00", "\u202e",
    "\ufffd", "...", "😀", "Hello there. ", "<|im_end|>", "<|speaker:3|> ", "<|speaker:99|>", "<|",
    "[soft] ", "x" * 300, "../../etc/passwd", "http://127.0.0.1/x.wav", "pcm", "mp3", "anna", b"",
    b"\x00", bytes(40), b"RIFF", [], [[]], [None], {}, {"text": "a"}, {"text": 1, "audio": b"x"},
    [{"text": "Said.", "vq_codes": b"\xff" * 40}], [1] * 5_000, NESTED, {"": ""},
    msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 2),
)  # fmt: skip
DECLARED = (b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9", b"\xde\x00\x02", b"\xc1", b"\xd9")


def changed(value: Any, rng: random.Random) -> Any:
    """A copy that differs in one place, somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        found = dict(value)
        name = rng.choice(list(found))
        match rng.randrange(6):
            case 0:
                del found[name]
            case 1:
                found[f"{name}{rng.randrange(9)}"] = found[name]
            case 2:
                found[name] = rng.choice(list(found.values()))
            case _:
                found[name] = changed(found[name], rng)
        return found
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        entry = changed(value[place], rng)
        replaced = [*value[:place], entry, *value[place + 1 :]]
        return rng.choice([[*value, entry], replaced, value * 9])
    if isinstance(value, str | bytes) and value and rng.random() < 0.5:
        place = rng.randrange(len(value) + 1)
        return value[:place] + value[: rng.randrange(9)] + value[place + rng.randrange(3) :]
    if isinstance(value, int | float) and rng.random() < 0.5:
        return rng.choice([-value, value + 1, value * 1000, float(value), str(value)])
    return rng.choice(ODD)


def packed(value: Any) -> bytes:
    """As MessagePack; numbers that it cannot hold become another odd value."""
    try:
        data: bytes = msgpack.packb(value)
    except (ValueError, OverflowError):
        return b"\xcf" + b"\xff" * 8
    return data


def doubled(value: Any) -> bytes:
    """As MessagePack, the first key of the map twice."""
    data = packed(value)
    if not isinstance(value, dict) or not 0 < len(value) < 15:
        return data
    name, first = next(iter(value.items()))
    return bytes([data[0] + 1]) + packed(name) + packed(first) + data[1:]


def broken(data: bytes, rng: random.Random) -> bytes:
    """The bytes cut, changed, doubled, or with a length that is a lie."""
    found = bytearray(data)
    for _ in range(1 + rng.randrange(3)):
        place = rng.randrange(len(found)) if found else 0
        match rng.randrange(5):
            case 0:
                del found[place:]
            case 1 if found:
                found[place] = rng.randrange(256)
            case 2:
                found[place:place] = rng.randbytes(rng.randrange(1, 6))
            case 3:
                found += found[:place]
            case _:
                found[place:place] = rng.choice(DECLARED) + b"\xff" * rng.randrange(5)
    return bytes(found)


def spoiled(message: Any, rng: random.Random) -> bytes:
    """A message as bytes: right, or wrong in one of these ways."""
    match rng.randrange(8):
        case 0 | 1:
            return packed(message)
        case 2:
            return doubled(message)
        case 3 | 4:
            return broken(packed(message), rng)
        case 5:
            return packed(changed(changed(message, rng), rng))
        case _:
            return packed(changed(message, rng))
