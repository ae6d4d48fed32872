"""Resampling of whole clips: exact length, alignment, level, and no aliasing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.audio import resample
from rt_drama3.errors import RequestError

RATES = [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000, 96_000]


def tone(frequency: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    time = np.arange(int(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * frequency * time)).astype(np.float32)


@given(st.integers(0, 3_000), st.sampled_from(RATES), st.sampled_from(RATES))
@settings(deadline=None, max_examples=60)
def test_length_is_the_exact_ceiling(count: int, source: int, target: int) -> None:
    result = resample(np.full(count, 0.25, np.float32), source, target)
    assert result.shape == (math.ceil(count * target / source),)
    assert result.dtype == np.float32
    assert np.isfinite(result).all()


@pytest.mark.parametrize(("count", "source", "target"), [(1, 44_100, 16_000), (5, 768_000, 1_000)])
def test_a_clip_shorter_than_one_output_sample_gives_one(
    count: int, source: int, target: int
) -> None:
    assert resample(np.ones(count, np.float32), source, target).shape == (1,)


@pytest.mark.parametrize("target", RATES)
def test_tone_keeps_its_position_and_level(target: int) -> None:
    result = resample(tone(440, 44_100), 44_100, target)
    expected = tone(440, target)
    inside = slice(target // 20, len(expected) - target // 20)  # away from the abrupt ends
    assert np.abs(result[inside] - expected[inside]).max() < 1e-4


def test_frequencies_above_the_lower_nyquist_are_removed() -> None:
    result = resample(tone(15_000, 44_100), 44_100, 16_000)
    assert np.abs(result[800:-800]).max() < 1e-4


def test_equal_rates_change_nothing() -> None:
    samples = tone(440, 24_000)
    assert np.array_equal(resample(samples, 24_000, 24_000), samples)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ((0, 16_000), "is 0 Hz"),
        ((16_000, 999), "is 999 Hz"),
        ((16_000, 768_001), "is 768001 Hz"),
        ((-44_100, 16_000), "is -44100 Hz"),
        ((44_100.5, 16_000), "must be an integer in Hz, not 44100.5"),
        ((True, 16_000), "must be an integer in Hz, not True"),
    ],
)
def test_invalid_rates_raise(rates: tuple[int, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        resample(np.zeros(10, np.float32), *rates)


def test_non_finite_samples_raise() -> None:
    with pytest.raises(RequestError, match="sample 0 of 1 is nan"):
        resample(np.array([np.nan], np.float32), 44_100, 16_000)
