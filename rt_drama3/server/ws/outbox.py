"""Outbox: the one place from which a WebSocket is written to, in order and bounded.

Whoever has audio waits until everything before it has gone; answers to the client's messages need
not wait, up to a limit. So reading never waits for writing, and a client that vanishes is noticed
however full the line is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from starlette.websockets import WebSocket, WebSocketDisconnect

from rt_drama3.server.ws.sockets import SEND_NOW, SendNow

ANSWER_BYTES = 256 << 10  # of answers that may wait before no more messages are read


class Outbox:
    """Messages on their way to one client.

    Args:
        websocket: accepted.

    Attributes:
        left: what was not sent when the client was gone or the writing was stopped.
    """

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self.left: deque[bytes] = deque()
        self._send_now: SendNow | None = websocket.scope.get("extensions", {}).get(SEND_NOW)
        self._bytes = 0
        self._close: tuple[int, str] | None = None
        self._over = False
        self._more = asyncio.Event()
        self._less = asyncio.Event()
        self._writer = asyncio.create_task(self._write())

    def put(self, messages: Iterable[bytes]) -> None:
        """Adds messages, or sends them at once; after ``close`` they are dropped."""
        for message in messages:
            if self._close is None and not self._over:
                if not self.left and self._send_now is not None and self._send_now(message):
                    continue
                self.left.append(message)
                self._bytes += len(message)
                self._more.set()

    def close(self, code: int, reason: str) -> None:
        """Closes the connection once everything has gone."""
        if self._close is None:
            self._close = (code, reason)
            self._more.set()

    @property
    def closing(self) -> bool:
        """Whether nothing more can be put in."""
        return self._close is not None or self._over

    @property
    def waiting(self) -> int:
        """Bytes that wait."""
        return self._bytes

    async def below(self, size: int, seconds: float) -> None:
        """Waits until at most so many bytes wait, or the client is gone.

        Raises:
            TimeoutError: that took longer.
        """
        if self._bytes <= size or self._over:
            return
        async with asyncio.timeout(max(seconds, 0.001)):
            while self._bytes > size and not self._over:
                self._less.clear()
                await self._less.wait()

    async def finished(self, seconds: float) -> bool:
        """Waits until all is sent and closed; false when that takes longer."""
        done, _ = await asyncio.wait({self._writer}, timeout=seconds)
        return bool(done)

    async def stop(self) -> None:
        """Writes nothing more."""
        self._writer.cancel()
        await asyncio.wait({self._writer})

    async def _write(self) -> None:
        try:
            while True:
                while self.left:
                    await self._websocket.send_bytes(self.left[0])
                    self._bytes -= len(self.left.popleft())
                    self._less.set()
                if self._close is not None:
                    await self._websocket.close(*self._close)
                    return
                self._more.clear()
                await self._more.wait()
        except (WebSocketDisconnect, RuntimeError):
            pass  # gone, or closed by uvicorn for a broken frame; the reader is told as well
        finally:
            self._over = True
            self._less.set()
