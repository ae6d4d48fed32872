"""What both trainings do alike: how far a run is, and keeping its state whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import torch


class Length(Protocol):
    """How long a run is: so many steps, or with 0 of them so many minutes."""

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
    """Writes a checkpoint beside the old one, then puts it in its place."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)
