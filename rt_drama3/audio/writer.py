"""Audio files in any format of ``StreamEncoder``, written incrementally."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from numpy.typing import NDArray

from rt_drama3.audio.stream_encode import FORMATS, StreamEncoder
from rt_drama3.audio.stream_resample import StreamResampler
from rt_drama3.audio.wav import WavWriter, cannot_write
from rt_drama3.errors import RequestError

# File extensions and the names of their formats in ``FORMATS``.
EXTENSIONS = {
    **{".wav": "wav", ".flac": "flac", ".mp3": "mp3", ".opus": "opus", ".ogg": "opus"},
    **{".aac": "aac", ".pcm": "pcm", ".raw": "pcm"},
}
FLAC_TOTAL = 21  # offset of the 36-bit sample count in STREAMINFO, from the lower half of a byte


def format_of(path: str | os.PathLike[str]) -> str:
    """Returns the format of a file by its extension.

    Raises:
        RequestError: the extension is not supported.
    """
    extension = Path(path).suffix.lower()
    if extension not in EXTENSIONS:
        found = f"the unsupported extension {extension}" if extension else "no extension"
        raise RequestError(f"{os.fspath(path)} has {found}; use {', '.join(EXTENSIONS)}.")
    return EXTENSIONS[extension]


def rate_for(format: str, rate: int) -> int:
    """Returns the rate in Hz to encode with: the given one, or the next one the format supports."""
    rates = FORMATS[format].rates
    if rates is None or rate in rates:
        return rate
    return min((n for n in rates if n > rate), default=max(rates))


class AudioWriter:
    """Writes a mono file incrementally, in the format of its extension; a context manager.

    Leaving the ``with`` block completes the file, also on an exception: what was written is kept. A
    file that could not be written is closed as it is.

    Args:
        path: path of the file; an existing one is replaced.
        rate: sample rate in Hz of the written samples; resampled if the format does not support it.

    Attributes:
        rate: sample rate of the file in Hz.

    Raises:
        RequestError: the extension is not supported.
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
            raise cannot_write(self._name, error) from error

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
        """Completes the file; a second call does nothing.

        Raises:
            SinkError: the remaining data cannot be written.
        """
        if self._wav is not None:
            self._wav.close()
        elif not self._closed:
            try:
                if self._resampler is not None:
                    self._encode(self._resampler.flush())
                self._put(self._encoder.flush())
                self._write_flac_total()
                self._file.close()
            except OSError as error:
                raise cannot_write(self._name, error) from error
            finally:
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _encode(self, samples: NDArray[Any]) -> None:
        self._samples += len(samples)
        self._put(self._encoder.push(samples))

    def _write_flac_total(self) -> None:
        """Writes the sample count into a FLAC header (RFC 9639, 8.2); some readers require it."""
        if self._flac and len(self._head) == FLAC_TOTAL + 1 and self._file.seekable():
            kept = self._head[FLAC_TOTAL] >> 4 << 36
            self._file.seek(FLAC_TOTAL)
            self._file.write((kept | self._samples & (1 << 36) - 1).to_bytes(5, "big"))

    def _put(self, data: bytes) -> None:
        self._head += data[: FLAC_TOTAL + 1 - len(self._head)]
        try:
            self._file.write(data)
            self._file.flush()  # so that a reader that follows the file gets it immediately
        except (OSError, ValueError) as error:
            self._release()
            raise cannot_write(self._name, error) from error

    def _release(self) -> None:
        self._closed = True
        with suppress(OSError):  # after a failure, closing retries the buffered data
            self._file.close()
