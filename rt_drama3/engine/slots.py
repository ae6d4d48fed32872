"""Slots of the batch: which streams hold which, one each or, with guidance, two adjacent ones.

The two rows of a CFG pair must be adjacent (see ``FrameStep``). They begin at even slots, so that
two free slots can always become adjacent by moving one stream of a single row. A stream keeps a
pair once it has needed one: it does not queue again in the middle of its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from rt_drama3.engine.stream import Phase, Stream
from rt_drama3.graph_step import FrameStep

T = TypeVar("T")


class Plan(NamedTuple):
    """Where to place a stream.

    Attributes:
        slot: its first slot.
        move: a stream of one row to be moved away first, (from, to).
    """

    slot: int
    move: tuple[int, int] | None = None


def plan_single(slots: Sequence[object | None]) -> Plan | None:
    """A slot for one row: the lowest free one, since a step covers the leading slots."""
    return next((Plan(n) for n, holder in enumerate(slots) if holder is None), None)


def plan_pair(slots: Sequence[object | None]) -> Plan | None:
    """Two slots for a CFG pair.

    Args:
        slots: the holder of each; the two slots of a pair have the same one.

    Returns:
        None if fewer than two slots are free.
    """
    evens = range(0, len(slots) - 1, 2)
    for first in evens:
        if slots[first] is slots[first + 1] is None:
            return Plan(first)
    free = [n for n, holder in enumerate(slots) if holder is None]
    if len(free) < 2:
        return None
    # No pair of slots is free, so each free one is next to a stream of one row, or is the odd one
    # at the end: the stream next to the first goes to the last.
    first, target = free[0], free[-1]
    return Plan(first - first % 2, (first ^ 1, target))


def first_slots(slots: Sequence[T | None]) -> list[T]:
    """Every holder once, by its first slot."""
    return [
        holder
        for n, holder in enumerate(slots)
        if holder is not None and not (n and slots[n - 1] is holder)
    ]


class SlotTable:
    """The holders of the slots (device thread).

    Args:
        step: whose slots these are.
        count: slots that streams may hold.
        context: rows that a slot holds.
    """

    def __init__(self, step: FrameStep, count: int, context: int) -> None:
        self._step, self._context = step, context
        self._holders: list[Stream | None] = [None] * count

    def __iter__(self) -> Iterator[Stream | None]:
        """The holder of each slot."""
        return iter(self._holders)

    @property
    def taken(self) -> int:
        """Number of slots that are held."""
        return sum(holder is not None for holder in self._holders)

    def holders(self) -> list[Stream]:
        """The streams that hold slots, each once."""
        return first_slots(self._holders)

    def in_phase(self, phase: Phase) -> list[Stream]:
        """Those of them that are in a phase."""
        return [stream for stream in self.holders() if stream.phase is phase]

    def suits(self, stream: Stream) -> bool:
        """Whether the slots that a stream holds, if any, are enough for its present segment."""
        return stream.slot.index < 0 or stream.slot.pair or stream.width == 1

    def place(self, stream: Stream) -> bool:
        """Gives a stream the slots that its segment needs; false when they are not free."""
        pair = stream.width > 1
        plan = (plan_pair if pair else plan_single)(self._holders)
        if plan is None:
            return False
        if plan.move is not None:
            self._move(*plan.move)
        stream.slot.index, stream.slot.pair = plan.slot, pair
        for slot in stream.slot.indices:
            self._holders[slot] = stream
        return True

    def free(self, stream: Stream) -> None:
        """Takes a stream's slots back, if it has any."""
        if stream.slot.index >= 0:
            self._step.release(stream.slot.index)
            for slot in stream.slot.indices:
                self._holders[slot] = None
            stream.slot.index, stream.slot.pair = -1, False

    def scrub(self, stream: Stream) -> None:
        """Clears a stream's slots, which may hold NaN."""
        for slot in stream.slot.indices:
            self._step.state.scrub(slot)

    def _move(self, source: int, target: int) -> None:
        stream = self._holders[source]
        assert stream is not None
        self._step.move(source, target, min(stream.cached_rows, self._context))
        self._holders[source], self._holders[target] = None, stream
        stream.slot.index = target
