"""Work in another process: its result, its error, and an error when it dies."""

from __future__ import annotations

import os

import pytest

from rt_drama3_bench import worker
from rt_drama3_bench.errors import BenchError


def process_and_sum(*numbers: int) -> tuple[int, int]:
    return os.getpid(), sum(numbers)


def refuses() -> None:
    raise BenchError("the server refused: overloaded")


def dies() -> None:
    os._exit(3)


def test_the_result_comes_from_another_process() -> None:
    process, total = worker.run(process_and_sum, 40, 2)
    assert total == 42
    assert process != os.getpid()


def test_an_error_of_the_work_is_the_error() -> None:
    with pytest.raises(BenchError, match="the server refused: overloaded"):
        worker.run(refuses)


def test_a_process_that_died_is_an_error() -> None:
    with pytest.raises(BenchError, match="a process of the measurement died"):
        worker.run(dies)
