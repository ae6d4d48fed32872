"""Work in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from rt_drama3_bench.errors import BenchError

T = TypeVar("T")


def run(work: Callable[..., T], *arguments: object) -> T:
    """Returns ``work(*arguments)`` of a new process, or raises what it raised.

    Raises:
        BenchError: the process died.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(work, *arguments).result()
        except BrokenProcessPool as error:
            raise BenchError(
                "a process of the measurement died; its error is above, on standard error."
            ) from error
