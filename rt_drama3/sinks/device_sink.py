"""Shared code of outputs with their own clock: convert, wait, stop, and reconnect."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from typing import Protocol

import numpy as np

from rt_drama3.audio.stream_resample import Quality, StreamResampler
from rt_drama3.errors import SinkError
from rt_drama3.sinks.pcm_format import Frames, Pcm, PcmFormat, to_int16, with_channels
from rt_drama3.sinks.player import Player
from rt_drama3.sinks.prebuffer import Prebuffer
from rt_drama3.sinks.sink import FADE_MS, Sink, SinkStats, already_open, not_open

_CHUNK_FRAMES = 4_096  # converted at a time, so that a stop never waits for a long write
_RETRY_SECONDS = 1.0  # between attempts to reopen a device that failed
_TAIL_MS = 60.0  # silence after the last sample: devices drop their buffer when they stop


class DeviceStream(Protocol):
    """An open output, which renders from a player at its own pace."""

    @property
    def rate(self) -> int:
        """The output's rate in Hz."""

    @property
    def player(self) -> Player:
        """What it renders from."""

    @property
    def latency_ms(self) -> float | None:
        """Delay to the listener, as the output reports it."""

    @property
    def gaps(self) -> int:
        """Times that the output had to wait for samples within a take; it plays them late."""

    @property
    def lost(self) -> int:
        """Times that the output lost samples of a take."""

    def check(self) -> None:
        """Calls the sink's ``_fail`` if the output is known to be gone; does not block."""

    def wake(self) -> None:
        """Makes it render immediately, where it can."""

    def close(self) -> None:
        """Closes it, even a failed one; never raises."""


class DeviceSink(Sink):
    """The writing side of a player that an output renders from.

    A subclass opens the output in ``_connect``; the stream reports a failure with ``_fail``.

    Args:
        name: used in messages.
        buffer_ms: audio that is buffered before ``write`` blocks.
        stall_seconds: a device that takes no samples for this long has failed.
        prebuffer: chooses how much to buffer before a take starts; None for the default bounds.
        quality: quality of the conversion to the device's rate, see ``audio.StreamResampler``.
    """

    def __init__(
        self,
        name: str,
        *,
        buffer_ms: float = 500.0,
        stall_seconds: float = 3.0,
        prebuffer: Prebuffer | None = None,
        quality: Quality = "low_latency",
    ) -> None:
        self.name = name
        self.buffer_ms = buffer_ms
        self.stall_seconds = stall_seconds
        self.prebuffer = prebuffer or Prebuffer()
        self.quality: Quality = quality
        self._format: PcmFormat | None = None
        self._stream: DeviceStream | None = None
        self._resamplers: list[StreamResampler] = []
        self._failure: SinkError | None = None
        self._failure_raised = True  # whether a caller has seen the failure
        self._last_attempt = 0.0  # when opening the device was last tried
        self._earlier_underruns = self._earlier_lost = 0  # of streams that are closed
        self._stops = 0  # number of calls of stop() and close()
        self._woken = threading.Event()  # set by stop(), so that a blocked write returns
        self._producer = threading.RLock()  # held while writing

    # --- for subclasses ---

    @abstractmethod
    def _connect(self, format: PcmFormat) -> DeviceStream:
        """Opens the output and starts it."""

    def _disconnected(self) -> None:
        """Called after the output was closed; never raises."""

    def _fail(self, error: SinkError) -> None:
        """Records a failure of the device and wakes blocked callers. Any thread."""
        self._failure_raised = False
        self._failure = error
        self._woken.set()

    def _new_player(self, rate: int, channels: int, lead_ms: float = 0.0) -> Player:
        """Creates the player for a device of this rate."""
        capacity = max(1, round(rate * self.buffer_ms / 1e3))
        return Player(capacity, channels, lead=round(rate * lead_ms / 1e3))

    # --- the interface ---

    def open(self, format: PcmFormat) -> None:
        with self._producer:
            if self._format is not None:
                raise already_open(self.name)
            self._open_device(format)
            self._format = format

    def write(self, pcm: Pcm) -> None:
        with self._producer:
            format, _ = self._opened()
            frames = format.frames(pcm)
            self.prebuffer.arrived(time.monotonic(), len(frames) / format.rate)
            stops = self._stops
            for at in range(0, len(frames), _CHUNK_FRAMES):
                if self._stops != stops:
                    return
                self._put(self._converted(frames[at : at + _CHUNK_FRAMES]), stops)

    def finish(self) -> None:
        with self._producer:
            player = self._opened()[1].player
            stops = self._stops
            if any(resampler.held_samples for resampler in self._resamplers):
                held = np.stack([resampler.flush() for resampler in self._resamplers], axis=1)
                self._put(to_int16(with_channels(held, player.channels)), stops)
            self._end_take()
            player.finish()

    def drain(self) -> None:
        with self._producer:
            stops = self._stops
            self.finish()
            _, stream = self._opened()
            player = stream.player
            while not player.quiet and self._stops == stops:
                self._wait(player)
            tail = stream.rate * (_TAIL_MS + (stream.latency_ms or 0.0)) / 1e3
            while player.rendered < player.quiet_since + tail and self._stops == stops:
                self._wait(player)

    def stop(self, fade_ms: float = FADE_MS) -> None:
        self._wake_writer()
        with self._producer:
            self._woken.clear()
            stream = self._stream
            if stream is None or self._failure is not None:
                return
            self._end_take()
            player = stream.player
            player.request_stop(round(stream.rate * fade_ms / 1e3))
            stream.wake()
            rendered, limit = player.rendered, time.monotonic() + self.stall_seconds
            while player.stopping and self._failure is None and time.monotonic() < limit:
                time.sleep(0.002)
            if player.rendered == rendered and player.stopping:
                self._fail(self._stalled())

    def close(self) -> None:
        self.stop()
        self._wake_writer()
        with self._producer:
            self._woken.clear()
            if self._format is None:
                return
            self._format = None
            self._close_device()
            self._resamplers = []  # their library complains about any that outlive it
            self._failure = None
            self._last_attempt = 0.0

    @property
    def stats(self) -> SinkStats:
        stream = self._stream
        if stream is None or self._format is None or self._failure is not None:
            return SinkStats(underruns=self._earlier_underruns, lost=self._earlier_lost)
        player = stream.player
        return SinkStats(
            buffered_ms=1e3 * player.buffered / stream.rate,
            underruns=self._earlier_underruns + player.underruns + stream.gaps,
            lost=self._earlier_lost + stream.lost,
            device_rate=stream.rate,
            latency_ms=stream.latency_ms,
            prebuffer_ms=1e3 * player.prebuffer / stream.rate,
        )

    # --- inside ---

    def _opened(self) -> tuple[PcmFormat, DeviceStream]:
        """Returns the format and the stream of a working device, reopening it if necessary."""
        if self._format is None:
            raise not_open(self.name)
        if self._stream is not None and self._failure is None:
            self._stream.check()
        failure = self._failure
        if self._stream is None or failure is not None:
            if failure is not None and not self._failure_raised:  # once, since audio was lost
                self._failure_raised = True
                raise failure
            if failure is not None and time.monotonic() < self._last_attempt + _RETRY_SECONDS:
                raise SinkError(str(failure))
            self._close_device()
            self._open_device(self._format)
        assert self._stream is not None
        return self._format, self._stream

    def _open_device(self, format: PcmFormat) -> None:
        try:
            self._failure = None
            self._woken.clear()
            self._stream = self._connect(format)
        except SinkError as error:
            self._failure = error
            raise
        finally:
            self._last_attempt = time.monotonic()
        self._end_take(format)

    def _close_device(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
            self._earlier_underruns += stream.player.underruns + stream.gaps
            self._earlier_lost += stream.lost
            self._disconnected()

    def _end_take(self, format: PcmFormat | None = None) -> None:
        """Resets the conversion for the next take."""
        self.prebuffer.ended()
        format = format or self._format
        stream = self._stream
        if format is not None and stream is not None:
            channels = format.channels if format.channels == stream.player.channels else 1
            self._resamplers = [
                StreamResampler(format.rate, stream.rate, self.quality) for _ in range(channels)
            ]

    def _converted(self, frames: Frames) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
        assert self._stream is not None
        frames = with_channels(frames, len(self._resamplers))
        columns = [self._resamplers[i].push(frames[:, i]) for i in range(len(self._resamplers))]
        return to_int16(with_channels(np.stack(columns, axis=1), self._stream.player.channels))

    def _put(self, frames: np.ndarray[tuple[int, ...], np.dtype[np.int16]], stops: int) -> None:
        stream = self._stream
        assert stream is not None
        player = stream.player
        # A prebuffer larger than the buffer would never fill: a deadlock.
        wanted = round(stream.rate * self.prebuffer.target_ms / 1e3)
        player.prebuffer = min(wanted, round(stream.rate * self.buffer_ms / 1e3) // 2)
        at = player.put(frames)
        while at < len(frames) and self._stops == stops:
            self._wait(player)
            at += player.put(frames[at:])

    def _wait(self, player: Player) -> None:
        """Waits until the device renders its next block; raises if it has failed."""
        rendered, limit = player.rendered, time.monotonic() + self.stall_seconds
        while player.rendered == rendered:
            if self._woken.wait(0.004) and self._failure is None:
                return  # stop() was called
            if self._failure is None and self._stream is not None:
                self._stream.check()
            if self._failure is None and time.monotonic() > limit:
                self._fail(self._stalled())
            if self._failure is not None:
                self._woken.clear()
                self._failure_raised = True
                raise self._failure

    def _wake_writer(self) -> None:
        self._stops += 1
        self._woken.set()

    def _stalled(self) -> SinkError:
        return SinkError(
            f"{self.name} has played nothing for {self.stall_seconds:g} s; check that the device "
            "or the sound server is still running."
        )
