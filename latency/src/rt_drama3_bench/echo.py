"""A bare WebSocket server that sends recorded messages at their times: the floor of ``server``.

The time between its ``send`` and the ``recv`` of the client, which is another process, belongs to
the machine and the library; what our server adds to that is its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from rt_drama3_bench import worker


def measure(messages: Sequence[tuple[float, bytes]]) -> list[float]:
    """Milliseconds from sent to received, of each message.

    Args:
        messages: when each came, in seconds, and its bytes.
    """
    return asyncio.run(_measure(messages))


async def _measure(messages: Sequence[tuple[float, bytes]]) -> list[float]:
    sent: list[float] = []

    async def repeat(socket: ServerConnection) -> None:
        started = time.monotonic()
        for at, data in messages:
            await asyncio.sleep(max(0.0, started + at - messages[0][0] - time.monotonic()))
            sent.append(time.monotonic())
            await socket.send(data)

    async with serve(repeat, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        came = await asyncio.to_thread(worker.run, _receive, port, len(messages))
    return [1e3 * (at - before) for at, before in zip(came, sent, strict=True)]


def _receive(port: int, count: int) -> list[float]:
    return asyncio.run(_client(port, count))


async def _client(port: int, count: int) -> list[float]:
    came: list[float] = []
    async with connect(f"ws://127.0.0.1:{port}", proxy=None, compression=None) as socket:
        for _ in range(count):
            await socket.recv()
            came.append(time.monotonic())
    return came
