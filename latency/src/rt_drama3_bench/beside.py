"""Work in a process of its own, which tells what it found through a pipe."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from rt_drama3.errors import DeviceError


def start(work: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """Runs ``work(*arguments, pipe)`` in a new process; returns it, and this end of the pipe."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(*arguments, there))
    process.start()
    there.close()  # so that the pipe ends with the process, and nobody waits for one that died
    return process, here


def told(pipe: Connection) -> Any:
    """Waits for what the other process tells.

    Raises:
        DeviceError: it died without a word.
    """
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError) as error:
        raise DeviceError(
            "a process of the measurement died; what it died of is above, on standard error."
        ) from error
