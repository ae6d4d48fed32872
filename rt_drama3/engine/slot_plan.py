"""Which slots a stream takes: one, or for a guided stream two side by side.

The two rows of a guided stream must be neighbours (see ``FrameStep``). They begin at even slots, so
that two free slots can always become neighbours by moving one stream of a single row. Pure
functions of who holds what. No torch in this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Plan(NamedTuple):
    """Where a stream goes.

    Attributes:
        slot: its first slot.
        move: a stream of one row to be moved out of the way first, (from, to).
    """

    slot: int
    move: tuple[int, int] | None = None


def plan_single(slots: Sequence[object | None]) -> Plan | None:
    """A slot for a stream of one row: the lowest free one, for the step looks at leading slots."""
    return next((Plan(n) for n, holder in enumerate(slots) if holder is None), None)


def plan_pair(slots: Sequence[object | None]) -> Plan | None:
    """Two slots for a guided stream.

    Args:
        slots: who holds each; the two slots of a guided stream have the same holder.

    Returns:
        None where fewer than two slots are free.
    """
    evens = range(0, len(slots) - 1, 2)
    for first in evens:
        if slots[first] is slots[first + 1] is None:
            return Plan(first)
    free = [n for n, holder in enumerate(slots) if holder is None]
    if len(free) < 2:
        return None
    # No pair of slots is free, so each free one is alone beside a stream of one row, or is the odd
    # one at the end: the stream beside the first goes to the last.
    first, target = free[0], free[-1]
    return Plan(first - first % 2, (first ^ 1, target))


def first_slots(slots: Sequence[T | None]) -> list[T]:
    """Every holder once, by its first slot."""
    return [
        holder
        for n, holder in enumerate(slots)
        if holder is not None and not (n and slots[n - 1] is holder)
    ]
