"""Many streams into one sink: sounding together, or one after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, TypeAlias, get_args

import numpy as np

from rt_drama3.errors import RequestError, SinkError
from rt_drama3.sinks.mix_input import MixInput
from rt_drama3.sinks.pcm_format import PcmFormat
from rt_drama3.sinks.sink import FADE_MS, Sink, not_open

MixMode: TypeAlias = Literal["mix", "queue"]

_log = logging.getLogger(__name__)
_BLOCK_SECONDS = 0.02
_CLOSE_SECONDS = 5.0  # after which a sink that does not let go (a pipe nobody reads) is left alone
_PACE_SECONDS = 0.005  # between two looks at a sink that holds enough


class Mixer:
    """Feeds a sink from any number of inputs, in a thread of its own.

    ``mix`` adds what sounds at the same time and clips what exceeds full scale. ``queue`` plays one
    input until it ends, then the next, in the order in which their first sound came; while others
    wait, one that gives nothing for ``patience_seconds`` goes to the end of the queue.

    Little is kept ahead in the sink, so that a new input is heard soon and one that stops is quiet
    soon. When the sink fails, what would have sounded is dropped until it works again, so inputs
    never wait for a device that is not there; ``error`` says why, and ``failed`` is told.

    Args:
        sink: opened and closed by this object.
        mode: "mix" or "queue".
        rate: in Hz, what inputs are converted to and the sink is opened with.
        ahead_ms: sound kept in a sink that buffers.
        input_ms: sound that an input may hold before its writer waits.
        patience_seconds: see above.
        failed: called with each new error, by the mixer's thread.

    Attributes:
        error: why the sink does not take sound at the moment, or None.
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
        self._changed = threading.Condition()  # guards all that follows, and the inputs' insides
        self._inputs: list[MixInput] = []  # in order of their first sound
        self._dry_since: float | None = None  # when the first in the queue ran dry
        self._ending: list[tuple[int, MixInput]] = []  # position of the last sample; to be heard
        self._given = 0  # frames given to the sink
        self._take_open = False  # something was given since the last finish()
        self._interruptions = 0  # how often the sink was stopped
        self._closing = False
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Opens the sink and begins.

        Raises:
            SinkError: it cannot be opened, or is open.
        """
        self.sink.open(PcmFormat(self.rate, encoding="f32le"))
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sink mixer", daemon=True)
        self._thread.start()

    def add(self, format: PcmFormat) -> MixInput:
        """Returns an input for one utterance.

        Args:
            format: of what will be written to it; several channels are averaged.

        Raises:
            SinkError: the mixer is not open.
        """
        if self._thread is None:
            raise not_open(f"the mixer of {self.sink.name}")
        return MixInput(self, format, self.rate, self._input_frames)

    def stop(self, fade_ms: float = FADE_MS) -> None:
        """Is quiet now: ends all inputs that have sounded or wait to; new ones sound as usual."""
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
            self.sink.stop()  # again, for a write that began just after the first
            thread.join(0.05)
        self.sink.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- for inputs; the lock is held ---

    @property
    def changed(self) -> threading.Condition:
        """The lock, and what is notified when anything changes."""
        return self._changed

    def enter(self, entry: MixInput) -> None:
        """Notes that an input has something to say."""
        if self._closing:
            entry.abandon()
        elif entry not in self._inputs:
            self._inputs.append(entry)
        self._changed.notify_all()

    def leave(self, entry: MixInput) -> bool:
        """Takes an input out; True if the sink held nothing but its sound, and is to be stopped."""
        entry.abandon()
        alone = self._sounds_alone(entry)
        if entry in self._inputs:
            self._inputs.remove(entry)
        if alone:
            self._interrupt()
        self._changed.notify_all()
        return alone

    def sounds_beside(self, entry: MixInput) -> bool:
        """True if an input is being played, and others in the same sound."""
        playing = self._inputs if self.mode == "mix" else self._inputs[:1]
        return entry in playing and entry.sounded and not self._sounds_alone(entry)

    def _sounds_alone(self, entry: MixInput) -> bool:
        ending = any(other is not entry for _, other in self._ending)
        others = any(other.sounded for other in self._inputs if other is not entry)
        return entry.sounded and not ending and not others

    # --- the thread ---

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closing:
                    return
                self._collect_ended()
                self._tell_heard()
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
                else:
                    self.sink.write(block)
                self.error = None
            except SinkError as error:
                self._note(error)
            if interruptions != self._interruptions:
                self.sink.stop()  # the block may have come after the stop that was to drop it

    def _has_room(self) -> bool:
        stats = self.sink.stats
        return stats.buffered_ms < max(self._ahead_ms, stats.prebuffer_ms + 1e3 * _BLOCK_SECONDS)

    def _block(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None:
        """Returns the next samples, up to a block; None when there are none."""
        chosen = self._inputs if self.mode == "mix" else self._first()
        length = min(round(_BLOCK_SECONDS * self.rate), max((e.held for e in chosen), default=0))
        if not length:
            return None
        total = np.zeros(length, np.float32)
        for entry in chosen:
            part = entry.take(length)
            total[: len(part)] += part
        self._given += length
        self._collect_ended()
        return np.clip(total, -1.0, 1.0)

    def _first(self) -> list[MixInput]:
        """Returns the input whose turn it is, as a list of at most one."""
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
            self._ending.append((self._given, entry))

    def _tell_heard(self) -> None:
        """Wakes those who wait for the end of inputs whose last sample left the sink's buffer."""
        played = self._given - round(self.sink.stats.buffered_ms * self.rate / 1e3)
        if self.error is not None:
            played = self._given
        for position, entry in list(self._ending):
            if position <= played and not (self._take_open and not self._inputs):
                self._ending.remove((position, entry))
                entry.was_heard()

    def _interrupt(self) -> None:
        """Notes that the sink is being stopped: nothing given to it so far will be heard."""
        self._interruptions += 1
        self._take_open = False
        for _, entry in self._ending:
            entry.was_heard()
        self._ending.clear()
        self._changed.notify_all()

    def _note(self, error: SinkError) -> None:
        if str(error) != str(self.error):
            _log.warning("%s", error)
            self.error = error
            if self._failed is not None:
                self._failed(error)
