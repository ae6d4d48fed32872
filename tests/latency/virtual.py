"""Virtual time: an event loop whose clock only moves while all tasks sleep."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Does not wait: the clock jumps by the timeout instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout is not None and timeout > 0:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module docstring; for code without sockets and threads."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def spend(self, seconds: float) -> None:
        """Work that holds the loop for so long."""
        self._clock.now += seconds


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
