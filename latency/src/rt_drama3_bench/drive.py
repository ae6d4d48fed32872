"""Carries a schedule out: every request at its moment, whatever became of those before."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from rt_drama3_bench.dialects import Caller, Cut, call
from rt_drama3_bench.metrics import Utterance
from rt_drama3_bench.schedules import Due

GRACE = 0.05  # seconds before a caller's next turn at which the one before is interrupted


class Pool:
    """Callers whose connections are used again.

    Args:
        make: gives a new one.
    """

    def __init__(self, make: Callable[[], Caller]) -> None:
        self._make = make
        self._idle: list[Caller] = []
        self._all: list[Caller] = []

    def take(self) -> Caller:
        """One that is idle, or a new one."""
        if self._idle:
            return self._idle.pop()
        self._all.append(self._make())
        return self._all[-1]

    def give(self, caller: Caller) -> None:
        """It is idle again."""
        self._idle.append(caller)

    async def close(self) -> None:
        """Ends all connections."""
        for caller in self._all:
            await caller.close()


async def drive(
    schedule: Sequence[Due], make: Callable[[], Caller], limit: float = 60.0
) -> list[Utterance]:
    """Asks for everything in a schedule; a caller's own next turn interrupts the one before.

    Args:
        schedule: see ``schedules``.
        make: gives a client; as many as are needed at the same time.
        limit: seconds in which each utterance must be over.

    Returns:
        One record for every request, in the order of the schedule; ``due`` is that of the schedule
        and ``label`` the caller.
    """
    loop, pool = asyncio.get_running_loop(), Pool(make)
    start = loop.time()
    turns: dict[int, list[int]] = defaultdict(list)
    for number, due in enumerate(schedule):
        turns[due.caller].append(number)
    records: dict[int, Utterance] = {}

    async def one_caller(numbers: list[int]) -> None:
        for place, number in enumerate(numbers):
            due = schedule[number]
            at = start + due.at
            await asyncio.sleep(max(0.0, at - loop.time()))
            until = None
            if place + 1 < len(numbers):
                until = start + schedule[numbers[place + 1]].at - GRACE
            caller = pool.take()
            record = await call(caller, due.text, at, Cut(due.cut_after, until), limit)
            pool.give(caller)
            record.label = f"caller {due.caller}"
            records[number] = record

    try:
        await asyncio.gather(*(one_caller(numbers) for numbers in turns.values()))
    finally:
        await pool.close()
    return [records[number] for number in range(len(schedule))]


def most_at_once(records: Sequence[Utterance]) -> int:
    """How many utterances were being made at the same time, at the most."""
    moments = [
        (at, step)
        for record in records
        if record.ended is not None
        for at, step in ((record.sent or record.due, 1), (record.ended, -1))
    ]
    running = most = 0
    for _, step in sorted(moments):  # who ends at a moment makes room for who begins
        running += step
        most = max(most, running)
    return most
