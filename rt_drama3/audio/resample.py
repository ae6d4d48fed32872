"""Resampling of whole clips."""

from __future__ import annotations

from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from rt_drama3.audio.pcm import checked_samples
from rt_drama3.errors import RequestError

MIN_RATE = 1_000
MAX_RATE = 768_000
STREAM_RATES = 8_000, 192_000  # the lowest and the highest


def check_rate(
    rate: int, what: str = "sample rate", low: int = MIN_RATE, high: int = MAX_RATE
) -> None:
    """Refuses sample rates that are not plausible for speech, devices or files.

    Raises:
        RequestError: not an integer from ``low`` to ``high`` Hz.
    """
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        raise RequestError(f"The {what} must be an integer in Hz, not {rate!r}.")
    if not low <= rate <= high:
        raise RequestError(f"The {what} is {rate} Hz; rates from {low} to {high} Hz are supported.")


def check_stream_rate(rate: int, what: str) -> None:
    """Refuses sample rates that streams do not support; see ``check_rate``."""
    check_rate(rate, what, *STREAM_RATES)


def resample(samples: NDArray[Any], from_rate: int, to_rate: int) -> NDArray[np.float32]:
    """Converts a whole clip to another rate with a linear-phase filter of very high quality.

    The result is aligned with the input (no delay) and covers all of it: its length is exactly
    ``ceil(len(samples) * to_rate / from_rate)``. Peaks may exceed those of the input slightly.

    Args:
        samples: ``[samples]`` floats.
        from_rate: their rate in Hz.
        to_rate: target rate in Hz.

    Returns:
        ``[ceil(samples * to_rate / from_rate)]`` float32; the input itself if the rates are equal.

    Raises:
        RequestError: a rate is out of range, or the samples are not mono finite floats.
    """
    check_rate(from_rate, "rate to convert from")
    check_rate(to_rate, "rate to convert to")
    clip = checked_samples(samples)
    if from_rate == to_rate or clip.size == 0:
        return clip
    wanted = -(-clip.size * int(to_rate) // int(from_rate))
    # The library rounds the length to the nearest sample. Its filter assumes silence after the end,
    # so appending some produces the last sample and changes no other.
    padding = int(from_rate) // int(to_rate) + 1
    padded = np.concatenate([clip, np.zeros(padding, np.float32)])
    result: NDArray[np.float32] = soxr.resample(padded, from_rate, to_rate, quality="VHQ")
    return result[:wanted]
