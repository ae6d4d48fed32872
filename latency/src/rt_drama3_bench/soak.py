"""Scenario ``soak``: hours of mixed work, with everything watched that could creep.

Conversations with barge-ins over the native dialect, a stranger's HTTP requests beside them, and
connections that are opened and left. It fails when something left its limit for good, when a
listener heard a gap, or when the server refused or died; the first moment is told.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from rt_drama3_bench import metrics
from rt_drama3_bench.dialects import Cut, call, make_caller
from rt_drama3_bench.drift import Limit, watch
from rt_drama3_bench.drive import drive
from rt_drama3_bench.metrics import TOLERATED, Utterance
from rt_drama3_bench.process_watch import Usage, usage
from rt_drama3_bench.result import Result, Verdict
from rt_drama3_bench.schedules import TEXTS, Due, turns
from rt_drama3_bench.server_process import Served
from rt_drama3_bench.target import Target

ROUND = 20.0  # seconds of work between two looks
LIMITS = {
    "memory, MiB": Limit(0.10, 32.0),
    "descriptors": Limit(0.10, 8.0),
    "threads": Limit(0.10, 4.0),
    "first audio p50, ms": Limit(0.50, 20.0),
    "lead p50, ms": Limit(0.50, 100.0, falling=True),
}


@dataclass
class Look:
    """What was seen in one round.

    Attributes:
        at: seconds since the beginning.
        figures: by the names of ``LIMITS``; what is unknown is left out.
        worst_ms: underrun of the round.
        failed: utterances that did not end as they should, and why.
    """

    at: float
    figures: dict[str, float] = field(default_factory=dict)
    worst_ms: float = 0.0
    failed: list[str] = field(default_factory=list)


def look(at: float, records: list[Utterance], seen: Usage) -> Look:
    """Sums a round up."""
    found = Look(at)
    good = [metrics.measure(record) for record in records if record.error is None]
    found.failed = [record.error for record in records if record.error is not None]
    found.worst_ms = max((m.underrun_worst_ms for m in good), default=0.0)
    firsts = [m.first_pcm_ms for m in good if m.first_pcm_ms is not None]
    leads = [m.least_lead_ms for m in good if m.least_lead_ms is not None]
    known = {
        "memory, MiB": seen.memory_mb,
        "descriptors": seen.descriptors,
        "threads": seen.threads,
        "first audio p50, ms": statistics.median(firsts) if firsts else None,
        "lead p50, ms": statistics.median(leads) if leads else None,
    }
    found.figures = {name: float(value) for name, value in known.items() if value is not None}
    return found


def judge(result: Result, looks: list[Look]) -> None:
    """Adds series, drifts and verdicts of all rounds."""
    for name, limit in LIMITS.items():
        kept = [(one.at, one.figures[name]) for one in looks if name in one.figures]
        if not kept:
            result.notes.append(f"{name}: this system does not tell")
            continue
        result.add(name, "", [value for _, value in kept], "higher" if limit.falling else "lower")
        found = watch([at for at, _ in kept], [value for _, value in kept], limit)
        if found is None:
            result.notes.append(f"{name}: too short to judge a drift")
            continue
        off = found.baseline - found.last if limit.falling else found.last - found.baseline
        allowed = max(limit.relative * abs(found.baseline), limit.absolute)
        detail = f"{found.baseline:.1f} to {found.last:.1f}, {found.slope:+.2f} an hour"
        if found.since is not None:
            detail += f", off since {found.since:.0f} s"
        value = max(off, allowed * 1.001) if found.since is not None else min(off, allowed)
        result.verdicts.append(Verdict(f"drift of {name}", value, allowed, detail=detail))
    gaps = [one for one in looks if one.worst_ms > TOLERATED]
    since = f"first at {gaps[0].at:.0f} s" if gaps else ""
    worst = max((one.worst_ms for one in looks), default=0.0)
    result.verdicts.append(
        Verdict("continuity: worst underrun, ms", worst, TOLERATED, detail=since)
    )
    failed = [(one.at, why) for one in looks for why in one.failed]
    detail = f"first at {failed[0][0]:.0f} s: {failed[0][1]}" if failed else ""
    result.verdicts.append(Verdict("utterances that failed", len(failed), 0, detail=detail))
    result.facts["rounds"] = len(looks)


def soak(
    result: Result,
    hours: float = 1.0,
    callers: int = 2,
    model: str = "nano",
    step_mode: str | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Works for hours.

    Args:
        result: takes what is found.
        hours: of work; a thousandth is a trial.
        callers: conversations at the same time.
        model, step_mode: of the server.
        seed: of the schedule.
        say: takes a line after every round, for a person who waits.
    """
    looks: list[Look] = []
    with Served(model, step_mode) as served:
        result.preparation["server ready"] = served.started
        asyncio.run(_work(served, looks, 3600 * hours, callers, seed, say))
        result.verdicts.append(Verdict("the server lives", float(served.alive), 1, at_least=True))
    judge(result, looks)


async def _work(
    served: Served,
    looks: list[Look],
    seconds: float,
    callers: int,
    seed: int,
    say: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    start, native = loop.time(), Target(served.url)
    number = 0
    while loop.time() - start < seconds and served.alive:
        length = min(ROUND, max(2.0, seconds))
        due = turns(callers, length, seed=seed + number)
        due = due or [Due(0.0, 0, TEXTS[0])]
        conversations, *others = await asyncio.gather(
            drive(due, lambda: make_caller(native), native.timeout),
            _stranger(Target(served.url, "openai"), length),
            _leaver(native),
        )
        records = [*conversations, *(record for part in others for record in part)]
        looks.append(look(loop.time() - start, records, usage(served.pid)))
        number += 1
        one = looks[-1]
        figures = ", ".join(f"{name} {value:.0f}" for name, value in one.figures.items())
        gap = f"worst underrun {one.worst_ms:.0f} ms, {len(one.failed)} failed"
        say(f"{one.at:.0f} s: {figures}, {gap}")


async def _stranger(target: Target, seconds: float) -> list[Utterance]:
    """Asks over HTTP, once in a round."""
    await asyncio.sleep(seconds / 3)
    caller = make_caller(target)
    try:
        now = asyncio.get_running_loop().time()
        return [await call(caller, TEXTS[1], now, limit=target.timeout)]
    finally:
        await caller.close()


async def _leaver(target: Target) -> list[Utterance]:
    """Begins and leaves in the middle, without a word."""
    caller = make_caller(target)
    now = asyncio.get_running_loop().time()
    task = asyncio.create_task(call(caller, TEXTS[4], now, Cut(), target.timeout))
    await asyncio.sleep(0.5)
    await caller.close()
    await task  # it fails, as it should: the connection is closed
    return []
