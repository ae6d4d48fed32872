"""WAV files: whole clips written atomically, and long ones written incrementally."""

from __future__ import annotations

import os
import secrets
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

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


class WavWriter:
    """Writes a mono 16-bit WAV file incrementally; a context manager.

    Until it is closed, the sizes in the header mean "until the end of the file", so that a reader
    that opens the file early, or after a crash, still finds its samples. Closing writes the correct
    sizes, also when the ``with`` block is left by an exception: what was written is kept. A pipe
    cannot be rewound and keeps the first header. If a write fails, as on a full disk, the samples
    that reached the file are kept as well.

    Args:
        target: path of the file (replaced if it exists), or a binary file object opened for writing
            at its beginning, which is left open.
        rate: sample rate in Hz.

    Raises:
        RequestError: the rate is out of range.
        SinkError: the file cannot be opened or written.
    """

    def __init__(self, target: str | os.PathLike[str] | BinaryIO, rate: int) -> None:
        check_rate(rate)
        self.rate = int(rate)
        self.samples = 0
        self._owned = isinstance(target, str | os.PathLike)
        if isinstance(target, str | os.PathLike):
            self._name = os.fspath(target)
            try:
                # Unbuffered, so that data refused by the system is not written again later.
                self._file: BinaryIO = open(self._name, "wb", buffering=0)  # noqa: SIM115
            except (OSError, ValueError) as error:
                raise cannot_write(self._name, error) from error
        else:
            self._name = name_of(target)
            self._file = target
        self._closed = False
        try:
            self._put(wav_header(self.rate, None))
        except SinkError:
            self._release()
            raise

    def write(self, samples: NDArray[Any]) -> None:
        """Appends samples.

        Args:
            samples: ``[samples]`` floats in [-1, 1]; larger values are clipped.

        Raises:
            RequestError: the samples are not mono finite floats.
            SinkError: the file is closed, cannot be written, or would exceed the 4 GiB of a WAV.
        """
        if self._closed:
            raise SinkError(f"{self._name} is closed; nothing more can be written to it.")
        pcm = float_to_s16le(samples)
        _check_size(self._name, self.samples * 2 + len(pcm))
        try:
            self._put(pcm)
        except SinkError:
            self._keep_what_arrived()
            raise
        self.samples += len(pcm) // 2

    def close(self) -> None:
        """Writes the correct sizes and closes the file; a second call does nothing.

        Raises:
            SinkError: the sizes cannot be written.
        """
        if self._closed:
            return
        try:
            if self._file.seekable():
                self._file.seek(0)
                self._put(wav_header(self.rate, self.samples * 2))
                self._file.seek(0, os.SEEK_END)
            if self._owned:
                self._file.close()
        except (OSError, ValueError) as error:  # ValueError: the owner closed the file object
            raise cannot_write(self._name, error) from error
        finally:
            self._release()

    def _put(self, data: bytes) -> None:
        try:
            if self._owned:
                write_all(self._file, data)
            else:
                self._file.write(data)
            self._file.flush()  # so that a reader that follows the file gets it immediately
        except (OSError, ValueError) as error:
            raise cannot_write(self._name, error) from error

    def _keep_what_arrived(self) -> None:
        """Counts the samples of a write that failed halfway."""
        with suppress(OSError, ValueError):
            if self._owned and self._file.seekable():
                data_bytes = max(0, self._file.seek(0, os.SEEK_END) - _HEADER.size) // 2 * 2
                self._file.truncate(_HEADER.size + data_bytes)
                self.samples = data_bytes // 2

    def _release(self) -> None:
        self._closed = True
        if self._owned:
            with suppress(OSError):  # closing after a failed write fails again
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def name_of(file: BinaryIO) -> str:
    """Returns the name of a file object for messages."""
    name = str(getattr(file, "name", "the output"))
    return "standard output" if name == "<stdout>" else name


def write_all(file: BinaryIO, data: bytes) -> None:
    """Writes all bytes to an unbuffered file, which may accept fewer per call."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


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
    _check_size(name, len(pcm))
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


def _check_size(name: str, data_bytes: int) -> None:
    if data_bytes > _MAX_DATA:
        raise SinkError(f"{name} is full: a WAV file holds up to 4 GiB; start another file.")


def cannot_write(name: str, error: OSError | ValueError) -> SinkError:
    """Returns the error for a failed write to a file or pipe."""
    if isinstance(error, BrokenPipeError):
        return PipeClosed(f"The reader of {name} has exited; nothing more was written.")
    reason = getattr(error, "strerror", None) or str(error)
    return SinkError(f"{name} cannot be written: {reason}. Choose another file or directory.")
