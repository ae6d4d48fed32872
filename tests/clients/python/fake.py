"""A scripted server, for what a real one does not do on demand; and how tests run coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgpack
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from rt_drama3_client import AsyncClient, Settings
from tests.small import WAIT

T = TypeVar("T")
RATE = 1_000
QUICK = Settings(timeout=WAIT, backoff=0.001, ping_seconds=WAIT)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine, and finds what it leaves behind."""

    async def bounded() -> T:
        async with asyncio.timeout(WAIT):
            result = await work
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:  # a task may be at its last step
            _, left = await asyncio.wait(left, timeout=WAIT)
        assert not left
        return result

    return asyncio.run(bounded(), debug=True)


class Peer:
    """The server's end of one connection."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.came: list[dict[str, Any]] = []
        self.sent = 0

    async def take(self) -> dict[str, Any]:
        message: dict[str, Any] = msgpack.unpackb(await self.socket.recv())
        self.came.append(message)
        return message

    async def take_until(self, kind: str) -> dict[str, Any]:
        while True:
            message = await self.take()
            if message["type"] == kind:
                return message

    async def say(self, kind: str, **fields: Any) -> None:
        await self.socket.send(msgpack.packb({"type": kind, **fields}))

    async def ready(self, name: str = "u1", rate: int = RATE) -> None:
        facts = {"format": "pcm", "sample_rate": rate, "frame_ms": 46.4}
        await self.say("ready", id=name, model="fake", voice="", bitrate=None, **facts)

    async def audio(self, data: bytes = b"\0\1" * 100, name: str = "u1") -> None:
        samples = len(data) // 2
        where = {"seq": self.sent, "first_sample": 0, "samples": samples}
        self.sent += 1
        await self.say("audio", id=name, audio=data, **where)

    async def segment(self, text: str, name: str = "u1") -> None:
        await self.say("segment", id=name, index=0, text=text, first_sample=0)

    async def done(self, name: str = "u1") -> None:
        facts = {"frames": 1, "segments": 1, "seed": 7, "complete": True, "timings": {"rtf": 0.5}}
        await self.say("done", id=name, sent=sent(1), **facts)

    async def cancelled(self, name: str | None = "u1", frames: int = 3) -> None:
        made = {"frames": frames, "seconds": 0.1}
        await self.say("cancelled", id=name, generated=made, sent=sent(2))

    async def error(self, code: str, scope: str, retriable: bool) -> None:
        words = {"message": "no.", "remedy": "Do it.", "retriable": retriable}
        await self.say("error", id=None, code=code, scope=scope, **words)

    def drop(self) -> None:
        self.socket.transport.abort()

    def freeze(self) -> None:
        """Neither reads nor answers, pings included, as a machine that lost its network."""
        self.socket.transport.pause_reading()

    async def speak(self) -> None:
        """One utterance as it should be."""
        await self.take_until("start")
        await self.ready()
        if not self.came[-1]["final"]:
            await self.take_until("finish")
        await self.audio()
        await self.done()


def sent(messages: int) -> dict[str, Any]:
    return {"messages": messages, "bytes": 200, "samples": 100, "seconds": 0.1}


Script = Callable[[Peer], Awaitable[None]]


class Fake:
    """The server: the n-th connection follows the n-th script, later ones the last."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self.peers: list[Peer] = []
        self.url = ""
        self._scripts = scripts

    async def handle(self, socket: ServerConnection) -> None:
        peer = Peer(socket)
        self.peers.append(peer)
        script = self._scripts[min(len(self.peers), len(self._scripts)) - 1]
        try:
            await script(peer)
            while True:  # until the client leaves
                await peer.take()
        except ConnectionClosed:
            pass

    @property
    def kinds(self) -> list[list[str]]:
        """Types of the messages on every connection."""
        return [[message["type"] for message in peer.came] for peer in self.peers]


@asynccontextmanager
async def fake(*scripts: Script, **options: Any) -> AsyncIterator[Fake]:
    server = Fake(scripts)
    settings = {"compression": None, "close_timeout": 0.1, "ping_interval": None, **options}
    async with serve(server.handle, "127.0.0.1", 0, **settings) as running:
        server.url = f"127.0.0.1:{running.sockets[0].getsockname()[1]}"
        yield server
        for peer in server.peers:
            peer.drop()


@asynccontextmanager
async def served(
    *scripts: Script, settings: Settings = QUICK, **options: Any
) -> AsyncIterator[tuple[Fake, AsyncClient]]:
    """A scripted server and a client of it."""
    async with fake(*scripts, **options) as server, AsyncClient(server.url, settings=settings) as c:
        yield server, c
