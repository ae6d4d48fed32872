"""Tasks in order, by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch


class Closable(Protocol):
    """What a thread works with."""

    def close(self) -> None:
        """Releases it."""


Hand = TypeVar("Hand", bound=Closable)


def in_threads(
    tasks: Sequence[Callable[[Hand], None]],
    threads: int,
    hand: Callable[[], Hand],
    alone: Sequence[bool],
) -> None:
    """Carries out tasks, each begun after the ones before it.

    Meanwhile torch computes on one thread in each of them.

    Args:
        tasks: what to do.
        threads: 1 uses that of the caller alone, and torch as it is.
        hand: makes what each thread works with.
        alone: for each task whether it must wait while another one runs of which this is true.

    Raises:
        Exception: what the earliest of the tasks that failed has raised; no task is begun then.
    """
    taking, large = threading.Lock(), threading.Lock()
    left = iter(enumerate(tasks))
    failed: dict[int, BaseException] = {}
    stopped = threading.Event()

    def work() -> None:
        mine = hand()
        try:
            while True:
                with taking:
                    number, task = next(left, (None, None))
                if number is None or task is None or failed or stopped.is_set():
                    return
                try:
                    if alone[number]:
                        with large:
                            task(mine)
                    else:
                        task(mine)
                except BaseException as error:  # noqa: BLE001 - raised again below
                    failed[number] = error
                    return
        finally:
            mine.close()

    others = [
        threading.Thread(target=work, name=f"rt-drama3-load-{number}")
        for number in range(1, threads)
    ]
    before = torch.get_num_threads()
    if others:
        torch.set_num_threads(1)
    try:
        for thread in others:
            thread.start()
        work()
        for thread in others:
            thread.join()
    finally:
        stopped.set()  # the caller was interrupted, or everything is done
        if others:
            torch.set_num_threads(before)
    if failed:
        raise failed[min(failed)]
