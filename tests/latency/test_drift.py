"""The first moment of a drift, and none where there is noise alone."""

from __future__ import annotations

import random

import pytest

from rt_drama3_bench.drift import Limit, slope, watch

TIMES = [10.0 * n for n in range(200)]
LIMIT = Limit(relative=0.1, absolute=5.0)


def noise() -> list[float]:
    draw = random.Random(1)
    return [draw.gauss(0, 1) for _ in TIMES]


def test_noise_does_not_count() -> None:
    found = watch(TIMES, [100 + n for n in noise()], LIMIT)
    assert found is not None
    assert found.since is None
    assert found.baseline == pytest.approx(100, abs=1)


def test_a_step_is_found_where_it_happened() -> None:
    values = [100 + n + (30 if time >= 1200 else 0) for time, n in zip(TIMES, noise(), strict=True)]
    found = watch(TIMES, values, LIMIT)
    assert found is not None
    assert found.since == pytest.approx(1200, abs=10)
    assert found.last == pytest.approx(130, abs=2)


def test_a_leak_is_found_when_it_passes_the_limit() -> None:
    values = [100 + 0.02 * time for time in TIMES]
    found = watch(TIMES, values, LIMIT)
    assert found is not None
    assert found.slope == pytest.approx(72)
    allowed = 0.1 * found.baseline
    assert found.since == pytest.approx((found.baseline + allowed - 100) / 0.02, abs=40)


def test_a_recovery_does_not_count() -> None:
    values = [100.0 + (50 if 600 <= time < 900 else 0) for time in TIMES]
    found = watch(TIMES, values, LIMIT)
    assert found is not None
    assert found.since is None


def test_one_outlier_does_not_count() -> None:
    values = [100.0] * 198 + [900.0, 100.0]
    found = watch(TIMES, values, LIMIT)
    assert found is not None
    assert found.since is None


def test_falling() -> None:
    values = [500 - 0.1 * time for time in TIMES]
    found = watch(TIMES, values, Limit(0.1, 5, falling=True))
    assert found is not None
    assert found.since is not None
    assert watch(TIMES, values, LIMIT).since is None  # type: ignore[union-attr]


def test_too_short() -> None:
    assert watch(TIMES[:9], [1.0] * 9, LIMIT) is None
    assert slope([1.0], [1.0]) == 0
