"""Conversion between float samples and 16-bit little-endian PCM, the same for every output."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rt_drama3.errors import RequestError

_SCALE = 32_768.0


def checked_samples(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Validates mono samples and returns them as float32.

    Args:
        samples: ``[samples]`` floating-point numbers.

    Raises:
        RequestError: not floating-point, not one-dimensional, or with a NaN or infinite sample.
    """
    array = np.asarray(samples)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.floating):
        raise RequestError(
            f"Audio must be a one-dimensional float array of samples, not {array.dtype} of shape "
            f"{array.shape}; average the channels and scale integers to -1..1 first."
        )
    array = array.astype(np.float32, copy=False)
    finite = np.isfinite(array)
    if not finite.all():
        first = int(np.argmin(finite))
        raise RequestError(
            f"Audio sample {first} of {array.size} is {array[first]}; all samples must be finite."
        )
    return array


def float_to_s16le(samples: NDArray[Any]) -> bytes:
    """Converts float samples to signed 16-bit little-endian PCM.

    A sample x becomes x * 32768 rounded to the nearest integer (halves to even) and clipped to
    -32768..32767, so full scale never wraps around; it inverts ``s16le_to_float`` exactly.

    Args:
        samples: ``[samples]`` floats, nominally in [-1, 1].

    Returns:
        Two bytes per sample.

    Raises:
        RequestError: see ``checked_samples``.
    """
    scaled = np.rint(checked_samples(samples) * np.float32(_SCALE))
    integers: NDArray[np.int16] = np.clip(scaled, -32_768, 32_767).astype("<i2")
    return integers.tobytes()


def s16le_to_float(pcm: bytes | bytearray | memoryview) -> NDArray[np.float32]:
    """Converts signed 16-bit little-endian PCM to float32 samples in [-1, 1).

    Args:
        pcm: two bytes per sample.

    Returns:
        ``[samples]``: each integer divided by 32768.

    Raises:
        RequestError: the number of bytes is odd.
    """
    data = memoryview(pcm).cast("B")
    if len(data) % 2:
        raise RequestError(
            f"16-bit PCM must have an even number of bytes, not {len(data)}: one is cut."
        )
    return np.frombuffer(data, dtype="<i2").astype(np.float32) / np.float32(_SCALE)
