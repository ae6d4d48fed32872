"""Audible seams in streamed audio: clicks, holes and repeated chunks.

A seam is where one chunk ends and the next begins. The waveform there is judged against its own
surroundings, so that a small step in a quiet vowel counts and a loud plosive does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rt_drama3_bench.metrics import Samples

AROUND = 0.010  # seconds on either side that a seam is compared with
CLICK_RATIO = 4.0  # times the sharpest bend of the surroundings
CLICK_LEAST = 0.02  # of full scale; below, it is inaudible
QUIET = 1e-4  # of full scale: what a hole is made of
LOUD = 0.01  # a hole has sound at one of its edges
HOLE = 0.005  # seconds: shorter ones are zero crossings
ALIKE = 1e-3  # relative difference of a block to its repetition
_STEP = 0.005  # seconds whose level decides between speech and pause
_NEAR = 3  # samples on either side of a seam that belong to it
_APART = 0.001  # seconds on either side that are not its surroundings: a click may last a little


@dataclass(frozen=True)
class Fault:
    """An audible fault.

    Attributes:
        kind: click, hole or repeat.
        sample: where.
        size: times the surroundings (click), or milliseconds (hole, repeat).
    """

    kind: str
    sample: int
    size: float


def check(pcm: Samples, seams: Sequence[int], rate: int) -> list[Fault]:
    """Checks all seams of one utterance.

    Args:
        pcm: float32 ``[samples]`` within -1..1.
        seams: numbers of the samples that begin a new chunk.
        rate: samples per second.
    """
    edges = [0, *seams, len(pcm)]
    faults: list[Fault] = []
    for place in range(1, len(edges) - 1):
        before, seam, after = edges[place - 1 : place + 2]
        found = (
            click(pcm, seam, rate),
            hole(pcm, seam, rate),
            repeat(pcm, before, seam, after, rate),
        )
        faults += [fault for fault in found if fault is not None]
    return faults


def click(pcm: Samples, seam: int, rate: int) -> Fault | None:
    """A bend at the seam that is far sharper than any around it."""
    reach = round(AROUND * rate)
    start, stop = max(0, seam - reach), min(len(pcm), seam + reach)
    if min(seam - start, stop - seam) < 2 * round(_APART * rate):
        return None
    bends = np.abs(np.diff(pcm[start:stop].astype(np.float64), 2))  # bends[i] is about sample i + 1
    place = seam - start - 1
    near = slice(max(0, place - _NEAR), place + _NEAR + 1)
    sharpest = float(bends[near].max())
    apart = round(_APART * rate)
    others = np.concatenate([bends[: max(0, place - apart)], bends[place + apart :]])
    usual = max(float(others.max()), CLICK_LEAST / CLICK_RATIO)
    if sharpest > CLICK_RATIO * usual:
        return Fault("click", seam, sharpest / usual)
    return None


def hole(pcm: Samples, seam: int, rate: int) -> Fault | None:
    """Digital silence that begins or ends at the seam, with sound right at one of its edges."""
    least = round(HOLE * rate)
    quiet = np.abs(pcm) < QUIET
    first = seam  # of the silence around the seam
    while first > 0 and quiet[first - 1]:
        first -= 1
    last = seam  # behind it
    while last < len(pcm) and quiet[last]:
        last += 1
    length = last - first
    if length < least or first == 0 or last == len(pcm):
        return None
    if min(abs(seam - first), abs(last - seam)) > _NEAR:
        return None
    edge = round(0.001 * rate)
    cut = max(np.abs(pcm[max(0, first - edge) : first]).max(), np.abs(pcm[last:][:edge]).max())
    return Fault("hole", seam, 1e3 * length / rate) if cut >= LOUD else None


def pause(pcm: Samples, seam: int, rate: int) -> float:
    """Milliseconds without speech around a seam: the pause that a listener hears.

    Args:
        pcm: float32 ``[samples]`` within -1..1.
        seam: number of the sample that begins the new chunk.
        rate: samples per second.
    """
    step = round(_STEP * rate)
    first, last = seam, seam  # of the quiet around the seam
    while first > 0 and _level(pcm[max(0, first - step) : first]) < LOUD:
        first = max(0, first - step)
    while last < len(pcm) and _level(pcm[last : last + step]) < LOUD:
        last = min(len(pcm), last + step)
    return 1e3 * (last - first) / rate


def _level(pcm: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(pcm, dtype=np.float64))))


def repeat(pcm: Samples, before: int, seam: int, after: int, rate: int) -> Fault | None:
    """The chunk after the seam repeats the one before it, sample by sample."""
    length = min(seam - before, after - seam)
    one, two = pcm[before : before + length], pcm[seam : seam + length]
    level = float(np.linalg.norm(one))
    if length < round(0.001 * rate) or level < LOUD * np.sqrt(length):
        return None
    alike = float(np.linalg.norm(one - two)) <= ALIKE * level
    return Fault("repeat", seam, 1e3 * length / rate) if alike else None
