"""Scenario ``soak``: hours of mixed work, watching everything that could grow slowly.

Conversations with barge-ins over the native dialect, HTTP requests of another client, and
connections that are dropped. It fails when a figure leaves its limit and stays outside, when a
listener hears an underrun, or when the server refuses or dies; the result states when.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from rt_drama3_bench import metrics
from rt_drama3_bench.dialects import Interruption, make_client, record_utterance
from rt_drama3_bench.drift import Limit, watch
from rt_drama3_bench.drive import drive
from rt_drama3_bench.endpoint import Endpoint
from rt_drama3_bench.metrics import TOLERATED, Recording
from rt_drama3_bench.process_watch import Usage, usage
from rt_drama3_bench.result import OVER_TIME, Result
from rt_drama3_bench.schedules import TEXTS, ScheduledRequest, turns
from rt_drama3_bench.server_process import ServerProcess

ROUND = 20.0  # seconds of work between two rounds
LIMITS = {
    "memory, MiB": Limit(0.10, 32.0),
    "descriptors": Limit(0.10, 8.0),
    "threads": Limit(0.10, 4.0),
    "first audio p50, ms": Limit(0.50, 20.0),
    "lead p50, ms": Limit(0.50, 100.0, falling=True),
}


@dataclass
class RoundSample:
    """The figures of one round.

    Attributes:
        at: seconds since the beginning.
        figures: by the names of ``LIMITS``; what is unknown is left out.
        worst_ms: worst underrun of the round.
        failed: utterances that did not end as they should, and why.
        asked: utterances, failed ones included.
    """

    at: float
    figures: dict[str, float] = field(default_factory=dict)
    worst_ms: float = 0.0
    failed: list[str] = field(default_factory=list)
    asked: int = 0


def sample_round(at: float, records: list[Recording], seen: Usage) -> RoundSample:
    """Summarises a round."""
    found = RoundSample(at, asked=len(records))
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


def judge(result: Result, rounds: list[RoundSample]) -> None:
    """Adds series, drifts and verdicts of all rounds."""
    curves = result.facts.setdefault(OVER_TIME, {})
    for name, limit in LIMITS.items():
        kept = [(one.at, one.figures[name]) for one in rounds if name in one.figures]
        if not kept:
            result.notes.append(f"{name}: not reported by this system")
            continue
        curves[name] = [list(point) for point in kept]
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
        result.judge(f"drift of {name}", value, allowed, detail=detail)
    gaps = [one for one in rounds if one.worst_ms > TOLERATED]
    since = f"first at {gaps[0].at:.0f} s" if gaps else ""
    worst = max((one.worst_ms for one in rounds), default=0.0)
    result.judge("continuity: worst underrun, ms", worst, TOLERATED, detail=since)
    failed = [(one.at, why) for one in rounds for why in one.failed]
    spoken = sum(one.asked for one in rounds) - len(failed)
    result.add("failed", "share", [1.0] * len(failed) + [0.0] * spoken, minor=True)
    detail = f"first at {failed[0][0]:.0f} s: {failed[0][1]}" if failed else ""
    result.judge("utterances that failed", len(failed), 0, detail=detail)
    if rounds:
        curves["worst underrun, ms"] = [[one.at, one.worst_ms] for one in rounds]
        curves["utterances that failed"] = [[one.at, float(len(one.failed))] for one in rounds]
    result.facts["rounds"] = len(rounds)


def soak(
    result: Result,
    hours: float = 1.0,
    callers: int = 2,
    model: str = "nano",
    step_mode: str | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Runs the mixed work.

    Args:
        result: receives the measurements.
        hours: duration; a thousandth is a trial.
        callers: conversations at the same time.
        model, step_mode: of the server.
        seed: of the schedule.
        say: receives a progress line after every round.
    """
    rounds: list[RoundSample] = []
    with ServerProcess(model, step_mode) as served:
        result.preparation["server ready"] = served.started
        asyncio.run(_work(served, rounds, 3600 * hours, callers, seed, say))
        result.judge("the server lives", float(served.alive), 1, at_least=True)
    judge(result, rounds)


async def _work(
    served: ServerProcess,
    rounds: list[RoundSample],
    seconds: float,
    callers: int,
    seed: int,
    say: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    start, native = loop.time(), Endpoint(served.url)
    number = 0
    while loop.time() - start < seconds and served.alive:
        length = min(ROUND, max(2.0, seconds))
        due = turns(callers, length, seed=seed + number)
        due = due or [ScheduledRequest(0.0, 0, TEXTS[0])]
        conversations, *others = await asyncio.gather(
            drive(due, lambda: make_client(native), native.timeout),
            _stranger(Endpoint(served.url, "openai"), length),
            _leaver(native),
        )
        records = [*conversations, *(record for part in others for record in part)]
        rounds.append(sample_round(loop.time() - start, records, usage(served.pid)))
        number += 1
        one = rounds[-1]
        figures = ", ".join(f"{name} {value:.0f}" for name, value in one.figures.items())
        gap = f"worst underrun {one.worst_ms:.0f} ms, {len(one.failed)} failed"
        say(f"{one.at:.0f} s: {figures}, {gap}")


async def _stranger(endpoint: Endpoint, seconds: float) -> list[Recording]:
    """Requests once per round, over HTTP."""
    await asyncio.sleep(seconds / 3)
    caller = make_client(endpoint)
    try:
        now = asyncio.get_running_loop().time()
        return [await record_utterance(caller, TEXTS[1], now, limit=endpoint.timeout)]
    finally:
        await caller.close()


async def _leaver(endpoint: Endpoint) -> list[Recording]:
    """Starts an utterance and drops the connection in the middle."""
    caller = make_client(endpoint)
    now = asyncio.get_running_loop().time()
    task = asyncio.create_task(
        record_utterance(caller, TEXTS[4], now, Interruption(), endpoint.timeout)
    )
    await asyncio.sleep(0.5)
    await caller.close()
    await task  # it fails, as it should: the connection is closed
    return []
