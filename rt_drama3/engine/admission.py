"""Admission: which streams may be open, and which of those that have text get slots now.

A client may hold a stream open long before it has something to say: some frameworks keep one for
each of their connections. Such a stream must not keep others out. So a stream counts toward
``max_streams`` + ``max_queue`` from its first text until its audio was heard, and ``KEPT_SECONDS``
longer, so that an answer whose next sentence is still being written stays whole. With the next text
its next turn begins, in which it queues like a new stream. Streams that do not count have a limit
of their own, ``max_silent``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.events import Queued
from rt_drama3.engine.scheduling import Costs, load_with
from rt_drama3.engine.slots import SlotTable
from rt_drama3.engine.step_runner import StepRunner
from rt_drama3.engine.stream import Phase, Stream
from rt_drama3.errors import Overloaded

KEPT_SECONDS = 5.0  # longer than a language model pauses within an answer


def counts(stream: Stream, now: float) -> bool:
    """Whether a stream counts among those that speak, are listened to, or wait to speak."""
    if stream.phase is Phase.IDLE and stream.text.empty:
        return now - stream.turn.wanted < KEPT_SECONDS or stream.speech.unread_seconds > 0
    return True


class Admission:
    """See the module docstring. The caller holds the lock of the engine, except for ``admit``.

    Args:
        slots: the holders of the slots.
        runner: the step, which also reads prompts.
        costs: measured durations.
        config: settings.
        frame_seconds: duration of a frame.
        clock: seconds.
    """

    def __init__(
        self,
        slots: SlotTable,
        runner: StepRunner,
        costs: Costs,
        config: EngineConfig,
        frame_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._slots, self._runner = slots, runner
        self._costs, self._config = costs, config
        self._frame_seconds, self._clock = frame_seconds, clock

    def check(self, streams: Iterable[Stream], new: bool = False) -> None:
        """Refuses when the limit of streams that speak or wait to speak is reached.

        Args:
            streams: that are open.
            new: the one to be admitted is not one of them.

        Raises:
            Overloaded: there are ``max_streams`` + ``max_queue`` of them, or for a new one, too
                many open streams in all.
        """
        config, now = self._config, self._clock()
        limit = config.max_streams + config.max_queue
        counted = list(_limited(streams))
        active = sum(counts(stream, now) for stream in counted)
        if active >= limit:
            raise Overloaded(
                f"at capacity: {active} streams active or queued (limit {limit} = max_streams + "
                "max_queue); retry later."
            )
        limit += config.max_silent
        if new and len(counted) >= limit:
            raise Overloaded(
                f"at capacity: {len(counted)} streams open (limit {limit} = max_streams + "
                "max_queue + max_silent); end those that are not needed."
            )

    def check_waiting_for_text(self, streams: Iterable[Stream]) -> None:
        """Refuses when the limit of streams without text is reached.

        Raises:
            Overloaded: there are ``max_silent`` of them.
        """
        now, limit = self._clock(), self._config.max_silent
        waiting = sum(not counts(stream, now) for stream in _limited(streams))
        if waiting >= limit:
            raise Overloaded(
                f"at capacity: {waiting} streams wait for text (limit {limit} = max_silent); end "
                "those that are not needed, or open one when there is text."
            )

    def begin_turn(self, stream: Stream) -> None:
        """Notes that text came; after a silence the stream queues like a new one."""
        now = self._clock()
        if not counts(stream, now):
            stream.turn.asked, stream.turn.fresh = now, True

    def claim(self, stream: Stream, streams: Iterable[Stream]) -> None:
        """``begin_turn`` for text that may still be refused.

        Args:
            stream: for which there is text.
            streams: that are open.

        Raises:
            Overloaded: see ``check``.
        """
        if not counts(stream, self._clock()):
            self.check(streams)
        self.begin_turn(stream)
        self.want(stream)

    def want(self, stream: Stream, until: float | None = None) -> None:
        """Notes that there is text now, or that audio will be heard until a time."""
        now = self._clock() if until is None else until
        stream.turn.wanted = max(stream.turn.wanted, now)

    def open(self, stream: Stream) -> None:
        """Lets a stream whose text is known queue from now on."""
        stream.turn.asked = self._clock()
        self.want(stream)

    def open_inner(self, stream: Stream, outer: Stream) -> None:
        """Lets a stream that speaks an earlier take queue in place of the one that needs it."""
        stream.turn.asked = outer.turn.asked

    def speaks(self, stream: Stream) -> None:
        """Notes that the turn of a stream has been spoken to some extent."""
        stream.turn.fresh = False

    def admit(self, waiting: list[Stream]) -> list[Stream]:
        """Gives slots: to streams that kept theirs, to those that play, then in order of asking.

        Returns:
            The streams that may read their prompt now; the others get their position.
        """
        waiting.sort(key=lambda s: (s.slot.index < 0, s.turn.fresh, s.turn.asked))
        for position, stream in enumerate(waiting):
            if not self._slots.suits(stream):
                self._slots.free(stream)  # this segment needs a pair, those before did not
            if stream.slot.index < 0 and not (self.fits(stream) and self._slots.place(stream)):
                self._queue(waiting[position:], stream)
                return waiting[:position]
            if stream.turn.queued is not None:
                stream.turn.queued = None
                stream.speech.admitted()
        return waiting

    def _queue(self, waiting: list[Stream], first: Stream) -> None:
        full = len(self._slots.holders()) >= self._config.max_streams or self.fits(first)
        for position, stream in enumerate(waiting):
            queued = Queued(position, "max_streams" if full else "load")
            if queued != stream.turn.queued:
                stream.turn.queued = queued
                stream.speech.put(queued)

    def fits(self, stream: Stream) -> bool:
        """Whether every stream stays realtime with one more."""
        others = self._slots.holders()
        if not others or len(others) >= self._config.max_streams:
            return not others
        if not stream.turn.fresh:
            return True
        rows = self._slots.taken + stream.width
        load = load_with(rows, self._costs, self._frame_seconds, self._config.codec_async)
        chunk, seconds = self._runner.chunk, self._costs.chunk.or_else(0.0)
        for other in (stream, *others):
            load += other.prompt_load(chunk, seconds, self._frame_seconds)
        return load <= self._config.admit_load


def _limited(streams: Iterable[Stream]) -> Iterable[Stream]:
    return (stream for stream in streams if not (stream.cancelled or stream.inner))
