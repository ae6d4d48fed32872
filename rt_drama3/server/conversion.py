"""Converter: one stream's PCM as the client's format, sample rate and volume.

Creating one may take some milliseconds (a resampler's tables, an encoder), so that is done in a
thread.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from rt_drama3.audio import StreamEncoder, StreamResampler
from rt_drama3.audio.stream_resample import Quality
from rt_drama3.protocol import SpeechOrder

SILENCE_SECONDS = 0.01  # for text without speech
FADE_SECONDS = 0.02  # of speech that is cut off; long enough not to click
Samples = npt.NDArray[np.float32]


class Converter:
    """Gain, resampler and encoder of one stream.

    Args:
        order: names the output.
        sample_rate: the model's, Hz.

    Attributes:
        bytes_per_second: of its output, about.

    Raises:
        RequestError: the output does not exist.
    """

    def __init__(self, order: SpeechOrder, sample_rate: int) -> None:
        output = order.output
        self._gain = 10 ** (order.gain_db / 20)
        self._rate = sample_rate
        self._conversion = sample_rate, output.sample_rate, cast(Quality, order.quality)
        self._resampler = StreamResampler(*self._conversion)
        self._encoder = StreamEncoder(output.format, output.sample_rate, bitrate=output.bitrate)
        width = output.kind.sample_bytes or 2  # flac: at most
        bitrate = self._encoder.bitrate
        self.bytes_per_second = width * output.sample_rate if bitrate is None else bitrate / 8

    def push(self, pcm: Samples, *, fade: bool = False) -> tuple[bytes, int]:
        """Converts the next samples.

        Args:
            pcm: float32 ``[samples]`` at the model's rate.
            fade: these are the last ones, and end in silence.

        Returns:
            The bytes that are ready, and the number of samples at the output rate in them.
        """
        if fade:
            ramp = np.zeros(len(pcm), np.float32)
            length = min(len(pcm), round(FADE_SECONDS * self._rate))
            ramp[:length] = np.linspace(1, 0, length, dtype=np.float32)
            pcm = pcm * ramp
        if self._gain != 1:
            pcm = np.clip(pcm * np.float32(self._gain), -1, 1)
        samples = self._resampler.push(pcm)
        return self._encoder.push(samples), len(samples)

    def silence(self) -> tuple[bytes, int]:
        """Returns a moment of silence, as ``push`` does, in place of no audio at all.

        Many clients take missing audio for a failure, and players reject a file without any.
        """
        return self.push(np.zeros(round(SILENCE_SECONDS * self._rate), np.float32))

    def flush_tail(self) -> tuple[bytes, int]:
        """Returns what the resampler holds back, as if silence followed; more can follow."""
        if not self._resampler.held_samples:
            return b"", 0
        samples = self._resampler.flush()
        self._resampler = StreamResampler(*self._conversion)
        return self._encoder.push(samples), len(samples)

    def end(self) -> tuple[bytes, int]:
        """Returns everything held back, as ``push`` does; nothing can follow."""
        samples = self._resampler.flush()
        return self._encoder.push(samples) + self._encoder.flush(), len(samples)
