"""Conversion between float32 and s16le: exact, rounded, clipped, never wrapped."""

from __future__ import annotations

import numpy as np
import pytest

from rt_drama3.audio import float_to_s16le, s16le_to_float
from rt_drama3.errors import RequestError


def integers(pcm: bytes) -> list[int]:
    return np.frombuffer(pcm, "<i2").tolist()


def test_every_16_bit_value_survives_the_round_trip() -> None:
    every = np.arange(-32_768, 32_768, dtype="<i2")
    assert float_to_s16le(s16le_to_float(every.tobytes())) == every.tobytes()


def test_full_scale_and_beyond_is_clipped_and_never_wraps() -> None:
    samples = np.array([1.0, 1.5, 40_000.0, -1.0, -1.5, -40_000.0], np.float32)
    assert integers(float_to_s16le(samples)) == [32_767] * 3 + [-32_768] * 3


def test_rounds_to_nearest_with_halves_to_even() -> None:
    steps = np.array([0.49, 0.5, 0.51, 1.5, 2.5, -0.5, -1.5, -0.51])
    assert integers(float_to_s16le(steps / 32_768)) == [0, 0, 1, 2, 2, 0, -2, -1]


def test_bytes_are_little_endian() -> None:
    assert float_to_s16le(np.array([256 / 32_768], np.float32)) == b"\x00\x01"


def test_empty_in_empty_out() -> None:
    assert float_to_s16le(np.zeros(0, np.float32)) == b""
    assert s16le_to_float(b"").shape == (0,)


def test_s16le_to_float_accepts_any_bytes_like_object() -> None:
    for pcm in (b"\x00\x40", bytearray(b"\x00\x40"), memoryview(b"\x00\x40")):
        assert s16le_to_float(pcm).tolist() == [0.5]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_sample_raises_with_its_position(bad: float) -> None:
    with pytest.raises(RequestError, match="sample 2 of 4"):
        float_to_s16le(np.array([0, 0, bad, 0], np.float32))


@pytest.mark.parametrize("samples", [np.zeros((1, 4), np.float32), np.zeros(4, np.int16)])
def test_other_shapes_and_types_raise(samples: np.ndarray) -> None:
    with pytest.raises(RequestError, match="one-dimensional float array"):
        float_to_s16le(samples)


def test_half_a_sample_raises() -> None:
    with pytest.raises(RequestError, match="even number of bytes, not 3"):
        s16le_to_float(b"\x00\x01\x02")
