"""The engine's decisions as pure functions of times: decode batches, prefill, admission. No torch.

All times are seconds. *Buffered* is the audio that a listener was given beyond what a player that
started with the first chunk has played by now; at 0 an underrun begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SAFETY = 0.010  # reserve for timer jitter and hand-over between threads


@dataclass
class Estimate:
    """A duration learned from samples: quick to rise, slow to fall, so it errs on the long side.

    Attributes:
        seconds: the current estimate; None before the first sample.
    """

    seconds: float | None = None

    def add(self, sample: float) -> None:
        """Adds a measured duration."""
        if self.seconds is None:
            self.seconds = sample
        else:
            weight = 0.5 if sample > self.seconds else 0.1
            self.seconds += weight * (sample - self.seconds)

    def or_else(self, default: float) -> float:
        """The estimate, or a default before there is one."""
        return default if self.seconds is None else self.seconds


@dataclass
class Costs:
    """Durations on this machine, learned while running.

    Attributes:
        step: by batch size.
        chunk: one prefill chunk.
        decode: by size of the decode batch, of one stream.
    """

    step: dict[int, Estimate] = field(default_factory=dict)
    chunk: Estimate = field(default_factory=Estimate)
    decode: dict[int, Estimate] = field(default_factory=dict)

    def step_seconds(self, size: int) -> float:
        """One step at a batch size; unknown sizes take the nearest known, scaled by size."""
        return _nearest(self.step, size)

    def decode_seconds(self, frames: int) -> float:
        """Decoding one batch; unknown sizes take the nearest known, scaled by size."""
        return _nearest(self.decode, frames)


def _nearest(known: Mapping[int, Estimate], size: int) -> float:
    # A list first: the codec's thread may add a size meanwhile.
    samples = [(n, e.seconds) for n, e in list(known.items()) if e.seconds is not None]
    if not samples:
        return 0.0
    best, seconds = min(samples, key=lambda sample: (abs(sample[0] - size), sample[0]))
    return seconds if best >= size else seconds * size / best


def batch_size(
    buffered: float, ceiling: int, previous: int, step: float, costs: Costs, floor: int = 1
) -> int:
    """Frames to decode together: at most twice the previous batch, and what the buffer covers.

    A batch of n makes its first frame wait for n - 1 further steps; the listener must not run dry
    in the meantime.

    Args:
        buffered: of the listener; before the first chunk it is 0.
        ceiling: largest batch.
        previous: frames of the batch before, 0 at the beginning.
        step: seconds of one step at the present number of rows.
        costs: of decoding.
        floor: smallest batch.

    Returns:
        1, 2, 4, .. up to the ceiling, and never below the floor.
    """
    allowed = min(ceiling, max(1, 2 * previous))
    size = 1
    while 2 * size <= allowed and _covers(buffered, min(2 * size, allowed), step, costs):
        size *= 2
    if size < allowed < 2 * size and _covers(buffered, allowed, step, costs):
        size = allowed  # a ceiling that is not a power of two
    return max(size, floor)


def _covers(buffered: float, frames: int, step: float, costs: Costs) -> bool:
    return buffered >= frames * step + costs.decode_seconds(frames) + SAFETY


def may_prefill(buffered: Iterable[float], chunk: float, step: float, decode: float) -> bool:
    """Whether one prefill chunk can run before the next step without an underrun.

    Args:
        buffered: of each listener that is playing.
        chunk: seconds of the chunk.
        step, decode: seconds until the next audio once the chunk is done.
    """
    return all(seconds >= chunk + step + decode + SAFETY for seconds in buffered)


def load_with(streams: int, costs: Costs, frame: float, overlapped: bool) -> float:
    """Share of realtime that ``streams`` streams take; above 1 there would be underruns.

    Args:
        streams: rows of the batch.
        costs: learned costs.
        frame: seconds of audio in a frame.
        overlapped: whether decoding runs concurrently with the steps.
    """
    step = costs.step_seconds(streams)
    decode = streams * min((costs.decode_seconds(n) / n for n in list(costs.decode)), default=0.0)
    return (max(step, decode) if overlapped else step + decode) / frame
