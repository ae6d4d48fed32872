"""A bare WebSocket server that sends recorded messages at their times: the floor of ``server``.

The time between its ``send`` and the client's ``recv`` belongs to the machine and the library; what
our server adds to that is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import msgpack
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from rt_drama3_bench import worker

LARGEST = 64 << 20  # bytes of the message that brings the others


def measure(messages: Sequence[tuple[float, bytes]]) -> list[float]:
    """Milliseconds from sent to received, of each message.

    Args:
        messages: when each came, in seconds, and its bytes.
    """
    process, pipe = worker.start(_serve)
    try:
        return asyncio.run(_client(worker.receive(pipe), messages))
    finally:
        with contextlib.suppress(OSError):  # it has died
            pipe.send("end")
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


async def _client(port: int, messages: Sequence[tuple[float, bytes]]) -> list[float]:
    first = messages[0][0] if messages else 0.0
    order = [[at - first, data] for at, data in messages]
    url = f"ws://127.0.0.1:{port}"
    came: list[float] = []
    async with connect(url, proxy=None, compression=None, max_size=LARGEST) as socket:
        await socket.send(msgpack.packb(order))
        for _ in order:
            await socket.recv()
            came.append(time.monotonic())
        sent = msgpack.unpackb(await socket.recv())
    return [1e3 * (at - before) for at, before in zip(came, sent, strict=True)]


def _serve(pipe: Connection) -> None:
    asyncio.run(_repeat(pipe))


async def _repeat(pipe: Connection) -> None:
    async def answer(socket: ServerConnection) -> None:
        order = msgpack.unpackb(await socket.recv())
        started = time.monotonic()
        sent: list[float] = []
        for after, data in order:
            await asyncio.sleep(max(0.0, started + after - time.monotonic()))
            sent.append(time.monotonic())
            await socket.send(data)
        await socket.send(msgpack.packb(sent))

    async with serve(answer, "127.0.0.1", 0, compression=None, max_size=LARGEST) as server:
        pipe.send(next(iter(server.sockets)).getsockname()[1])
        await asyncio.to_thread(pipe.recv)
