"""Audio files of any format that ``StreamEncoder`` has, written as the samples are made."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from numpy.typing import NDArray

from rt_drama3.audio.stream_encode import FORMATS, StreamEncoder
from rt_drama3.audio.stream_resample import StreamResampler
from rt_drama3.audio.wav import WavWriter, cannot_write
from rt_drama3.errors import RequestError, SinkError

# Endings of file names and the names of their formats in ``FORMATS``.
ENDINGS = {
    **{".wav": "wav", ".flac": "flac", ".mp3": "mp3", ".opus": "opus", ".ogg": "opus"},
    **{".aac": "aac", ".pcm": "pcm", ".raw": "pcm"},
}
FLAC_TOTAL = 21  # where STREAMINFO has 36 bits of samples, in the lower half of a byte


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that a file's name ends in.

    Raises:
        RequestError: it ends in none that is known.
    """
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        says = f"ends in {ending}, which" if ending else "has no ending and so"
        raise RequestError(
            f"{os.fspath(path)} {says} names no audio format here; use {', '.join(ENDINGS)}."
        )
    return ENDINGS[ending]


def rate_for(format: str, rate: int) -> int:
    """The rate in Hz that a format has for sound of a rate: the same, or the next one above."""
    rates = FORMATS[format].rates
    if rates is None or rate in rates:
        return rate
    return min((n for n in rates if n > rate), default=max(rates))


class AudioWriter:
    """Writes a mono file piece by piece, in the format that its name ends in; a context manager.

    Leaving the ``with`` block ends the file, also by an exception: what was made is kept. A file
    that could not be written is closed as it is.

    Args:
        path: of the file, replaced when it exists.
        rate: sample rate in Hz of what is written; resampled where the format lacks it.

    Attributes:
        rate: of the file, in Hz.

    Raises:
        RequestError: the name ends in no known format.
        SinkError: the file cannot be opened or written.
    """

    def __init__(self, path: str | os.PathLike[str], rate: int) -> None:
        format = format_of(path)
        self.rate = rate_for(format, rate)
        self._wav = WavWriter(path, rate) if format == "wav" else None
        if self._wav is not None:
            return
        self._encoder = StreamEncoder(format, self.rate)
        self._resampler = None if rate == self.rate else StreamResampler(rate, self.rate)
        self._name = os.fspath(path)
        self._flac = format == "flac"
        self._samples = 0
        self._head = b""
        self._closed = False
        try:
            self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by close()
        except (OSError, ValueError) as error:
            raise self._failed(error) from error

    def write(self, samples: NDArray[Any]) -> None:
        """Writes samples ``[samples]``, floats in [-1, 1].

        Raises:
            SinkError: they cannot be written.
        """
        if self._wav is not None:
            self._wav.write(samples)
            return
        if self._resampler is not None:
            samples = self._resampler.push(samples)
        self._encode(samples)

    def close(self) -> None:
        """Ends the file; calling it again does nothing.

        Raises:
            SinkError: the rest cannot be written.
        """
        if self._wav is not None:
            self._wav.close()
        elif not self._closed:
            try:
                if self._resampler is not None:
                    self._encode(self._resampler.flush())
                self._put(self._encoder.flush())
                self._tell_total()
                self._file.close()
            except OSError as error:
                raise self._failed(error) from error
            finally:
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _encode(self, samples: NDArray[Any]) -> None:
        self._samples += len(samples)
        self._put(self._encoder.push(samples))

    def _tell_total(self) -> None:
        """Puts the samples of a FLAC into its header (RFC 9639, 8.2); some readers want them."""
        if self._flac and len(self._head) == FLAC_TOTAL + 1 and self._file.seekable():
            kept = self._head[FLAC_TOTAL] >> 4 << 36
            self._file.seek(FLAC_TOTAL)
            self._file.write((kept | self._samples & (1 << 36) - 1).to_bytes(5, "big"))

    def _put(self, data: bytes) -> None:
        self._head += data[: FLAC_TOTAL + 1 - len(self._head)]
        try:
            self._file.write(data)
            self._file.flush()  # who plays the file while it grows is never behind
        except (OSError, ValueError) as error:
            self._release()
            raise self._failed(error) from error

    def _release(self) -> None:
        self._closed = True
        with suppress(OSError):  # after a failure it tries once more to write what it could not
            self._file.close()

    def _failed(self, error: OSError | ValueError) -> SinkError:
        if isinstance(error, BrokenPipeError):
            return cannot_write(self._name, error)
        return SinkError(f"cannot write {self._name}: {error}; choose another file or make room.")
