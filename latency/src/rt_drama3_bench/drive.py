"""Runs a schedule: every request at its time, whether or not earlier ones are done."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from rt_drama3_bench.dialects import DialectClient, Interruption, record_utterance
from rt_drama3_bench.metrics import Recording
from rt_drama3_bench.schedules import ScheduledRequest

GRACE = 0.05  # seconds before a caller's next turn at which the one before is interrupted


class Pool:
    """Clients whose connections are reused.

    Args:
        make: returns a new client.
    """

    def __init__(self, make: Callable[[], DialectClient]) -> None:
        self._make = make
        self._idle: list[DialectClient] = []
        self._all: list[DialectClient] = []

    def take(self) -> DialectClient:
        """Returns an idle client, or a new one."""
        if self._idle:
            return self._idle.pop()
        self._all.append(self._make())
        return self._all[-1]

    def give(self, caller: DialectClient) -> None:
        """Puts a client back."""
        self._idle.append(caller)

    async def close(self) -> None:
        """Closes all connections."""
        for caller in self._all:
            await caller.close()


async def drive(
    schedule: Sequence[ScheduledRequest], make: Callable[[], DialectClient], limit: float = 60.0
) -> list[Recording]:
    """Makes every request of a schedule; a caller's next turn interrupts the one before.

    Args:
        schedule: see ``schedules``.
        make: returns a new client; called as often as there are concurrent requests.
        limit: seconds within which each utterance must be complete.

    Returns:
        One record for every request, in the order of the schedule; ``due`` is that of the schedule
        and ``label`` the caller.
    """
    loop, pool = asyncio.get_running_loop(), Pool(make)
    start = loop.time()
    turns: dict[int, list[int]] = defaultdict(list)
    for number, due in enumerate(schedule):
        turns[due.caller].append(number)
    records: dict[int, Recording] = {}

    async def one_caller(numbers: list[int]) -> None:
        for place, number in enumerate(numbers):
            due = schedule[number]
            at = start + due.at
            await asyncio.sleep(max(0.0, at - loop.time()))
            until = None
            if place + 1 < len(numbers):
                until = start + schedule[numbers[place + 1]].at - GRACE
            caller = pool.take()
            record = await record_utterance(
                caller, due.text, at, Interruption(due.cut_after, until), limit
            )
            pool.give(caller)
            record.label = f"caller {due.caller}"
            records[number] = record

    try:
        await asyncio.gather(*(one_caller(numbers) for numbers in turns.values()))
    finally:
        await pool.close()
    return [records[number] for number in range(len(schedule))]


def most_concurrent(records: Sequence[Recording]) -> int:
    """The largest number of concurrent utterances."""
    moments = [
        (at, step)
        for record in records
        if record.ended is not None
        for at, step in ((record.sent or record.due, 1), (record.ended, -1))
    ]
    running = most = 0
    for _, step in sorted(moments):  # an end before a begin at the same moment
        running += step
        most = max(most, running)
    return most
