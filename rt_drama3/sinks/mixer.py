"""Plays many streams through one sink: mixed, or one after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np

from rt_drama3.errors import RequestError, SinkError
from rt_drama3.sinks.mix_input import MixInput
from rt_drama3.sinks.pcm_format import PcmFormat
from rt_drama3.sinks.sink import FADE_MS, Sink, lost_sound, not_open

MixMode: TypeAlias = Literal["mix", "queue"]

_log = logging.getLogger(__name__)
_BLOCK_SECONDS = 0.02
_CLOSE_SECONDS = 5.0  # then a sink that does not return (a pipe without a reader) is abandoned
_PACE_SECONDS = 0.005  # between two checks of a sink that holds enough


class Mixer:
    """Feeds a sink from any number of inputs in its own thread.

    ``mix`` adds simultaneous samples and clips what exceeds full scale. ``queue`` plays one input
    until it ends, then the next, in the order of their first samples; while others wait, an input
    that delivers nothing for ``patience_seconds`` moves to the end of the queue.

    The sink holds only a little audio in advance, so that inputs start and stop quickly. While the
    sink fails, samples are dropped until it works again, so that inputs never wait for a missing
    device; ``error`` holds the reason, and ``failed`` is called.

    Args:
        sink: opened and closed by this object.
        mode: "mix" or "queue".
        rate: rate in Hz that inputs are converted to and the sink is opened with.
        ahead_ms: audio kept in a sink that buffers.
        input_ms: audio that an input buffers before its writer blocks.
        patience_seconds: see above.
        failed: called with each new error, in the mixer's thread.

    Attributes:
        error: why the sink does not accept audio at the moment, or None.
    """

    def __init__(
        self,
        sink: Sink,
        mode: MixMode = "mix",
        *,
        rate: int = 44_100,
        ahead_ms: float = 80.0,
        input_ms: float = 2_000.0,
        patience_seconds: float = 5.0,
        failed: Callable[[SinkError], None] | None = None,
    ) -> None:
        if mode not in get_args(MixMode):
            raise RequestError(f"The mixer's mode is {mode!r}; use 'mix' or 'queue'.")
        self.sink, self.mode, self.rate = sink, mode, rate
        self.error: SinkError | None = None
        self._ahead_ms, self._patience = ahead_ms, patience_seconds
        self._input_frames = max(1, round(rate * input_ms / 1e3))
        self._failed = failed
        self._changed = threading.Condition()  # guards all that follows, and the inputs' state
        self._inputs: list[MixInput] = []  # in order of their first samples
        self._dry_since: float | None = None  # when the first in the queue ran dry
        self._ending: list[tuple[int, MixInput]] = []  # position of the last sample; still playing
        self._written = 0  # frames written to the sink
        self._take_open = False  # something was written since the last finish()
        self._interruptions = 0  # number of times the sink was stopped
        self._closing = False
        self._lost = 0  # losses of the sink that were logged
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Opens the sink and starts the thread.

        Raises:
            SinkError: it cannot be opened, or is already open.
        """
        self.sink.open(PcmFormat(self.rate, encoding="f32le"))
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sink mixer", daemon=True)
        self._thread.start()

    def add(self, format: PcmFormat) -> MixInput:
        """Returns an input for one utterance.

        Args:
            format: format of what is written to it; several channels are averaged.

        Raises:
            SinkError: the mixer is not open.
        """
        if self._thread is None:
            raise not_open(f"the mixer of {self.sink.name}")
        return MixInput(self, format, self.rate, self._input_frames)

    def stop(self, fade_ms: float = FADE_MS) -> None:
        """Stops all inputs that play or wait to, with a fade; new ones play as usual."""
        with self._changed:
            for entry in self._inputs:
                entry.abandon()
            self._inputs.clear()
            self._interrupt()
        self.sink.stop(fade_ms)

    def close(self) -> None:
        """Stops, ends the thread and closes the sink; a second call does nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.stop()
        thread, self._thread = self._thread, None
        limit = time.monotonic() + _CLOSE_SECONDS
        while thread is not None and thread.is_alive() and time.monotonic() < limit:
            self.sink.stop()  # again, for a write that began just after the first stop
            thread.join(0.05)
        self.sink.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # --- called by inputs, which hold the lock ---

    @property
    def changed(self) -> threading.Condition:
        """The lock; notified on every change."""
        return self._changed

    def enter(self, entry: MixInput) -> None:
        """Adds an input that has samples."""
        if self._closing:
            entry.abandon()
        elif entry not in self._inputs:
            self._inputs.append(entry)
        self._changed.notify_all()

    def leave(self, entry: MixInput) -> bool:
        """Removes an input; True if the sink holds only its samples, and must be stopped."""
        entry.abandon()
        alone = self._plays_alone(entry)
        if entry in self._inputs:
            self._inputs.remove(entry)
        if alone:
            self._interrupt()
        self._changed.notify_all()
        return alone

    def plays_with_others(self, entry: MixInput) -> bool:
        """True if an input is being played and others are mixed with it."""
        playing = self._inputs if self.mode == "mix" else self._inputs[:1]
        return entry in playing and entry.started and not self._plays_alone(entry)

    def _plays_alone(self, entry: MixInput) -> bool:
        ending = any(other is not entry for _, other in self._ending)
        others = any(other.started for other in self._inputs if other is not entry)
        return entry.started and not ending and not others

    # --- the thread ---

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closing:
                    return
                self._collect_ended()
                self._mark_played()
                block = self._block() if self._has_room() else None
                finished = block is None and self._take_open and not self._inputs
                if block is None and not finished:
                    pacing = self._ending or any(entry.held for entry in self._inputs)
                    self._changed.wait(_PACE_SECONDS if pacing else None)
                    continue
                self._take_open = not finished
                interruptions = self._interruptions
            try:
                if block is None:
                    self.sink.finish()
                    self._report_losses()
                else:
                    self.sink.write(block)
                self.error = None
            except SinkError as error:
                self._report(error)
            if interruptions != self._interruptions:
                self.sink.stop()  # the block may have been written after the stop meant to drop it

    def _has_room(self) -> bool:
        stats = self.sink.stats
        return stats.buffered_ms < max(self._ahead_ms, stats.prebuffer_ms + 1e3 * _BLOCK_SECONDS)

    def _block(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None:
        """Returns the next samples, up to a block; None if there are none."""
        chosen = self._inputs if self.mode == "mix" else self._first()
        length = min(round(_BLOCK_SECONDS * self.rate), max((e.held for e in chosen), default=0))
        if not length:
            return None
        total = np.zeros(length, np.float32)
        for entry in chosen:
            part = entry.take(length)
            total[: len(part)] += part
        self._written += length
        self._collect_ended()
        return np.clip(total, -1.0, 1.0)

    def _first(self) -> list[MixInput]:
        """Returns the input whose turn it is, as a list of one or none."""
        now = time.monotonic()
        if not self._inputs or self._inputs[0].held:
            self._dry_since = None
        elif self._dry_since is None:
            self._dry_since = now
        elif now > self._dry_since + self._patience and any(e.held for e in self._inputs[1:]):
            self._inputs.append(self._inputs.pop(0))
            self._dry_since = None
        return self._inputs[:1]

    def _collect_ended(self) -> None:
        for entry in [entry for entry in self._inputs if entry.ended]:
            self._inputs.remove(entry)
            self._ending.append((self._written, entry))

    def _mark_played(self) -> None:
        """Ends the inputs whose last sample has left the sink's buffer."""
        played = self._written - round(self.sink.stats.buffered_ms * self.rate / 1e3)
        if self.error is not None:
            played = self._written
        for position, entry in list(self._ending):
            if position <= played and not (self._take_open and not self._inputs):
                self._ending.remove((position, entry))
                entry.mark_played()

    def _interrupt(self) -> None:
        """Records that the sink is being stopped: what was written so far is not played."""
        self._interruptions += 1
        self._take_open = False
        for _, entry in self._ending:
            entry.mark_played()
        self._ending.clear()
        self._changed.notify_all()

    def _report_losses(self) -> None:
        lost = self.sink.stats.lost
        if lost > self._lost:
            self._lost = lost
            _log.warning("%s", lost_sound(self.sink))

    def _report(self, error: SinkError) -> None:
        if str(error) != str(self.error):
            _log.warning("%s", error)
            self.error = error
            if self._failed is not None:
                self._failed(error)
