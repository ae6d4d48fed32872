"""Glottal phase on a grid: at every codec frame the teacher's pulses stand at a quarter cycle.

The teacher filters a pulse train made from f0. If the phase of that train at the start of each
codec frame is one of four values, and its advance over the frame a whole number of quarter cycles,
then the waveform inside the frame follows from one small code, and a decoder can be trained by
plain regression instead of adversarially. To get there f0 moves by at most about one percent.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from training.clips import FRAME_SAMPLES, SAMPLE_RATE, Numbers

TEACHER_RATE = 24_000
HOP = 300  # samples of the teacher's f0 grid (80 Hz)
FRAME = FRAME_SAMPLES * TEACHER_RATE / SAMPLE_RATE  # codec frame in the teacher's samples
LOWEST, HIGHEST = 20, 66  # quarter cycles in a frame, 107 to 355 Hz
STEPS = HIGHEST - LOWEST + 1
PITCH_CODES = 1 + 5 * STEPS  # unvoiced; start phases 0, 1/4, 1/2, 3/4 and "starts unvoiced"
_FLOOR, _VOICED = 40.0, 60.0  # Hz
_LEAST_VOICED = 60  # samples that make a frame voiced

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def boundary(frame: int) -> int:
    """First teacher sample of a codec frame."""
    return round(frame * FRAME)


def lock(f0: npt.NDArray[np.float32], start: int) -> tuple[Floats, Floats, Mask]:
    """Phase of the pulse train, moved onto the grid.

    Args:
        f0: Hz on the 80 Hz grid, below 40 where unvoiced.
        start: teacher sample at which this f0 begins in its clip.

    Returns:
        Phase in cycles, fundamental in Hz and voicing, each ``[len(f0) * 300]``.
    """
    clipped = np.where(f0 > _FLOOR, np.clip(f0, 110, 350), f0).astype(np.float64)
    centres = (np.arange(len(f0)) + 0.5) * HOP - 0.5
    pitch = np.interp(np.arange(len(f0) * HOP), centres, clipped)
    voiced = pitch > _VOICED
    pitch = np.maximum(pitch, _VOICED)
    cycles = np.concatenate([[0.0], np.cumsum(pitch)]) / TEACHER_RATE
    phase = cycles[:-1].copy()
    edges = np.flatnonzero(np.diff(np.concatenate([[0], voiced.astype(np.int8), [0]])))
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        _lock_run(phase, cycles, int(begin), int(end), start)
    return phase, pitch, voiced


def _lock_run(phase: Floats, cycles: Floats, begin: int, end: int, start: int) -> None:
    """Rewrites the phase of one voiced run ``[begin, end)`` in place."""
    frame = int(np.ceil((start + begin) / FRAME))
    marks: list[int] = []
    while boundary(frame) - start < end:
        marks.append(max(boundary(frame) - start, begin))
        frame += 1
    if not marks:
        phase[begin:end] = cycles[begin:end] - cycles[begin]
        return
    first = marks[0]
    phase[begin:first] = cycles[begin:first] - cycles[first]  # reaches 0 at the first boundary
    reached = 0.0
    for mark, following in pairwise(marks):
        total = cycles[following] - cycles[mark]
        whole = round(total * 4) / 4
        phase[mark:following] = reached + (cycles[mark:following] - cycles[mark]) * (whole / total)
        reached += whole
    last = marks[-1]
    phase[last:end] = reached + cycles[last:end] - cycles[last]


def pitch_codes(phase: Floats, voiced: Mask, frames: int) -> Numbers:
    """One code per codec frame: its start phase in quarters and quarter cycles it runs through.

    0 is unvoiced; else ``1 + p * STEPS + (n - LOWEST)`` with p = 0..3 the start phase, 4 when the
    frame starts unvoiced, and n the advance that its fundamental makes in a whole frame.

    Args:
        phase, voiced: from ``lock``, of the whole clip.
        frames: codec frames of the clip.
    """
    codes = np.zeros(frames, np.int64)
    for frame in range(frames):
        begin, end = boundary(frame), min(boundary(frame + 1), len(phase))
        inside = voiced[begin:end]
        if begin >= len(phase) or inside.sum() < _LEAST_VOICED:
            continue
        steps = np.diff(phase[begin:end])[inside[1:] & inside[:-1]]
        step = float(np.median(steps)) if len(steps) else _VOICED / TEACHER_RATE
        if inside.all() and end - begin > FRAME - 20:
            step = (phase[end - 1] - phase[begin] + step) / (end - begin)
        advance = int(np.clip(round(4 * step * FRAME), LOWEST, HIGHEST))
        quarter = round(phase[begin] * 4) % 4 if inside[0] else 4
        codes[frame] = 1 + quarter * STEPS + advance - LOWEST
    return codes
