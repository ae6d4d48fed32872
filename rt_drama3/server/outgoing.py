"""Outgoing: one stream's audio on its way to the client, from the engine's chunks to bytes.

Pure computation; about 0.2 ms for a chunk, so it runs on the event loop. Making one may take some
milliseconds (tables of a resampler, an encoder), so that is done in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from rt_drama3.audio import StreamEncoder, StreamResampler
from rt_drama3.audio.stream_resample import Quality
from rt_drama3.protocol import SpeechOrder

BREATH_SECONDS = 0.01  # of silence for text without words
FADE_SECONDS = 0.02  # of speech that is cut off; long enough not to click
Samples = npt.NDArray[np.float32]


class Outgoing:
    """Gain, resampler and encoder of one stream.

    Args:
        order: names the output.
        sample_rate: of the model, Hz.

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

    def push(self, pcm: Samples, *, fade: bool = False) -> tuple[bytes, int]:
        """Converts the next samples.

        Args:
            pcm: float32 ``[samples]`` at the model's rate.
            fade: these are the last ones, and end in silence.

        Returns:
            What is ready, and how many samples at the output rate it stands for.
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

    def breath(self) -> tuple[bytes, int]:
        """Returns a moment of silence, as ``push`` does, instead of nothing at all.

        Many clients take no audio for a failure, and no player a file without any.
        """
        return self.push(np.zeros(round(BREATH_SECONDS * self._rate), np.float32))

    def rest(self) -> tuple[bytes, int]:
        """Returns what the resampler held back, as if silence followed; more can follow."""
        if not self._resampler.held_samples:
            return b"", 0
        samples = self._resampler.flush()
        self._resampler = StreamResampler(*self._conversion)
        return self._encoder.push(samples), len(samples)

    def end(self) -> tuple[bytes, int]:
        """Returns what was held back, as ``push`` does; nothing can follow."""
        samples = self._resampler.flush()
        return self._encoder.push(samples) + self._encoder.flush(), len(samples)


class Pace:
    """How far behind realtime a client's reading is, from the time spent waiting for it.

    Somebody who plays as they read takes a second for a second of audio and is never behind.

    Args:
        allowed: seconds.
        clock: seconds, as ``time.monotonic``.
    """

    def __init__(self, allowed: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.allowed = allowed
        self._clock = clock
        self._behind = 0.0
        self._began = 0.0

    def begin(self) -> float:
        """Waiting begins; returns the seconds after which it has been too long."""
        self._began = self._clock()
        return self.allowed - self._behind

    def end(self, audio_seconds: float) -> None:
        """Waiting is over, and so much audio goes out."""
        waited = self._clock() - self._began
        self._behind = max(0.0, self._behind + waited - audio_seconds)


class Playback:
    """What a listener hears who plays at once: counts the gaps.

    Args:
        clock: seconds, as ``time.monotonic``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: float | None = None

    def play(self, audio_seconds: float, new_text: bool) -> bool:
        """Takes audio; true when the listener ran dry before it, and not for want of text."""
        now = self._clock()
        dry = self._ends is not None and now > self._ends
        start = now if self._ends is None or dry else self._ends
        self._ends = start + audio_seconds
        return dry and not new_text
