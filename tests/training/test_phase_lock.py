"""The locked phase: where it must stand at codec frames, and how little it may move the pitch."""

from __future__ import annotations

import numpy as np

from training.phase_lock import (
    HOP,
    LOWEST,
    PITCH_CODES,
    STEPS,
    TEACHER_RATE,
    boundary,
    lock,
    pitch_codes,
)


def _glide() -> np.ndarray:
    """f0 that glides from 150 to 260 Hz, with a pause inside."""
    f0 = np.linspace(150, 260, 160).astype(np.float32)
    f0[70:85] = 0
    return f0


def test_frames_inside_a_voiced_run_start_at_quarter_cycles() -> None:
    start = 777
    phase, _, voiced = lock(_glide(), start)
    seen = 0
    for frame in range(1, 40):
        at = boundary(frame) - start
        if 0 < at < len(phase) - 1 and voiced[at - 1] and voiced[at]:
            quarter = phase[at] * 4
            assert abs(quarter - round(quarter)) < 1e-6
            seen += 1
    assert seen > 20


def test_pitch_moves_little() -> None:
    phase, pitch, voiced = lock(_glide(), 0)
    inside = voiced[1:] & voiced[:-1]
    ratio = (np.diff(phase) * TEACHER_RATE)[inside] / pitch[:-1][inside]
    assert np.all(np.abs(ratio - 1) < 0.03)
    assert len(phase) == len(_glide()) * HOP


def test_codes_encode_start_phase_and_advance() -> None:
    phase, _, voiced = lock(_glide(), 0)
    frames = len(phase) // boundary(1)
    codes = pitch_codes(phase, voiced, frames)
    assert codes.max() < PITCH_CODES
    quarters, advances = np.divmod(codes - 1, STEPS)
    followed = 0
    for frame in range(frames - 1):
        pair = codes[frame : frame + 2]
        if (pair > 0).all() and (quarters[frame : frame + 2] < 4).all():
            reached = (quarters[frame] + advances[frame] + LOWEST) % 4
            whole = voiced[boundary(frame) : boundary(frame + 1) + 1].all()
            if whole:
                assert reached == quarters[frame + 1]
                followed += 1
    assert followed > 20


def test_silence_has_the_unvoiced_code() -> None:
    phase, _, voiced = lock(np.zeros(40, np.float32), 0)
    assert not voiced.any()
    assert not pitch_codes(phase, voiced, 10).any()
