"""Audio into files: formats by name, and headers of WAV and FLAC with true sizes."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from types import TracebackType
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
_FLAC_TOTAL = 21  # where STREAMINFO's 36 bits of samples begin, in the lower half of a byte
_MOST = 0xFFFF_FFFF - 36  # bytes of audio that a WAV header can tell


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that a file's name asks for.

    Raises:
        UsageError: none.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(f"{os.fspath(path)} has no ending that names a format; known: {known}.")
    return FORMATS[suffix]


def check_fits(path: str | os.PathLike[str], asked: str) -> None:
    """Refuses a file whose name promises another format than was asked for.

    Raises:
        UsageError: it does.
    """
    named = FORMATS.get(Path(path).suffix.lower(), asked)
    if asked != named and not (named == "pcm" and asked == "pcm_f32"):
        raise UsageError(f"{os.fspath(path)} would hold {named}, and {asked} was asked for.")


def with_sizes(audio: bytes) -> bytes:
    """Audio whose WAV header, where it has one, tells its true sizes."""
    sizes = _sizes(audio[:_HEADER], len(audio))
    if sizes is None:
        return audio
    riff, data = sizes
    return audio[:4] + riff + audio[8:40] + data + audio[44:]


def _sizes(header: bytes, total: int) -> tuple[bytes, bytes] | None:
    """The two size fields of a streamed WAV; None for anything else."""
    streamed = header[:4] == b"RIFF" and header[8:16] == b"WAVEfmt " and header[36:40] == b"data"
    if not streamed or len(header) < _HEADER or total - _HEADER > _MOST:
        return None
    return struct.pack("<I", total - 8), struct.pack("<I", total - _HEADER)


def _flac_total(header: bytes, samples: int) -> bytes | None:
    """The samples of a streamed FLAC for its header; None for anything else."""
    if header[:4] != b"fLaC" or len(header) < _FLAC_TOTAL + 5 or not 0 < samples < 1 << 36:
        return None
    return (header[_FLAC_TOTAL] >> 4 << 36 | samples).to_bytes(5, "big")


class AudioFile:
    """A file that audio is written into as it comes; a context manager.

    The file is not touched before there is audio. Leaving the block writes the true sizes, also
    when an error leaves it: what came is kept.

    Args:
        path: replaced when it exists.

    Attributes:
        samples: of what was written, for the header of a FLAC; 0 where it is not known, as of one
            that was cut short.

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
        """Appends audio, and hands it to the system so that a reader can follow."""
        if self._file is None:
            self._file = open(self._path, "wb")  # noqa: SIM115 - closed by __exit__
        if len(self._head) < _HEADER:
            self._head += audio[: _HEADER - len(self._head)]
        self._size += len(audio)
        self._file.write(audio)
        self._file.flush()

    def complete(self) -> None:
        """All of it came; a file without audio is made, too."""
        if self._file is None:
            self.write(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is None:
            return
        with self._file as file:
            sizes = _sizes(self._head, self._size)
            if sizes is not None and file.seekable():
                for place, field in zip((4, 40), sizes, strict=True):
                    file.seek(place)
                    file.write(field)
            total = _flac_total(self._head, self.samples)
            if total is not None and file.seekable():
                file.seek(_FLAC_TOTAL)
                file.write(total)
