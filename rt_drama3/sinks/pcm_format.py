"""The sample formats that sinks accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rt_drama3.audio.pcm import checked_samples, s16le_to_float
from rt_drama3.audio.resample import check_stream_rate
from rt_drama3.errors import RequestError

Encoding: TypeAlias = Literal["s16le", "f32le"]
Frames: TypeAlias = NDArray[np.float32]  # [frames, channels]
Pcm: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]

MAX_CHANNELS = 8
_WIDTH = {"s16le": 2, "f32le": 4}


@dataclass(frozen=True)
class PcmFormat:
    """Rate, channels and encoding of a stream of samples.

    Attributes:
        rate: 8000 to 192000 Hz.
        channels: 1 to 8, interleaved.
        encoding: encoding of bytes: signed 16-bit or 32-bit float, little-endian. Arrays are always
            floats.

    Raises:
        RequestError: a value is out of range.
    """

    rate: int
    channels: int = 1
    encoding: Encoding = "s16le"

    def __post_init__(self) -> None:
        check_stream_rate(self.rate, "sample rate")
        if not isinstance(self.channels, int) or not 1 <= self.channels <= MAX_CHANNELS:
            raise RequestError(
                f"A stream cannot have {self.channels!r} channels; use 1 to {MAX_CHANNELS}."
            )
        if self.encoding not in _WIDTH:
            raise RequestError(f"The encoding is {self.encoding!r}; use 's16le' or 'f32le'.")

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.channels * _WIDTH[self.encoding]

    def frames(self, pcm: Pcm) -> Frames:
        """Validates samples and returns them as floats.

        Args:
            pcm: bytes of whole frames in this format, or an array of floats in [-1, 1] of shape
                ``[frames, channels]``, or ``[frames]`` for one channel.

        Returns:
            ``[frames, channels]`` float32. Converting back to 16 bits is exact.

        Raises:
            RequestError: an incomplete frame, a different number of channels, or a sample that is
                not finite.
        """
        if isinstance(pcm, np.ndarray):
            if pcm.ndim != 1 and (pcm.ndim != 2 or pcm.shape[1] != self.channels):
                raise RequestError(
                    f"Samples of shape {pcm.shape} were given to a sink opened for "
                    f"{self.channels} channels; give [frames, {self.channels}]."
                )
            if pcm.ndim == 1 and self.channels != 1:
                raise RequestError(
                    f"Samples of one channel were given to a sink opened for {self.channels}; "
                    f"give [frames, {self.channels}]."
                )
            return checked_samples(pcm.reshape(-1)).reshape(-1, self.channels)
        data = memoryview(pcm).cast("B")
        if len(data) % self.frame_bytes:
            raise RequestError(
                f"{len(data)} bytes are not whole frames of {self.frame_bytes} bytes; "
                "give whole samples of every channel."
            )
        if self.encoding == "s16le":
            samples = s16le_to_float(data)
        else:
            samples = checked_samples(np.frombuffer(data, "<f4"))
        return samples.reshape(-1, self.channels)


def with_channels(frames: Frames, channels: int) -> Frames:
    """Changes the number of channels: mono is repeated, several are averaged first."""
    have = frames.shape[1]
    if have == channels:
        return frames
    mono = frames if have == 1 else frames.mean(axis=1, keepdims=True, dtype=np.float32)
    return np.repeat(mono, channels, axis=1)


def to_int16(frames: Frames) -> NDArray[np.int16]:
    """Converts frames to 16-bit integers by the rule of ``audio.float_to_s16le``."""
    scaled = np.rint(frames * np.float32(32_768))
    integers: NDArray[np.int16] = np.clip(scaled, -32_768, 32_767).astype(np.int16)
    return integers
