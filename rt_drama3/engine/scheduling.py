"""The engine's decisions as pure functions of times: groups, prefill, admission, pauses. No torch.

All times are seconds. A listener's *lead* is the audio it has been given beyond what a player that
started with the first chunk has played by now; at 0 an underrun begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SAFETY = 0.010  # kept in hand for timer jitter and hand-over between threads


@dataclass
class Estimate:
    """A duration learned from samples: quick to rise, slow to fall, so it errs on the long side.

    Attributes:
        seconds: the current estimate; None before the first sample.
    """

    seconds: float | None = None

    def add(self, sample: float) -> None:
        """Takes a measured duration in."""
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
    """What things cost on this machine, learned while running.

    Attributes:
        step: by batch size.
        block: one prefill block.
        decode: by group size, of one stream.
    """

    step: dict[int, Estimate] = field(default_factory=dict)
    block: Estimate = field(default_factory=Estimate)
    decode: dict[int, Estimate] = field(default_factory=dict)

    def step_seconds(self, size: int) -> float:
        """One step at a batch size; unknown sizes take the nearest known, scaled by size."""
        return _nearest(self.step, size)

    def decode_seconds(self, frames: int) -> float:
        """Decoding one group; unknown sizes take the nearest known, scaled by size."""
        return _nearest(self.decode, frames)


def _nearest(known: Mapping[int, Estimate], size: int) -> float:
    # A list first: the codec's thread may add a size meanwhile.
    samples = [(n, e.seconds) for n, e in list(known.items()) if e.seconds is not None]
    if not samples:
        return 0.0
    best, seconds = min(samples, key=lambda sample: (abs(sample[0] - size), sample[0]))
    return seconds if best >= size else seconds * size / best


def group_size(
    lead: float, ceiling: int, previous: int, step: float, costs: Costs, floor: int = 1
) -> int:
    """Frames to gather before decoding: at most twice the previous group, only what lead covers.

    A group of n keeps its first frame waiting for n - 1 further steps; the listener must not run
    dry in the meantime.

    Args:
        lead: of the listener; before the first chunk it is 0.
        ceiling: largest group.
        previous: frames of the group before, 0 at the beginning.
        step: seconds of one step at the present batch.
        costs: what decoding costs.
        floor: smallest group.

    Returns:
        1, 2, 4, .. up to the ceiling, and never below the floor.
    """
    allowed = min(ceiling, max(1, 2 * previous))
    size = 1
    while 2 * size <= allowed and _covers(lead, min(2 * size, allowed), step, costs):
        size *= 2
    if size < allowed < 2 * size and _covers(lead, allowed, step, costs):
        size = allowed  # a ceiling that is no power of two
    return max(size, floor)


def _covers(lead: float, frames: int, step: float, costs: Costs) -> bool:
    return lead >= frames * step + costs.decode_seconds(frames) + SAFETY


def may_prefill(leads: Iterable[float], block: float, step: float, decode: float) -> bool:
    """Whether one prefill block can run before the next step without anyone running dry.

    Args:
        leads: of the listeners that are playing.
        block: seconds of the block.
        step, decode: seconds until the next audio once the block is done.
    """
    return all(lead >= block + step + decode + SAFETY for lead in leads)


def load_with(streams: int, costs: Costs, frame: float, overlapped: bool) -> float:
    """Share of realtime that ``streams`` streams take; above 1 someone would stutter.

    Args:
        streams: rows of the batch.
        costs: learned costs.
        frame: seconds of audio in a frame.
        overlapped: whether decoding runs beside the steps.
    """
    step = costs.step_seconds(streams)
    decode = streams * min((costs.decode_seconds(n) / n for n in list(costs.decode)), default=0.0)
    return (max(step, decode) if overlapped else step + decode) / frame
