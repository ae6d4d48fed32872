"""Messages leave in order, and immediately while the line is free."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket

from rt_drama3.server.transport.control import EXTENSION
from rt_drama3.server.ws.outbox import Outbox
from tests.small import WAIT


class Line:
    """A WebSocket whose line can be busy."""

    def __init__(self, now: bool = True) -> None:
        self.sent: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.free = asyncio.Event()
        self.free.set()
        self.scope: dict[str, Any] = {"extensions": {EXTENSION: self} if now else {}}

    def send_now(self, data: bytes) -> bool:
        if self.free.is_set():
            self.sent.append(data)
        return self.free.is_set()

    async def send_bytes(self, data: bytes) -> None:
        await self.free.wait()
        self.sent.append(data)

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


def outbox(line: Line) -> Outbox:
    return Outbox(cast(WebSocket, line))


def test_a_message_leaves_within_the_turn() -> None:
    async def main() -> None:
        line = Line()
        box = outbox(line)
        box.put([b"1", b"2"])
        assert line.sent == [b"1", b"2"]  # nothing was awaited
        await box.stop()

    asyncio.run(main())


@pytest.mark.parametrize("now", [True, False])
def test_messages_keep_their_order_whatever_the_line_does(now: bool) -> None:
    async def main() -> None:
        line = Line(now)
        box = outbox(line)
        box.put([b"1"])
        line.free.clear()
        box.put([b"2", b"3"])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.below(0), 0.01)
        line.free.set()
        box.put([b"4"])  # the line is free, but others are in front
        await asyncio.wait_for(box.below(0), WAIT)
        box.put([b"5"])
        box.close(1000, "done")
        box.put([b"6"])
        assert await box.finished(WAIT)
        assert line.sent == [b"1", b"2", b"3", b"4", b"5"]
        assert line.closed == (1000, "done")

    asyncio.run(main())
