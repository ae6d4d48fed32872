"""Turns written samples into an endless stream of blocks for a device. No device is needed here.

One thread writes (``put``, ``finish``, ``request_stop``), another one reads blocks (``render``),
usually an audio callback that must neither block nor fail. There are no locks: each side changes
only its own fields and reads the other's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rt_drama3.sinks.ring import Block, Ring


@dataclass(frozen=True)
class _Stop:
    """A request to stop: fade over some frames and drop everything written before a position."""

    fade: int
    until: int


class Player:
    """Renders silence, then a take without gaps, then silence.

    A take starts once ``prebuffer`` frames are buffered, or the take is finished, and the device
    has been running for ``lead`` frames (devices drop their first samples). Running out of samples
    in the middle of a take is an underrun; the prebuffer is then filled again.

    Args:
        capacity: size of the buffer in frames.
        channels: channels of the device.
        lead: frames of silence before the first take.

    Attributes:
        prebuffer: frames to buffer before the next start; the writer may change it at any time.
        underruns: gaps so far, counted when playback resumes.
        rendered: frames rendered so far, including silence.
        quiet_since: ``rendered`` when the last take ended.
    """

    def __init__(self, capacity: int, channels: int, *, lead: int = 0) -> None:
        self.channels = channels
        self.prebuffer = 0
        self.underruns = 0
        self.rendered = 0
        self.quiet_since = 0
        self._ring = Ring(capacity, channels)
        self._lead = lead
        self._began = 0  # position where the current take began
        self._finished = 0  # position where the last finished one ended
        self._stop: _Stop | None = None  # the latest request
        self._stopped: _Stop | None = None  # the request that is done or in progress
        self._playing = False
        self._dry = False  # ran out of samples in the middle of a take
        self._fade_total = self._fade_left = 0

    # --- the writer's side ---

    def put(self, frames: Block) -> int:
        """Buffers as many frames as there is room for, and returns their number."""
        if self._finished == self._ring.written:
            self._began = self._finished
        return self._ring.put(frames)

    def finish(self) -> None:
        """Ends the take: what is buffered is played without waiting for more."""
        self._finished = self._ring.written

    def request_stop(self, fade: int) -> None:
        """Fades out over the next ``fade`` frames and drops what was put before this call."""
        self._stop = _Stop(max(0, fade), self._ring.written)

    @property
    def room(self) -> int:
        """Frames that ``put`` would accept."""
        return self._ring.room

    @property
    def buffered(self) -> int:
        """Frames that are buffered."""
        return self._ring.available

    @property
    def stopping(self) -> bool:
        """True while a stop is requested or fading."""
        return self._stop is not self._stopped or self._fade_left > 0

    @property
    def requested_fade(self) -> int:
        """Frames of fade that the latest stop asks for."""
        return 0 if self._stop is None else self._stop.fade

    @property
    def playing(self) -> bool:
        """True within a take; False in silence, also while it buffers again after an underrun."""
        return self._playing

    @property
    def quiet(self) -> bool:
        """True if everything was rendered and only silence follows."""
        return not self._playing and self._ring.available == 0 and not self.stopping

    # --- the device's side ---

    def render(self, out: Block) -> None:
        """Fills a block: ``[frames, channels]``."""
        filled = 0
        if self._stop is not self._stopped:
            self._begin_stop()
        if self._fade_left:
            filled = self._render_fade(out)
        if not self._fade_left and filled < len(out):
            filled += self._render_take(out[filled:])
        out[filled:] = 0
        self.rendered += len(out)

    def drop(self) -> None:
        """Completes a stop whose fade the device did by itself. Device's side only."""
        self._stopped = self._stop
        self._fade_left = 0
        if self._stopped is not None:
            self._end_stop(self._stopped)

    def _begin_stop(self) -> None:
        stop = self._stop
        if stop is None:
            return
        if not self._fade_left and self._playing:  # a second stop does not restart the fade
            fade = min(stop.fade, stop.until - self._ring.read)
            self._fade_total = self._fade_left = max(0, fade)
        self._stopped = stop
        if not self._fade_left:
            self._end_stop(stop)

    def _render_fade(self, out: Block) -> int:
        count = self._ring.take(out[: self._fade_left])
        left = np.float32(self._fade_left - 1) - np.arange(count, dtype=np.float32)
        ramp = left / np.float32(self._fade_total)
        out[:count] = np.rint(out[:count] * ramp[:, None])
        self._fade_left -= count
        if count == 0:
            self._fade_left = 0
        if not self._fade_left and self._stopped is not None:
            self._end_stop(self._stopped)
        return count

    def _end_stop(self, stop: _Stop) -> None:
        self._ring.skip_to(stop.until)
        self._playing = self._dry = False
        self.quiet_since = self.rendered

    def _render_take(self, out: Block) -> int:
        if not self._playing:
            finished = self._finished > self._ring.read
            wait = self._ring.available < max(1, self.prebuffer) and not finished
            if wait or self.rendered < self._lead:
                return 0
            # Not earlier: if the take turns out to be finished, running out was not an underrun.
            if self._dry and self._ring.read > self._began:
                self.underruns += 1
            self._playing, self._dry = True, False
        count = self._ring.take(out)
        if count < len(out):
            self._playing, self._dry = False, True
            self.quiet_since = self.rendered + count
        return count
