"""Workers: the threads for what would hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

LONG_MESSAGE = 32_768  # bytes; larger ones are unpacked in a thread
T = TypeVar("T")


class Workers:
    """Thread pools for work of different lengths, so that the short never waits for the long."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(4, thread_name_prefix="rt-drama3-server")
        self._unpacking = ThreadPoolExecutor(2, thread_name_prefix="rt-drama3-unpack")
        self._decoding = ThreadPoolExecutor(2, thread_name_prefix="rt-drama3-clips")
        self._encoding = ThreadPoolExecutor(1, thread_name_prefix="rt-drama3-voices")
        self._takes = ThreadPoolExecutor(32, thread_name_prefix="rt-drama3-takes")

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Starts work of milliseconds."""
        return self._short.submit(work, *arguments)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Does work of milliseconds."""
        return await _in(self._short, work, *arguments)

    async def decode(self, work: Callable[..., T], *arguments: Any) -> T:
        """Does work on clips: of seconds at worst, for which no other kind of work waits."""
        return await _in(self._decoding, work, *arguments)

    async def encode(self, work: Callable[..., T], *arguments: Any) -> T:
        """Does work of seconds; one at a time, so that streams keep their cores."""
        return await _in(self._encoding, work, *arguments)

    async def wait(self, work: Callable[..., T], *arguments: Any) -> T:
        """Does work that mostly waits for the engine."""
        return await _in(self._takes, work, *arguments)

    async def unpack(self, work: Callable[..., T], parts: Sequence[bytes], *arguments: Any) -> T:
        """Calls ``work`` with the bytes of a message: here, or in a thread if it is large."""
        if sum(map(len, parts)) <= LONG_MESSAGE:
            return work(b"".join(parts), *arguments)
        return await _in(self._unpacking, lambda: work(b"".join(parts), *arguments))

    def close(self) -> None:
        """Ends the threads; what has not started is cancelled."""
        pools = (self._short, self._unpacking, self._decoding, self._encoding, self._takes)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)


async def _in(pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
