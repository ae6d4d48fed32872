"""Percentiles and their bounds: exact ranks, and coverage as promised."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rt_drama3_bench.estimates import (
    Interval,
    bootstrap,
    interval,
    percentile,
    share_difference,
    summarize,
)


def test_percentiles_are_samples() -> None:
    samples = [float(n) for n in range(1, 101)]
    assert percentile(samples, 0.5) == 50
    assert percentile(samples, 0.95) == 95
    assert percentile(samples, 0.99) == 99
    assert percentile(samples, 1) == 100
    assert percentile(samples, 0) == 1
    assert percentile([7.0], 0.95) == 7
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 0.5)


@pytest.mark.parametrize("n", [6, 20, 101])
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_ranks_are_those_of_the_binomial(n: int, share: float) -> None:
    """P(the bounds miss the percentile) is at most 2.5 % a side, and tight."""

    def at_most(k: int) -> float:
        return sum(math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(k + 1))

    found = interval([float(r) for r in range(1, n + 1)], share)
    if found.low is None:
        assert at_most(0) > 0.025
    else:
        rank = int(found.low)
        assert at_most(rank - 1) <= 0.025 < at_most(rank)
    if found.high is None:
        assert 1 - at_most(n - 1) > 0.025
    else:
        rank = int(found.high)
        assert 1 - at_most(rank - 1) <= 0.025
        assert rank == 1 or 1 - at_most(rank - 2) > 0.025


def test_coverage_of_the_median() -> None:
    random = np.random.default_rng(5)
    inside = 0
    for _ in range(2000):
        found = interval(random.exponential(size=30).tolist(), 0.5)
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= math.log(2) <= found.high
    assert inside >= 0.945 * 2000


def test_too_few_samples_leave_a_side_open() -> None:
    assert interval([1.0, 2.0, 3.0], 0.5) == Interval(None, None)
    assert interval([], 0.5) == Interval(None, None)
    assert interval([float(n) for n in range(50)], 0.99).high is None


def test_outliers_are_kept() -> None:
    found = summarize([1.0] * 99 + [1000.0])
    assert found.longest == 1000
    assert found.mean == pytest.approx(10.99)
    assert found.p99 == 1


def test_bootstrap_of_a_ratio() -> None:
    random = np.random.default_rng(1)
    one, two = random.normal(10, 1, 200), random.normal(12, 1, 200)
    found = bootstrap(lambda a, b: np.median(b) / np.median(a), one.tolist(), two.tolist())
    assert found.low is not None
    assert found.high is not None
    assert 1.1 < found.low < 1.2 < found.high < 1.3
    again = bootstrap(lambda a, b: np.median(b) / np.median(a), one.tolist(), two.tolist())
    assert found == again
    assert bootstrap(np.median, [1.0]) == Interval(None, None)


def test_difference_of_two_shares() -> None:
    """Newcombe 1998, table II (a), method 10: 56 of 70 against 48 of 80."""
    found = share_difference((48, 80), (56, 70))
    assert found.low == pytest.approx(0.0524, abs=1e-4)
    assert found.high == pytest.approx(0.3339, abs=1e-4)
    none = share_difference((0, 20), (0, 20))
    assert none.low is not None
    assert none.high is not None
    assert none.low < 0 < none.high
