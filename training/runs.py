"""Shared by both trainings: the progress of a run, and atomic checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import torch


class Length(Protocol):
    """The length of a run: a number of steps or, if that is 0, of minutes."""

    @property
    def steps(self) -> int: ...

    @property
    def minutes(self) -> float: ...


def share_done(length: Length, step: int, elapsed: float) -> float:
    """Share of a run that is done after ``step`` steps and ``elapsed`` seconds."""
    if length.steps:
        return step / length.steps
    return elapsed / (60 * length.minutes)


def save_whole(state: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint to a temporary file, then replaces the old one atomically."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)
