"""Runs a schedule: every request at its time, whether or not earlier ones are done."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence

from rt_drama3_bench.dialects import DialectClient, Interruption, record_utterance
from rt_drama3_bench.metrics import Recording
from rt_drama3_bench.schedules import ScheduledRequest

GRACE = 0.05  # seconds before a caller's next turn at which the one before is interrupted


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
    loop = asyncio.get_running_loop()
    start = loop.time()
    idle: list[DialectClient] = []  # connections are reused
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
            if not idle:
                idle.append(make())
                clients.push_async_callback(idle[-1].close)
            client = idle.pop()
            cut = Interruption(due.cut_after, until)
            record = await record_utterance(client, due.text, at, cut, limit)
            idle.append(client)
            record.label = f"caller {due.caller}"
            records[number] = record

    async with contextlib.AsyncExitStack() as clients:
        await asyncio.gather(*(one_caller(numbers) for numbers in turns.values()))
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
