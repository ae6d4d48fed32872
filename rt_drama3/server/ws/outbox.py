"""Outbox: the only writer of a WebSocket; ordered and bounded.

Audio waits for the queue to drain; replies do not, up to a limit. So reading never waits for
writing, and a lost client is noticed however full the connection is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from starlette.websockets import WebSocket, WebSocketDisconnect

from rt_drama3.server.transport.control import WebSocketControl, control_of

REPLY_BYTES = 256 << 10  # of queued replies above which no more messages are read


class Outbox:
    """Messages queued for one client.

    Args:
        websocket: accepted.

    Attributes:
        handed: bytes of all messages put so far.
    """

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._queue: deque[bytes] = deque()
        self._control: WebSocketControl | None = control_of(websocket.scope)
        self._bytes = 0  # of queued messages
        self.handed = 0
        self._close: tuple[int, str] | None = None
        self._over = False
        self._more = asyncio.Event()
        self._less = asyncio.Event()
        self._writer = asyncio.create_task(self._write())

    def put(self, messages: Iterable[bytes]) -> None:
        """Sends messages, or queues them while the line is busy; after ``close``, drops them."""
        control = self._control
        for message in messages:
            if self._close is None and not self._over:
                self.handed += len(message)
                if not self._queue and control is not None and control.send_now(message):
                    continue
                self._queue.append(message)
                self._bytes += len(message)
                self._more.set()

    def close(self, code: int, reason: str) -> None:
        """Closes the connection once the queue is empty."""
        if self._close is None:
            self._close = (code, reason)
            self._more.set()

    @property
    def closing(self) -> bool:
        """Whether further messages are dropped."""
        return self._close is not None or self._over

    @property
    def queued_bytes(self) -> int:
        """Bytes queued."""
        return self._bytes

    def held(self) -> int:
        """Bytes that the client has not acknowledged, as far as the system reports them."""
        return self._bytes + (0 if self._control is None else self._control.held())

    def limit_unsent(self, size: int) -> None:
        """Bounds the bytes that wait below this queue."""
        if self._control is not None:
            self._control.limit_unsent(size)

    def expect_pongs(self, due: Callable[[], float | None]) -> None:
        """See ``WebSocketControl``."""
        if self._control is not None:
            self._control.expect_pongs(due)

    async def below(self, size: int) -> None:
        """Waits until ``size`` bytes or fewer are queued, or the client is gone."""
        while self._bytes > size and not self._over:
            self._less.clear()
            await self._less.wait()

    async def finished(self, seconds: float) -> bool:
        """Waits until everything is sent and the connection closed; false on timeout."""
        done, _ = await asyncio.wait({self._writer}, timeout=seconds)
        return bool(done)

    async def stop(self) -> None:
        """Stops writing; queued messages are dropped."""
        self._writer.cancel()
        await asyncio.wait({self._writer})

    async def close_now(self, messages: Sequence[bytes], code: int, reason: str) -> None:
        """Closes a stuck connection: drops the queue, sends ``messages`` and a close frame."""
        await self.stop()
        if self._control is not None:
            self._control.close_now(messages, code, reason)

    async def _write(self) -> None:
        try:
            while True:
                while self._queue:
                    await self._websocket.send_bytes(self._queue[0])
                    self._bytes -= len(self._queue.popleft())
                    self._less.set()
                if self._close is not None:
                    await self._websocket.close(*self._close)
                    return
                self._more.clear()
                await self._more.wait()
        except (WebSocketDisconnect, RuntimeError):
            pass  # gone, or closed by uvicorn for a broken frame; the reader sees it, too
        finally:
            self._over = True
            self._less.set()
