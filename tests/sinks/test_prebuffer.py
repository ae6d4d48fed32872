"""The choice of the prebuffer, from simulated arrivals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.sinks.prebuffer import Prebuffer

CHUNK = 0.046


def arrive(policy: Prebuffer, lateness_ms: list[float], start: float = 100.0) -> None:
    for number, late in enumerate(lateness_ms):
        policy.arrived(start + number * CHUNK + late / 1e3, CHUNK)


def test_first_choice_without_measurements() -> None:
    assert Prebuffer(first_ms=40).target_ms == 40


def test_audio_on_time_needs_the_minimum() -> None:
    policy = Prebuffer(least_ms=20)
    arrive(policy, [0, 0, -20, -40, -300])
    assert policy.target_ms == 20


def test_the_worst_lateness_decides() -> None:
    policy = Prebuffer(margin_ms=15)
    arrive(policy, [0, 10, 60, 30, 0])
    assert policy.target_ms == pytest.approx(75)


def test_pause_is_not_jitter() -> None:
    policy = Prebuffer(least_ms=20, most_ms=400)
    arrive(policy, [0, 0, 5_000, 5_000, 5_010])
    assert policy.target_ms == pytest.approx(25)


def test_time_between_takes_does_not_count() -> None:
    policy = Prebuffer(least_ms=20)
    arrive(policy, [0, 0])
    policy.ended()
    arrive(policy, [0, 0], start=100.3)
    assert policy.target_ms == 20


def test_old_lateness_is_forgotten() -> None:
    policy = Prebuffer(least_ms=20, memory=8)
    arrive(policy, [0, 200])
    assert policy.target_ms > 200
    policy.ended()
    arrive(policy, [0] * 9, start=200.0)
    assert policy.target_ms == 20


@settings(deadline=None)
@given(st.lists(st.floats(0, 390), min_size=2, max_size=30))
def test_playback_with_the_chosen_prebuffer_never_runs_dry(lateness: list[float]) -> None:
    policy = Prebuffer(margin_ms=0)
    arrive(policy, [0.0, *lateness])
    # Chunk n must arrive before playback, which starts that long after the first, reaches it.
    assert all(late <= policy.target_ms + 1e-6 for late in lateness)
    assert policy.least_ms <= policy.target_ms <= policy.most_ms
