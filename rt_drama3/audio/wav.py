"""WAV files: their header, and whole clips written atomically; ``sinks`` writes as audio comes."""

from __future__ import annotations

import os
import secrets
import struct
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rt_drama3.audio.pcm import float_to_s16le
from rt_drama3.audio.resample import check_rate
from rt_drama3.errors import PipeClosed, SinkError

_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_UNKNOWN = 0xFFFF_FFFF  # readers interpret it as "until the end of the file"
_MAX_DATA = _UNKNOWN - _HEADER.size - 1  # WAV sizes have 32 bits


def wav_header(rate: int, data_bytes: int | None, channels: int = 1) -> bytes:
    """Returns the 44-byte header of a 16-bit PCM WAV file.

    Args:
        rate: sample rate in Hz.
        data_bytes: size of the samples that follow; None while it is unknown.
        channels: number of interleaved channels.
    """
    riff, data = (_UNKNOWN, _UNKNOWN) if data_bytes is None else (data_bytes + 36, data_bytes)
    return _HEADER.pack(
        *(b"RIFF", riff, b"WAVE"),
        # PCM, channels, bytes per second, block, bits
        *(b"fmt ", 16, 1, channels, rate, rate * 2 * channels, 2 * channels, 16),
        *(b"data", data),
    )


def write_wav(path: str | os.PathLike[str], samples: NDArray[Any], rate: int) -> None:
    """Writes a clip as a mono 16-bit WAV file, atomically.

    The file is written under a temporary name and then renamed, so that a reader never sees half of
    it and a failure leaves an existing file unchanged. A device or pipe is written directly.

    Args:
        path: path of the file; an existing one is replaced.
        samples: ``[samples]`` floats in [-1, 1]; larger values are clipped.
        rate: sample rate in Hz.

    Raises:
        RequestError: the rate is out of range, or the samples are not mono finite floats.
        SinkError: the file cannot be written.
    """
    check_rate(rate)
    pcm = float_to_s16le(samples)
    name = os.fspath(path)
    if len(pcm) > _MAX_DATA:
        raise SinkError(f"{name} is full: a WAV file holds up to 4 GiB; start another file.")
    try:
        file = Path(os.path.realpath(path))  # replaces the target of a link, not the link
        if file.exists() and not file.is_file():
            _write_whole(file, rate, pcm)
            return
        part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
        try:
            _write_whole(part, rate, pcm)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_write(name, error) from error


def _write_whole(path: Path, rate: int, pcm: bytes) -> None:
    with path.open("wb") as file:
        file.write(wav_header(rate, len(pcm)))
        file.write(pcm)


def cannot_write(name: str, error: OSError | ValueError) -> SinkError:
    """Returns the error for a failed write to a file or pipe."""
    if isinstance(error, BrokenPipeError):
        return PipeClosed(f"The reader of {name} has exited; nothing more was written.")
    reason = getattr(error, "strerror", None) or str(error)
    return SinkError(f"{name} cannot be written: {reason}. Choose another file or directory.")
