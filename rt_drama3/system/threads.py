"""How many CPU threads torch computes with, and on which device, for our threads alone.

torch keeps the count per thread (it is OpenMP's), but hands the latest one set anywhere to every
thread that computes for the first time. So whoever sets it for a thread of ours sets his own again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def compute_threads(count: int | None) -> Iterator[None]:
    """Computes with ``count`` threads inside the block (None: as outside).

    Also around the start of other threads that call ``use_threads``: it puts back what a thread
    outside, the caller's or a later one, computes with.
    """
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def use_threads(count: int | None) -> None:
    """The calling thread computes with ``count`` threads from now on; None changes nothing."""
    torch.get_num_threads()  # takes over the latest count, which it must not do later
    if count is not None:
        torch.set_num_threads(count)


def use_device(device: torch.device) -> None:
    """The calling thread means ``device`` from now on where it names none, as with CUDA events."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
