"""When a figure that should stay constant began to drift: pure arithmetic for ``soak``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WARM = 0.1  # share of the run, at its beginning, that is left out
BASE = 0.2  # share of the run after that: the baseline
WINDOW = 5  # samples whose median is compared, so that one outlier does not count


@dataclass(frozen=True)
class Limit:
    """How far a figure may move from its baseline.

    Attributes:
        relative: share of the baseline.
        absolute: in its unit; the larger of the two counts.
        falling: less is worse, as for buffered audio.
    """

    relative: float
    absolute: float
    falling: bool = False


@dataclass(frozen=True)
class Drift:
    """The course of one watched figure.

    Attributes:
        baseline: its median at the beginning.
        last: its median at the end.
        slope: per hour, by the median of the slopes of pairs (Theil and Sen).
        since: seconds at which it left the limit and stayed outside; None otherwise.
    """

    baseline: float
    last: float
    slope: float
    since: float | None


def watch(times: Sequence[float], values: Sequence[float], limit: Limit) -> Drift | None:
    """Judges one figure; None with fewer than ten samples.

    Args:
        times: seconds since the beginning, rising.
        values: the figure at those times.
        limit: see ``Limit``.
    """
    if len(values) < 2 * WINDOW:
        return None
    warm = int(WARM * len(values))
    base = max(WINDOW, int(BASE * len(values)))
    baseline = statistics.median(values[warm : warm + base])
    allowed = max(limit.relative * abs(baseline), limit.absolute)
    since: float | None = None
    for end in range(warm + base, len(values) + 1):
        middle = statistics.median(values[max(warm, end - WINDOW) : end])
        off = baseline - middle if limit.falling else middle - baseline
        if off <= allowed:
            since = None
        elif since is None:
            since = times[max(0, end - (WINDOW + 1) // 2)]  # half of the window is beyond by then
    return Drift(baseline, statistics.median(values[-WINDOW:]), slope(times, values, warm), since)


def slope(times: Sequence[float], values: Sequence[float], skip: int = 0, most: int = 400) -> float:
    """Comparison per hour: the median over pairs, thinned to at most ``most`` samples."""
    pairs = list(zip(times, values, strict=True))[skip:]
    pairs = pairs[:: max(1, len(pairs) // most)]
    slopes = [
        (b[1] - a[1]) / (b[0] - a[0])
        for place, a in enumerate(pairs)
        for b in pairs[place + 1 :]
        if b[0] > a[0]
    ]
    return 3600 * statistics.median(slopes) if slopes else 0.0
