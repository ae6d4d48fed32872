"""Percentiles and their confidence intervals. Samples are never trimmed: outliers are latency.

Intervals of a percentile come from order statistics, which assume nothing but
independent samples; those of other figures from a bootstrap with a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
CONFIDENCE = 0.95
RESAMPLES = 2_000
_Z = 1.959964  # standard deviations of a normal distribution on each side of CONFIDENCE


@dataclass(frozen=True)
class Interval:
    """Where a figure lies with 95 % confidence; a bound is None where there are too few samples."""

    low: float | None
    high: float | None


@dataclass(frozen=True)
class Summary:
    """Summary of the samples of one kind.

    Attributes:
        n: number of samples.
        mean, p50, p95, p99, longest: of them.
        p50_interval, p95_interval, p99_interval: 95 % confidence.
    """

    n: int
    mean: float
    p50: float
    p95: float
    p99: float
    longest: float
    p50_interval: Interval
    p95_interval: Interval
    p99_interval: Interval


def percentile(samples: Sequence[float], share: float) -> float:
    """The least sample that at least ``share`` of all samples do not exceed (nearest rank).

    Raises:
        ValueError: there are no samples, or the share is not within 0..1.
    """
    if not len(samples) or not 0 <= share <= 1:
        raise ValueError(f"no percentile {share} of {len(samples)} samples")
    ranked = sorted(samples)
    return ranked[max(0, math.ceil(share * len(ranked) - 1e-9) - 1)]


def interval(samples: Sequence[float], share: float, confidence: float = CONFIDENCE) -> Interval:
    """Bounds of a percentile by order statistics.

    The r-th smallest of n samples lies at or below the percentile q whenever at least r samples do,
    and their number is binomial: so the bounds are ranks whose binomial tails are small enough.
    """
    n, tail = len(samples), (1 - confidence) / 2
    if n == 0:
        return Interval(None, None)
    below = np.cumsum(_binomial(n, share))  # below[k] = P(at most k samples lie below)
    ranked = sorted(samples)
    lows = np.flatnonzero(below <= tail)
    low = None if not len(lows) else ranked[int(lows[-1])]
    highs = np.flatnonzero(1 - below <= tail)
    rank = int(highs[0]) + 1 if len(highs) else n + 1
    return Interval(low, ranked[rank - 1] if rank <= n else None)


def share_difference(one: tuple[int, int], two: tuple[int, int]) -> Interval:
    """Bounds of the second share minus the first, by Newcombe's method from Wilson's intervals.

    Args:
        one, two: how often it happened, of how many.
    """
    (a, a_low, a_high), (b, b_low, b_high) = (_wilson(*side) for side in (one, two))
    low = b - a - math.hypot(b - b_low, a_high - a)
    return Interval(low, b - a + math.hypot(b_high - b, a - a_low))


def _wilson(count: int, n: int) -> tuple[float, float, float]:
    """A share and its bounds, by Wilson's score."""
    share, scale = count / n, 1 + _Z**2 / n
    middle = (share + _Z**2 / (2 * n)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n))
    return share, min(share, middle - half), max(share, middle + half)


def summarize(samples: Sequence[float]) -> Summary:
    """Summarises samples.

    Raises:
        ValueError: there are none.
    """
    return Summary(
        len(samples),
        float(np.mean(samples)) if len(samples) else math.nan,
        percentile(samples, 0.5),
        percentile(samples, 0.95),
        percentile(samples, 0.99),
        max(samples),
        interval(samples, 0.5),
        interval(samples, 0.95),
        interval(samples, 0.99),
    )


def bootstrap(
    figure: Callable[..., float],
    *sides: Sequence[float],
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Bounds of any figure of one or several independent sets of samples.

    Args:
        figure: takes one array per side, such as ``lambda a, b: np.median(b) / np.median(a)``.
        sides: the samples.
        confidence: of the bounds.
        resamples: draws with replacement.
        seed: the same one gives the same bounds.
    """
    if any(len(side) < 2 for side in sides):
        return Interval(None, None)
    random = np.random.default_rng(seed)
    arrays = [np.asarray(side, np.float64) for side in sides]
    found = [
        figure(*(side[random.integers(len(side), size=len(side))] for side in arrays))
        for _ in range(resamples)
    ]
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def _binomial(n: int, share: float) -> Floats:
    """Probability of 0..n successes in n draws."""
    k = np.arange(n + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    logs = factorials[n] - factorials[k] - factorials[n - k]
    logs += k * math.log(share) + (n - k) * math.log1p(-share)
    return np.asarray(np.exp(logs), np.float64)
