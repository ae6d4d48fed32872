"""Sinks that write to files and pipes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from abc import abstractmethod
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rt_drama3.audio.framing import FLAC_TOTAL, flac_total
from rt_drama3.audio.stream_encode import FORMATS, StreamEncoder, rate_for
from rt_drama3.audio.stream_resample import StreamResampler
from rt_drama3.audio.wav import cannot_write, wav_header
from rt_drama3.errors import RequestError, SinkError
from rt_drama3.sinks.pcm_format import Pcm, PcmFormat, to_int16, with_channels
from rt_drama3.sinks.sink import FADE_MS, Sink, SinkStats, already_open, not_open

STDOUT = "-"
_HEADER_SECONDS = 0.25  # audio between two updates of a WAV file's sizes
_HEADER_BYTES = 44
_MAX_WAV_BYTES = 0xFFFF_FFFF - _HEADER_BYTES


class ByteSink(Sink):
    """Shared code of files and pipes: bytes are written immediately, nothing is buffered.

    ``stop`` keeps what was written. A missing directory, a full disk and a reader that has exited
    each raise one clear error; a file keeps what reached it.

    Args:
        target: a path, "-" for standard output, or a binary file object, which is left open.
    """

    recovers = False

    def __init__(self, target: str | os.PathLike[str] | BinaryIO) -> None:
        self._target = target
        self._file: BinaryIO | None = None
        self._owned = False
        self._format: PcmFormat | None = None
        self._lock = threading.RLock()
        if isinstance(target, str | os.PathLike):
            name = os.fspath(target)
        else:
            name = str(getattr(target, "name", "the output"))
        self.name = "standard output" if name in (STDOUT, "<stdout>") else name

    @abstractmethod
    def _begin(self, format: PcmFormat) -> None:
        """Writes the header; raises if the format is not supported."""

    @abstractmethod
    def _samples(self, pcm: Pcm, format: PcmFormat) -> None:
        """Writes samples."""

    @abstractmethod
    def _end(self) -> None:
        """Writes what follows the samples."""

    def open(self, format: PcmFormat) -> None:
        with self._lock:
            if self._file is not None:
                raise already_open(self.name)
            self._open_target()
            try:
                self._begin(format)
            except (SinkError, RequestError):
                self._release()
                raise
            self._format = format

    def write(self, pcm: Pcm) -> None:
        with self._lock:
            if self._format is None:
                raise not_open(self.name)
            self._samples(pcm, self._format)

    def finish(self) -> None:
        if self._format is None:
            raise not_open(self.name)

    def drain(self) -> None:
        self.finish()

    def stop(self, fade_ms: float = FADE_MS) -> None:
        pass

    def close(self) -> None:
        with self._lock:
            if self._file is None:
                return
            try:
                if self._format is not None:
                    self._end()
            finally:
                self._format = None
                self._release()

    @property
    def stats(self) -> SinkStats:
        format = self._format
        return SinkStats(device_rate=0 if format is None else format.rate)

    # --- inside ---

    def _open_target(self) -> None:
        target = self._target
        if not isinstance(target, str | os.PathLike):
            self._file = target
        elif os.fspath(target) == STDOUT:
            self._file = sys.stdout.buffer
        else:
            try:
                # Unbuffered, so that data refused by the system is not written again later.
                self._file = Path(target).open("wb", buffering=0)  # noqa: SIM115
            except (OSError, ValueError) as error:
                raise self._failed(error) from error
            self._owned = True

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        rest = memoryview(data)
        try:
            if not self._owned:
                self._file.write(data)
            while self._owned and rest:  # an unbuffered file may accept fewer bytes
                rest = rest[self._file.write(rest) :]
            self._file.flush()  # so that a reader gets it immediately
        except (OSError, ValueError) as error:
            raise self._failed(error) from error

    def _correct(self, place: int, data: bytes) -> None:
        """Replaces bytes of the header, where the file can be rewound."""
        assert self._file is not None
        try:
            if self._file.seekable():
                self._file.seek(place)
                self._put(data)
                self._file.seek(0, os.SEEK_END)
        except (OSError, ValueError) as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError | ValueError) -> SinkError:
        return cannot_write(self.name, error)

    def _release(self) -> None:
        file, owned = self._file, self._owned
        self._file, self._owned = None, False
        if owned and file is not None:
            try:
                file.close()
            except OSError as error:
                raise self._failed(error) from error


class WavSink(ByteSink):
    """A 16-bit WAV file with any number of channels.

    The sizes in its header are updated four times per second of audio and on close, so that a file
    whose writer was killed is playable up to the last update; ``repair_wav`` recovers the rest.
    They are also correct after the disk was full. In standard output they mean "until the end",
    until it is closed and if it can be rewound.
    """

    def _begin(self, format: PcmFormat) -> None:
        assert self._file is not None
        self._rate, self._channels = format.rate, format.channels
        self._bytes = self._header_bytes = 0
        known = self._owned and self._file.seekable()
        self._put(wav_header(self._rate, 0 if known else None, self._channels))

    def _samples(self, pcm: Pcm, format: PcmFormat) -> None:
        data = to_int16(format.frames(pcm)).astype("<i2", copy=False).tobytes()
        if self._bytes + len(data) > _MAX_WAV_BYTES:
            raise SinkError(f"{self.name} is full: a WAV file holds 4 GiB; start another file.")
        try:
            self._put(data)
        except SinkError:
            self._keep_what_arrived()
            raise
        self._bytes += len(data)
        due = self._header_bytes + _HEADER_SECONDS * self._rate * 2 * self._channels
        if self._owned and self._bytes >= due:
            self._update()

    def _keep_what_arrived(self) -> None:
        """Counts the frames of a write that failed halfway and updates the header."""
        if not self._owned or self._file is None:
            return
        with contextlib.suppress(OSError, ValueError, SinkError):
            block = 2 * self._channels
            self._bytes = max(0, self._file.seek(0, os.SEEK_END) - _HEADER_BYTES) // block * block
            self._file.truncate(_HEADER_BYTES + self._bytes)
            self._update()

    def _end(self) -> None:
        self._update()

    def _update(self) -> None:
        self._correct(0, wav_header(self._rate, self._bytes, self._channels))
        self._header_bytes = self._bytes


class EncodedSink(ByteSink):
    """A mono file or pipe in one of ``audio.FORMATS``; ``pcm`` is raw 16-bit samples.

    If a format does not support the stream's rate, the next higher supported rate is used.

    Args:
        target: see ``ByteSink``.
        format: a name in ``audio.FORMATS``; "wav" is the kind without a stated length.
        bitrate: see ``StreamEncoder``.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        format: str,
        *,
        bitrate: int | None = None,
    ) -> None:
        super().__init__(target)
        if format not in FORMATS:
            raise RequestError(f"The format is {format!r}; use one of {', '.join(FORMATS)}.")
        self._encoding, self._bitrate = format, bitrate

    def _begin(self, format: PcmFormat) -> None:
        if format.channels != 1:
            raise RequestError(
                f"{self._encoding} is written in mono, not with {format.channels} channels; use "
                "wav, or mix them down first."
            )
        rate = rate_for(self._encoding, format.rate)
        self._encoder = StreamEncoder(self._encoding, rate, bitrate=self._bitrate)
        self._resampler = StreamResampler(format.rate, rate, "high")

    def _samples(self, pcm: Pcm, format: PcmFormat) -> None:
        frames = with_channels(format.frames(pcm), 1)[:, 0]
        data = self._encoder.push(self._resampler.push(np.ascontiguousarray(frames)))
        if data:
            self._put(data)

    def _end(self) -> None:
        self._put(self._encoder.push(self._resampler.flush()) + self._encoder.flush())
        if self._encoding == "flac" and self._owned:  # some readers need the count
            self._correct(FLAC_TOTAL, flac_total(self._encoder.samples))
