"""Writes audio files: formats by extension, and correct sizes in WAV and FLAC headers."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO, Self

from rt_drama3_client.errors import UsageError

FORMATS = {
    ".wav": "wav",
    ".pcm": "pcm",
    ".raw": "pcm",
    ".mp3": "mp3",
    ".opus": "opus",
    ".ogg": "opus",
    ".flac": "flac",
    ".aac": "aac",
}
_HEADER = 44  # bytes of the server's WAV header
_FLAC_TOTAL = 21  # offset of the 36-bit sample count in STREAMINFO, from the lower half of a byte
_MAX_SIZE = 0xFFFF_FFFF - 36  # bytes of audio that a WAV header can state


def format_of(path: str | os.PathLike[str]) -> str:
    """Returns the format of a file by its extension.

    Raises:
        UsageError: the extension is not supported.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(f"{os.fspath(path)} has no supported extension; use {known}.")
    return FORMATS[suffix]


def check_fits(path: str | os.PathLike[str], requested: str) -> None:
    """Refuses a file whose extension does not match the requested format.

    Raises:
        UsageError: it does not match.
    """
    named = FORMATS.get(Path(path).suffix.lower(), requested)
    if requested != named and not (named == "pcm" and requested == "pcm_f32"):
        raise UsageError(f"{os.fspath(path)} would hold {named}, but {requested} was requested.")


def with_sizes(audio: bytes) -> bytes:
    """Returns audio with correct sizes in its WAV header, if it has one."""
    sizes = _sizes(audio[:_HEADER], len(audio))
    if sizes is None:
        return audio
    riff, data = sizes
    return audio[:4] + riff + audio[8:40] + data + audio[44:]


def _sizes(header: bytes, total: int) -> tuple[bytes, bytes] | None:
    """Returns the two size fields of a streamed WAV; None for anything else."""
    streamed = header[:4] == b"RIFF" and header[8:16] == b"WAVEfmt " and header[36:40] == b"data"
    if not streamed or len(header) < _HEADER or total - _HEADER > _MAX_SIZE:
        return None
    return struct.pack("<I", total - 8), struct.pack("<I", total - _HEADER)


def _flac_total(header: bytes, samples: int) -> bytes | None:
    """Returns the sample count of a streamed FLAC for its header; None for anything else."""
    if header[:4] != b"fLaC" or len(header) < _FLAC_TOTAL + 5 or not 0 < samples < 1 << 36:
        return None
    return (header[_FLAC_TOTAL] >> 4 << 36 | samples).to_bytes(5, "big")


class AudioFile:
    """A file that audio is written to as it arrives; a context manager.

    The file is not touched before there is audio. Leaving the block writes the correct sizes, also
    on an exception: what was received is kept.

    Args:
        path: path of the file; an existing one is replaced.

    Attributes:
        samples: number of samples for the header of a FLAC; 0 if unknown, for example when the
            audio is incomplete.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.samples = 0
        self._path = path
        self._file: BinaryIO | None = None
        self._head = b""
        self._size = 0

    def write(self, audio: bytes) -> None:
        """Appends audio and flushes it, so that a reader can follow."""
        if self._file is None:
            self._file = open(self._path, "wb")  # noqa: SIM115 - closed by __exit__
        if len(self._head) < _HEADER:
            self._head += audio[: _HEADER - len(self._head)]
        self._size += len(audio)
        self._file.write(audio)
        self._file.flush()

    def complete(self) -> None:
        """Marks the audio as complete; creates the file if there was no audio."""
        if self._file is None:
            self.write(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is None:
            return
        with self._file as file:
            sizes = _sizes(self._head, self._size)
            if sizes is not None and file.seekable():
                for offset, field in zip((4, 40), sizes, strict=True):
                    file.seek(offset)
                    file.write(field)
            total = _flac_total(self._head, self.samples)
            if total is not None and file.seekable():
                file.seek(_FLAC_TOTAL)
                file.write(total)
