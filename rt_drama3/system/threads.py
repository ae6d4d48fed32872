"""The number of CPU threads, and the device, that torch uses in threads of ours.

torch keeps the number per thread (it is OpenMP's), but a thread that computes for the first time
takes the latest one set in any thread. Code that sets it must therefore restore its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def compute_threads(count: int | None) -> Iterator[None]:
    """Computes with ``count`` threads inside the block; None changes nothing.

    Also for blocks that start threads which call ``use_threads``: afterwards the number of the
    calling thread, and of threads started later, is as before.
    """
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def use_threads(count: int | None) -> None:
    """Sets the number of threads that the calling thread computes with; None changes nothing."""
    torch.get_num_threads()  # takes the latest number now, so that it does not happen later
    if count is not None:
        torch.set_num_threads(count)


def use_device(device: torch.device) -> None:
    """Sets the default CUDA device of the calling thread, which CUDA events use, too."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
