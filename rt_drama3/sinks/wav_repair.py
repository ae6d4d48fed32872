"""Corrects the sizes in the header of a WAV file whose writer did not finish."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rt_drama3.errors import SinkError

_CHUNK = struct.Struct("<4sI")
_FORMAT = struct.Struct("<HHIIHH")  # code, channels, rate, bytes a second, block, bits
_MAX_SIZE = 0xFFFF_FFFF


@dataclass(frozen=True)
class WavRepair:
    """Result of ``repair_wav``.

    Attributes:
        changed: whether the file was changed.
        frames: samples per channel, after the repair.
        seconds: duration, after the repair.
        cut_bytes: bytes of an incomplete frame that were removed from the end.
    """

    changed: bool
    frames: int
    seconds: float
    cut_bytes: int = 0


def repair_wav(path: str | os.PathLike[str]) -> WavRepair:
    """Corrects the sizes in a WAV file in place; samples are never changed.

    Sizes that are too small, too large or unknown (as in streams) are set to what the file holds.
    Chunks after the samples are kept if they can be distinguished from samples, that is, if they
    end exactly where the file does.

    Raises:
        SinkError: the file cannot be read or written, or is not a PCM WAV file.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("r+b") as file:
            return _repair(file, name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SinkError(
            f"{name} cannot be repaired: {reason}. It must be a writable file."
        ) from error


def _repair(file: BinaryIO, name: str) -> WavRepair:
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(12)
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
        raise SinkError(f"{name} is not a WAV file: it does not start with RIFF and WAVE.")
    rate, block = 0, 0
    at = 12
    while at + _CHUNK.size <= end:
        file.seek(at)
        kind, size = _CHUNK.unpack(file.read(_CHUNK.size))
        begin = at + _CHUNK.size
        if kind == b"fmt " and begin + _FORMAT.size <= end:
            _, _, rate, _, block, _ = _FORMAT.unpack(file.read(_FORMAT.size))
        elif kind == b"data":
            if not block or not rate:
                raise SinkError(
                    f"{name} cannot be repaired: it has no format chunk before its samples."
                )
            return _set_sizes(file, name, at, size, end, rate, block)
        at = begin + size + size % 2
    raise SinkError(f"{name} is a WAV file without samples; there is nothing to repair.")


def _set_sizes(
    file: BinaryIO, name: str, at: int, stated: int, end: int, rate: int, block: int
) -> WavRepair:
    begin = at + _CHUNK.size
    cut = 0
    if _chunks_follow(file, begin + stated + stated % 2, end):
        size = stated
    else:
        cut = (end - begin) % block
        size = end - begin - cut
        end -= cut
    if end - 8 > _MAX_SIZE:
        raise SinkError(f"{name} exceeds the 4 GiB limit of WAV files; convert it.")
    file.seek(4)
    riff = int.from_bytes(file.read(4), "little")
    changed = stated != size or riff not in (end - 8, end - 8 - size % 2) or cut > 0
    if changed:
        if cut:
            file.truncate(end)
        for place, value in ((4, end - 8), (at + 4, size)):
            file.seek(place)
            file.write(value.to_bytes(4, "little"))
        file.flush()
        os.fsync(file.fileno())
    return WavRepair(changed, size // block, size // block / rate, cut)


def _chunks_follow(file: BinaryIO, at: int, end: int) -> bool:
    """True if a chain of chunks leads from ``at`` exactly to the end of the file."""
    if at > end + 1:
        return False
    while at + _CHUNK.size <= end:
        file.seek(at)
        kind, size = _CHUNK.unpack(file.read(_CHUNK.size))
        if not all(32 <= character < 127 for character in kind):
            return False
        at += _CHUNK.size + size + size % 2
    return at in (end, end + 1)
