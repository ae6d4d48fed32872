"""What outputs with a clock of their own share: converting, waiting, stopping, coming back."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod

import numpy as np

from rt_drama3.audio.stream_resample import Quality, StreamResampler
from rt_drama3.errors import SinkError
from rt_drama3.sinks.pcm_format import Frames, Pcm, PcmFormat, to_int16, with_channels
from rt_drama3.sinks.player import Player
from rt_drama3.sinks.prebuffer import Prebuffer
from rt_drama3.sinks.sink import FADE_MS, Sink, SinkStats, already_open, not_open

_PIECE = 4_096  # frames converted at a time, so that a stop never waits for a long write
_RETRY_SECONDS = 1.0  # between attempts to open a device that failed
_TAIL_MS = 60.0  # of silence after the last sample: devices drop what they hold when they stop


class DeviceSink(Sink):
    """The writer's side of a player whose other side is a device.

    A subclass opens the device in ``_connect``, which returns the player that it renders from, and
    closes it in ``_disconnect``; it reports a failure with ``_fail``.

    Args:
        name: in messages.
        buffer_ms: sound that can wait before ``write`` does.
        stall_seconds: a device that takes nothing for so long has failed.
        prebuffer: chooses how much to collect before the start; None for the usual bounds.
        quality: of the conversion to the device's rate, see ``audio.StreamResampler``.
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
        self._rate = 0
        self._player: Player | None = None
        self._resamplers: list[StreamResampler] = []
        self._failure: SinkError | None = None
        self._told = True  # whether a caller has met the failure
        self._tried = 0.0  # when the device was last opened, or could not be
        self._earlier_underruns = 0
        self._stops = 0  # how often stop() or close() was called
        self._woken = threading.Event()  # set by stop(), so that a waiting write returns
        self._producer = threading.RLock()  # held while writing

    # --- for subclasses ---

    @abstractmethod
    def _connect(self, format: PcmFormat) -> tuple[Player, int]:
        """Opens the device; returns the player it renders from and the device's rate."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Closes the device, also one that failed; never raises."""

    @abstractmethod
    def _latency_ms(self) -> float | None:
        """What the device reports."""

    def _check_device(self) -> None:
        """Calls ``_fail`` when the device is known to be gone; without waiting."""

    def _nudge(self) -> None:
        """Makes the device look at the player now, where it can."""

    def _fail(self, error: SinkError) -> None:
        """Notes that the device failed; whoever waits for it learns of it. Any thread."""
        self._told = False
        self._failure = error
        self._woken.set()

    def _new_player(self, rate: int, channels: int, lead_ms: float = 0.0) -> Player:
        """Makes the player for a device of this rate."""
        capacity = max(1, round(rate * self.buffer_ms / 1e3))
        return Player(capacity, channels, lead=round(rate * lead_ms / 1e3))

    # --- the contract ---

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
            for at in range(0, len(frames), _PIECE):
                if self._stops != stops:
                    return
                self._put(self._converted(frames[at : at + _PIECE]), stops)

    def finish(self) -> None:
        with self._producer:
            _, player = self._opened()
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
            _, player = self._opened()
            while not player.quiet and self._stops == stops:
                self._wait(player)
            tail = self._rate * (_TAIL_MS + (self._latency_ms() or 0.0)) / 1e3
            while player.rendered < player.quiet_since + tail and self._stops == stops:
                self._wait(player)

    def stop(self, fade_ms: float = FADE_MS) -> None:
        self._leave_waiting()
        with self._producer:
            self._woken.clear()
            player = self._player
            if player is None or self._failure is not None:
                return
            self._end_take()
            player.request_stop(round(self._rate * fade_ms / 1e3))
            self._nudge()
            rendered, limit = player.rendered, time.monotonic() + self.stall_seconds
            while player.stopping and self._failure is None and time.monotonic() < limit:
                time.sleep(0.002)
            if player.rendered == rendered and player.stopping:
                self._fail(self._stalled())

    def close(self) -> None:
        self.stop()
        self._leave_waiting()
        with self._producer:
            self._woken.clear()
            if self._format is None:
                return
            self._format = None
            self._close_device()
            self._resamplers = []  # whose library complains of those that outlive it
            self._failure = None
            self._tried = 0.0

    @property
    def stats(self) -> SinkStats:
        player = self._player
        if player is None or self._format is None or self._failure is not None:
            return SinkStats(underruns=self._earlier_underruns)
        return SinkStats(
            buffered_ms=1e3 * player.buffered / self._rate,
            underruns=self._earlier_underruns + player.underruns,
            device_rate=self._rate,
            latency_ms=self._latency_ms(),
            prebuffer_ms=1e3 * player.prebuffer / self._rate,
        )

    # --- inside ---

    def _opened(self) -> tuple[PcmFormat, Player]:
        """Returns the format and a player of a device that works, opening it again if need be."""
        if self._format is None:
            raise not_open(self.name)
        if self._player is not None and self._failure is None:
            self._check_device()
        failure = self._failure
        if self._player is None or failure is not None:
            if failure is not None and not self._told:  # once, since something was lost
                self._told = True
                raise failure
            if failure is not None and time.monotonic() < self._tried + _RETRY_SECONDS:
                raise SinkError(str(failure))
            self._close_device()
            self._open_device(self._format)
        assert self._player is not None
        return self._format, self._player

    def _open_device(self, format: PcmFormat) -> None:
        try:
            self._failure = None
            self._woken.clear()
            self._player, self._rate = self._connect(format)
        except SinkError as error:
            self._failure = error
            raise
        finally:
            self._tried = time.monotonic()
        self._end_take(format)

    def _close_device(self) -> None:
        if self._player is not None:
            self._earlier_underruns += self._player.underruns
        self._disconnect()
        self._player = None

    def _end_take(self, format: PcmFormat | None = None) -> None:
        """Begins the conversion anew."""
        self.prebuffer.ended()
        format = format or self._format
        if format is not None and self._player is not None:
            channels = format.channels if format.channels == self._player.channels else 1
            self._resamplers = [
                StreamResampler(format.rate, self._rate, self.quality) for _ in range(channels)
            ]

    def _converted(self, frames: Frames) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
        assert self._player is not None
        frames = with_channels(frames, len(self._resamplers))
        columns = [self._resamplers[i].push(frames[:, i]) for i in range(len(self._resamplers))]
        return to_int16(with_channels(np.stack(columns, axis=1), self._player.channels))

    def _put(self, frames: np.ndarray[tuple[int, ...], np.dtype[np.int16]], stops: int) -> None:
        player = self._player
        assert player is not None
        # More than fits would wait for a start that waits for more.
        wanted = round(self._rate * self.prebuffer.target_ms / 1e3)
        player.prebuffer = min(wanted, round(self._rate * self.buffer_ms / 1e3) // 2)
        at = player.put(frames)
        while at < len(frames) and self._stops == stops:
            self._wait(player)
            at += player.put(frames[at:])

    def _wait(self, player: Player) -> None:
        """Waits a little for the device to go on; a failed one is an error."""
        rendered, limit = player.rendered, time.monotonic() + self.stall_seconds
        while player.rendered == rendered:
            if self._woken.wait(0.004) and self._failure is None:
                return  # stop() was called
            if self._failure is None:
                self._check_device()
            if self._failure is None and time.monotonic() > limit:
                self._fail(self._stalled())
            if self._failure is not None:
                self._woken.clear()
                self._told = True
                raise self._failure

    def _leave_waiting(self) -> None:
        self._stops += 1
        self._woken.set()

    def _stalled(self) -> SinkError:
        return SinkError(
            f"{self.name} has taken no sound for {self.stall_seconds:g} s; check that the device "
            "or the sound server still runs."
        )
