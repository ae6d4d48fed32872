"""What the streaming resampler costs and holds back, beside soxr.

Run it with ``python -m rt_drama3_bench.resample``.

Both are fed the same codec frames in turns, on one core, and timed by the processor time of the
thread, so that a busy neighbour disturbs neither. Held back is how much of what was pushed has not
come out yet, as time.

    python -m rt_drama3_bench.resample --json resample.json
    python -m rt_drama3_bench.resample --check      # exit code 1 when a target is missed
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from rt_drama3.audio.stream_resample import Quality, StreamResampler
from rt_drama3_bench.environment import environment

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
        median_us, p95_us: processor time of a frame, in microseconds.
        held_ms, max_held_ms: mean and maximum of what is held back after a frame, in milliseconds.
        first_ms: how much of the first frame comes out with it, in milliseconds.
        design_ms: time to make the first resampler of these rates, in milliseconds.
        times_us, held: all samples behind them.
    """

    quality: str
    to_rate: int
    median_us: float
    p95_us: float
    held_ms: float
    max_held_ms: float
    first_ms: float
    design_ms: float
    times_us: list[float] = field(repr=False)
    held: list[float] = field(repr=False)

    @property
    def met(self) -> bool:
        if self.quality != "low_latency":
            return True
        return self.median_us <= MAX_MICROSECONDS and self.max_held_ms <= MAX_HELD_MS


class Side:
    """One resampler being measured."""

    def __init__(self, quality: Quality, to_rate: int) -> None:
        started = time.thread_time()
        self.resampler = StreamResampler(FROM_RATE, to_rate, quality)
        self.design = time.thread_time() - started
        self.seconds: list[float] = []
        self.held: list[float] = []
        self.taken = self.given = self.first = 0

    def push(self, frame: np.ndarray) -> None:
        """Converts a frame and takes the figures."""
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
            statistics.quantiles(times, n=20)[-1],
            1e3 * statistics.fmean(self.held),
            1e3 * max(self.held),
            1e3 * self.first / self.resampler.to_rate,
            1e3 * self.design,
            times,
            [1e3 * seconds for seconds in self.held],
        )


def measure(to_rate: int, frames: int = FRAMES) -> list[Figures]:
    """Runs both qualities side by side, over so many frames."""
    sides = [Side(quality, to_rate) for quality in QUALITIES]
    random = np.random.default_rng(0)
    for _ in range(WARM_UP + frames):
        frame = random.standard_normal(FRAME).astype(np.float32)
        for side in sides:
            side.push(frame)
    return [side.figures() for side in sides]


def main() -> int:
    """Runs everything; see the module docstring."""
    parser = argparse.ArgumentParser(description="Cost and delay of the streaming resampler.")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    options = parser.parse_args()
    rows = [figures for to_rate in TO_RATES for figures in measure(to_rate)]
    table = Table(title=f"{FROM_RATE} Hz, frames of {FRAME} samples")
    for heading in (
        *("to, Hz", "quality", "us/frame", "p95", "held back, ms", "max"),
        *("of the first frame, ms", "to make, ms", ""),
    ):
        table.add_column(heading, justify="left" if heading == "quality" else "right")
    for row in rows:
        table.add_row(
            *(str(row.to_rate), row.quality, f"{row.median_us:.1f}", f"{row.p95_us:.1f}"),
            *(f"{row.held_ms:.2f}", f"{row.max_held_ms:.2f}", f"{row.first_ms:.1f}"),
            *(f"{row.design_ms:.1f}", "ok" if row.met else "MISS"),
        )
    Console().print(table)
    if options.json:
        report = {"environment": environment(), "figures": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(report, indent=1))
    return 0 if all(row.met for row in rows) or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
