"""A sink on an event loop: the same interface, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from rt_drama3.sinks.pcm_format import Pcm, PcmFormat
from rt_drama3.sinks.sink import FADE_MS, Sink, SinkStats


class AsyncSink:
    """Runs a sink's blocking calls in one thread of its own, so that the loop never blocks.

    Calls run in order. ``stop`` overtakes them: a ``write`` or ``drain`` in progress returns.
    Cancelling ``await write(...)`` or ``await drain()`` stops the sink too, since the samples would
    otherwise still be played. Errors are the sink's. It can be created anywhere and is used from
    one loop.

    Args:
        sink: any sink; this object owns it from now on.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"sink {sink.name}")
        self._stopper = ThreadPoolExecutor(1, thread_name_prefix=f"stop {sink.name}")

    @property
    def name(self) -> str:
        """The sink's name."""
        return self._sink.name

    @property
    def stats(self) -> SinkStats:
        """The sink's statistics; never blocks."""
        return self._sink.stats

    async def open(self, format: PcmFormat) -> None:
        await self._run(lambda: self._sink.open(format))

    async def write(self, pcm: Pcm) -> None:
        await self._stopped_if_cancelled(lambda: self._sink.write(pcm))

    async def finish(self) -> None:
        await self._run(self._sink.finish)

    async def drain(self) -> None:
        await self._stopped_if_cancelled(self._sink.drain)

    async def stop(self, fade_ms: float = FADE_MS) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._stopper, self._sink.stop, fade_ms)

    async def close(self) -> None:
        """Stops and closes the sink, and ends the threads."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._stopper, self._sink.close)
        finally:
            self._worker.shutdown(wait=False, cancel_futures=True)
            self._stopper.shutdown(wait=False)

    async def _run(self, call: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._worker, call)

    async def _stopped_if_cancelled(self, call: Callable[[], None]) -> None:
        try:
            await self._run(call)
        except asyncio.CancelledError:
            self._stopper.submit(self._sink.stop)
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            if kind is None:
                await self.drain()
        finally:
            await self.close()
