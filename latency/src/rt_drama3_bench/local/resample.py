"""What the streaming resampler costs and holds back, next to soxr HQ: ``rt-drama3 bench resample``.

Both get the same codec frames in turns, on one core, and are timed by the processor time of the
thread, so that other processes disturb neither. Held back is how much of what was pushed has not
come out yet, as time.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import numpy as np

from rt_drama3.audio.stream_resample import Quality, StreamResampler

FROM_RATE, FRAME = 44_100, 2_048
TO_RATES = (8_000, 16_000, 24_000, 48_000)
QUALITIES: tuple[Quality, ...] = ("low_latency", "high")
FRAMES, WARM_UP = 1_000, 50
MAX_MICROSECONDS, MAX_HELD_MS = 150.0, 2.0  # of low_latency


@dataclass(frozen=True)
class Figures:
    """One quality at one rate.

    Attributes:
        quality, to_rate: what was measured; ``high`` is soxr HQ.
        median_us: processor time of a frame, in microseconds.
        held_ms, max_held_ms: mean and maximum of what is held back after a frame, in milliseconds.
        first_ms: how much of the first frame comes out with it, in milliseconds.
        design_ms: time to make the first resampler of these rates, in milliseconds.
        times_us, held: all samples behind them.
    """

    quality: str
    to_rate: int
    median_us: float
    held_ms: float
    max_held_ms: float
    first_ms: float
    design_ms: float
    times_us: list[float] = field(repr=False)
    held: list[float] = field(repr=False)


class MeasuredResampler:
    """One resampler being measured."""

    def __init__(self, quality: Quality, to_rate: int) -> None:
        started = time.thread_time()
        self.resampler = StreamResampler(FROM_RATE, to_rate, quality)
        self.design = time.thread_time() - started
        self.seconds: list[float] = []
        self.held: list[float] = []
        self.taken = self.given = self.first = 0

    def push(self, frame: np.ndarray) -> None:
        """Converts a frame and records the figures."""
        started = time.thread_time()
        ready = self.resampler.push(frame)
        self.seconds.append(time.thread_time() - started)
        if not self.taken:
            self.first = ready.size
        self.taken += frame.size
        self.given += ready.size
        self.held.append(self.taken / FROM_RATE - self.given / self.resampler.to_rate)

    def figures(self) -> Figures:
        times = [1e6 * seconds for seconds in self.seconds[WARM_UP:]]
        return Figures(
            self.resampler.quality,
            self.resampler.to_rate,
            statistics.median(times),
            1e3 * statistics.fmean(self.held),
            1e3 * max(self.held),
            1e3 * self.first / self.resampler.to_rate,
            1e3 * self.design,
            times,
            [1e3 * seconds for seconds in self.held],
        )


def measure(to_rate: int, frames: int = FRAMES) -> list[Figures]:
    """Times both qualities in turns."""
    sides = [MeasuredResampler(quality, to_rate) for quality in QUALITIES]
    random = np.random.default_rng(0)
    for _ in range(WARM_UP + frames):
        frame = random.standard_normal(FRAME).astype(np.float32)
        for side in sides:
            side.push(frame)
    return [side.figures() for side in sides]
