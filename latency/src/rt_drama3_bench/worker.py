"""Work in a process of its own, which sends its findings through a pipe."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from rt_drama3_bench.errors import BenchError


def start(work: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """Runs ``work(*arguments, pipe)`` in a new process; returns it and this end of the pipe."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(*arguments, there))
    process.start()
    there.close()  # so that the pipe ends with the process, and a dead one is noticed
    return process, here


def receive(pipe: Connection) -> Any:
    """Waits for the next object that the other process sends.

    Raises:
        BenchError: it died without sending one.
    """
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError) as error:
        raise BenchError(
            "a process of the measurement died; its error is above, on standard error."
        ) from error
