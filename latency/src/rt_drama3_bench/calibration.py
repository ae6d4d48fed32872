"""How quiet the machine is: fixed work, timed before and after a measurement.

The work is the same every time, so that its spread is the machine's. A run on a noisy machine says
so; it is not thrown away.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rt_drama3_bench.estimates import percentile

TURNS = 100
LOOPS = 20_000  # of one turn: about a millisecond
SPREAD = 1.25  # 95th over 5th percentile; above, the machine is noisy
DRIFT = 0.10  # change of the median between before and after; above, it is noisy
SHARE = 0.90  # of the time, that the thread was computing; below, others took the core


@dataclass(frozen=True)
class Calibration:
    """One calibration loop.

    Attributes:
        turns: how often the work was done.
        p05_ms, p50_ms, p95_ms, longest_ms: duration of the work.
        share: processor time over elapsed time; None where the system does not report it.
    """

    turns: int
    p05_ms: float
    p50_ms: float
    p95_ms: float
    longest_ms: float
    share: float | None

    @property
    def spread(self) -> float:
        """How much a turn varies: 1 on an ideal machine."""
        return self.p95_ms / self.p05_ms if self.p05_ms > 0 else 1.0


@dataclass(frozen=True)
class Noise:
    """What two calibrations say about the time between them.

    Attributes:
        noisy: whether the figures are unreliable.
        floor: by how much the machine alone may shift a median, relative to it.
        reasons: in words.
    """

    noisy: bool
    floor: float
    reasons: list[str] = field(default_factory=list)


def calibrate(
    turns: int = TURNS,
    work: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.monotonic,
    busy: Callable[[], float] | None = time.thread_time,
) -> Calibration:
    """Times the work; about a tenth of a second.

    Args:
        turns: how often.
        work: what is done; default: whole numbers multiplied in a loop.
        clock: gives seconds.
        busy: gives the thread's processor seconds.
    """
    work = work or _work
    work()
    samples: list[float] = []
    started, worked = clock(), busy() if busy else 0.0
    for _ in range(turns):
        before = clock()
        work()
        samples.append(1e3 * (clock() - before))
    passed = clock() - started
    share = (busy() - worked) / passed if busy and passed > 0 else None
    return Calibration(
        turns,
        percentile(samples, 0.05),
        statistics.median(samples),
        percentile(samples, 0.95),
        max(samples),
        share,
    )


def judge(
    before: Calibration, after: Calibration, waiting: float | None = None, cores: int | None = None
) -> Noise:
    """Compares two calibrations.

    Args:
        before, after: taken before and after the run.
        waiting: load average when the run began: a process of high priority does not notice others
            in its own loop, but shares memory and caches with them.
        cores: processor cores.
    """
    reasons: list[str] = []
    if waiting is not None and cores and waiting > cores:
        reasons.append(f"load average {waiting:.1f} on {cores} cores when the run began")
    for when, one in (("before", before), ("after", after)):
        if one.spread > SPREAD:
            reasons.append(f"the same work varied {one.spread:.2f}-fold {when} the run")
        if one.share is not None and one.share < SHARE:
            reasons.append(f"others took {100 * (1 - one.share):.0f} % of the core {when} the run")
    drift = abs(after.p50_ms - before.p50_ms) / before.p50_ms if before.p50_ms > 0 else 0.0
    if drift > DRIFT:
        reasons.append(f"the machine's speed changed by {100 * drift:.0f} % during the run")
    floor = max(0.02, drift)  # the spread of single turns is in the samples of the run as well
    return Noise(bool(reasons), floor, reasons)


def _work() -> int:
    value = 1
    for number in range(LOOPS):
        value = (value * 1_103_515_245 + number) & 0x7FFF_FFFF
    return value
