"""A server whose /v1/listen or /v1/stream says what the test wants; the rest of it is real."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from rt_drama3.server import access
from rt_drama3.server.app import create_app
from rt_drama3.server.config import ServerConfig
from tests.server.tools import run_app
from tests.small import shared_drama


class Script:
    """The server's side of every listener that comes."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[dict[str, str]] = []  # the queries of those who came
        self._open: list[WebSocket] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def listen(self, websocket: WebSocket) -> None:
        """The route."""
        self._loop = asyncio.get_running_loop()
        await websocket.accept(access.subprotocol(websocket))
        query = dict(websocket.query_params)
        self.asked.append(query)
        self._open.append(websocket)
        await websocket.send_bytes(
            msgpack.packb(
                {
                    "type": "ready",
                    "version": 1,
                    "sample_rate": int(query["sample_rate"]),
                    "channels": 1,
                    "format": "pcm_s16le",
                    "mode": query.get("mode", "queue"),
                    "captions": True,
                }
            )
        )
        try:
            while message := msgpack.unpackb(await websocket.receive_bytes()):
                if message["type"] == "ping":
                    answer = {"type": "pong", "data": message.get("data"), "server_ms": 0.0}
                    await websocket.send_bytes(msgpack.packb(answer))
        except WebSocketDisconnect:
            self._open.remove(websocket)

    def say(self, kind: str, **fields: Any) -> None:
        """Sends a message to every listener."""
        self.raw(msgpack.packb({"type": kind, **fields}))

    def raw(self, data: bytes) -> None:
        """Sends bytes as they are."""
        assert self._loop is not None
        for websocket in list(self._open):
            asyncio.run_coroutine_threadsafe(websocket.send_bytes(data), self._loop).result(30)

    def begin(self, stream: str, after: str | None = None) -> None:
        self.say("begin", stream=stream, request_id=stream, after=after)

    def audio(
        self, stream: str, pcm: NDArray[np.int16], first: int = 0, sizes: tuple[int, ...] = (2_048,)
    ) -> None:
        """Sends samples in messages of those sizes, over and over."""
        at = n = 0
        while at < len(pcm):
            piece = pcm[at : at + sizes[n % len(sizes)]]
            self.say("audio", stream=stream, seq=n, first_sample=first + at, pcm=piece.tobytes())
            at, n = at + len(piece), n + 1

    def segment(self, stream: str, text: str, first: int) -> None:
        self.say("segment", stream=stream, text=text, first_sample=first)

    def end(self, stream: str, samples: int, cancelled: bool = False) -> None:
        self.say("end", stream=stream, samples=samples, cancelled=cancelled)


class Talk(Script):
    """The server's side of speech: every utterance is a minute of one level, and does not end.

    Attributes:
        asked: the texts.
        level: of the next utterance.
    """

    def __init__(self) -> None:
        super().__init__()
        self.level = 4_000

    async def speak(self, websocket: WebSocket) -> None:
        """The route."""
        self._loop = asyncio.get_running_loop()
        await websocket.accept(access.subprotocol(websocket))
        self._open.append(websocket)
        try:
            while message := msgpack.unpackb(await websocket.receive_bytes()):
                for answer in self._answers(message):
                    await websocket.send_bytes(msgpack.packb(answer))
        except WebSocketDisconnect:
            self._open.remove(websocket)

    def _answers(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        name, rate = str(len(self.asked)), message.get("sample_rate")
        if message["type"] == "ping":
            yield {"type": "pong", "data": message.get("data"), "server_ms": 0.0}
        elif message["type"] == "cancel":
            yield {"type": "cancelled", "id": name, "generated": {}, "sent": {}}
        elif message["type"] == "start":
            name = str(len(self.asked) + 1)
            self.asked.append(message["text"])
            yield {"type": "ready", "id": name, "sample_rate": rate}
            yield {"type": "segment", "id": name, "text": message["text"], "first_sample": 0}
            pcm = np.full(rate // 2, self.level, "<i2").tobytes()
            for n in range(120):
                first = n * rate // 2
                at = {"id": name, "seq": n, "first_sample": first, "samples": rate // 2}
                yield {"type": "audio", **at, "audio": pcm}

    def drop(self) -> None:
        """Closes all connections, as a server that is gone."""
        assert self._loop is not None
        for websocket in list(self._open):
            asyncio.run_coroutine_threadsafe(websocket.close(1011), self._loop).result(30)


@contextmanager
def scripted(folder: Path) -> Iterator[Script]:
    """Runs a server of listeners on a free port."""
    script = Script()
    with _serving(folder, WebSocketRoute("/v1/listen", script.listen)) as script.port:
        yield script


@contextmanager
def talking(folder: Path) -> Iterator[Talk]:
    """Runs a server of speech on a free port."""
    talk = Talk()
    with _serving(folder, WebSocketRoute("/v1/stream", talk.speak)) as talk.port:
        yield talk


@contextmanager
def _serving(folder: Path, route: WebSocketRoute) -> Iterator[int]:
    config = ServerConfig(port=0, drain_seconds=0.2, data_folder=str(folder), listen=True)
    drama = shared_drama()
    app = create_app(drama, drama.engine, config)
    app.router.routes.insert(0, route)
    with run_app(app, config) as server:
        yield server.port
