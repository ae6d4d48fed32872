"""Work in another process: its messages, and an error when it dies."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

import pytest

from rt_drama3_bench import worker
from rt_drama3_bench.errors import BenchError

WAIT = 120.0  # seconds that an interpreter may take to start


def adds(number: int, pipe: Connection) -> None:
    pipe.send(number + pipe.recv())


def dies(pipe: Connection) -> None:
    os._exit(3)


def test_both_ends_of_the_pipe_work() -> None:
    process, pipe = worker.start(adds, 40)
    pipe.send(2)
    assert worker.receive(pipe) == 42
    process.join(WAIT)
    assert process.exitcode == 0


def test_a_process_that_died_is_an_error() -> None:
    process, pipe = worker.start(dies)
    with pytest.raises(BenchError, match="a process of the measurement died"):
        worker.receive(pipe)
    process.join(WAIT)
    assert process.exitcode == 3
