"""Sample formats: validation, and exact round trips of 16-bit samples through floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.errors import RequestError
from rt_drama3.sinks.pcm_format import PcmFormat, to_int16, with_channels


@settings(deadline=None)
@given(st.lists(st.integers(-32_768, 32_767)).filter(lambda values: len(values) % 2 == 0))
def test_16_bit_samples_round_trip(values: list[int]) -> None:
    samples = np.array(values, "<i2")
    frames = PcmFormat(8_000, channels=2).frames(samples.tobytes())
    assert frames.shape == (len(values) // 2, 2)
    assert to_int16(frames).reshape(-1).tolist() == values


def test_floats_are_accepted_as_bytes_and_arrays() -> None:
    samples = np.linspace(-1, 1, 7, dtype=np.float32)
    format = PcmFormat(44_100, encoding="f32le")
    assert np.array_equal(format.frames(samples.astype("<f4").tobytes())[:, 0], samples)
    assert np.array_equal(format.frames(samples)[:, 0], samples)
    assert np.array_equal(format.frames(samples[:, None])[:, 0], samples)


@pytest.mark.parametrize(
    ("pcm", "message"),
    [
        (b"abc", r"3 bytes are not whole frames of 4 bytes"),
        (np.zeros(4, np.float32), r"one channel were given to a sink opened for 2"),
        (np.zeros((4, 3), np.float32), r"shape \(4, 3\) .* give \[frames, 2\]"),
        (np.full((2, 2), np.nan, np.float32), r"is nan"),
        (np.zeros((4, 2), np.int16), r"int16"),
    ],
)
def test_samples_that_do_not_match_the_format_raise(pcm: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        PcmFormat(48_000, channels=2).frames(pcm)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"rate": 100}, "sample rate is 100 Hz"),
        ({"rate": 48_000, "channels": 0}, "0 channels"),
        ({"rate": 48_000, "channels": 9}, "9 channels"),
        ({"rate": 48_000, "encoding": "u8"}, "encoding is 'u8'"),
    ],
)
def test_invalid_formats_raise(facts: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        PcmFormat(**facts)  # type: ignore[arg-type]


def test_channels_are_repeated_or_averaged() -> None:
    stereo = np.array([[0.5, -0.25]], np.float32)
    assert with_channels(stereo, 1).tolist() == [[0.125]]
    assert with_channels(stereo[:, :1], 3).tolist() == [[0.5, 0.5, 0.5]]
    assert with_channels(stereo, 2) is stereo
