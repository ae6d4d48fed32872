"""A real server in a thread of the test process, and clients for it."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgpack
from starlette.applications import Starlette
from websockets.sync.client import ClientConnection, connect

from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.engine import Engine
from rt_drama3.server.app import create_app
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.service import Service
from rt_drama3.sinks import Sink
from rt_drama3.ws_server import Server
from tests.small import WAIT, admit_all, until

LONG = "This is a sentence that lingers for a while and says little. " * 40


@dataclass
class Place:
    """A running server."""

    port: int
    service: Service
    engine: Engine | None
    server: Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=WAIT, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, timeout=WAIT, **more)

    def metric(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(f"rt_drama3_{name}", labels) or 0.0

    def until_free(self) -> None:
        """Waits until the engine has no stream left."""
        engine = self.engine
        assert engine is not None
        until(lambda: not any(engine.streams().values()), "freeing the streams")

    @contextmanager
    def native(self, **more: Any) -> Iterator[Client]:
        with self.connect("/v1/stream", **more) as socket:
            yield Client(socket, "type")

    @contextmanager
    def fish(self, **more: Any) -> Iterator[Client]:
        with self.connect("/v1/tts/live", **more) as socket:
            yield Client(socket, "event")

    def connect(self, path: str, **more: Any) -> ClientConnection:
        more = {"proxy": None, "max_size": None, "max_queue": None, "open_timeout": WAIT, **more}
        return connect(f"ws://127.0.0.1:{self.port}{path}", **more)


class Client:
    """Speaks in maps over a WebSocket."""

    def __init__(self, socket: ClientConnection, key: str) -> None:
        self.socket = socket
        self.key = key

    def send(self, kind: str, **fields: Any) -> None:
        self.socket.send(msgpack.packb({self.key: kind, **fields}))

    def take(self) -> dict[str, Any]:
        message: dict[str, Any] = msgpack.unpackb(self.socket.recv(timeout=WAIT))
        return message

    def take_until(self, *kinds: str) -> list[dict[str, Any]]:
        """Messages up to and with the first of those kinds."""
        found = []
        while True:
            found.append(self.take())
            if found[-1][self.key] in kinds:
                return found


def audio_of(messages: list[dict[str, Any]]) -> bytes:
    """The audio in messages, joined."""
    return b"".join(message["audio"] for message in messages if "audio" in message)


def sse_events(text: str) -> list[dict[str, Any]]:
    """The objects of server-sent events."""
    import json

    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event]


def from_sse(events: list[dict[str, Any]]) -> bytes:
    """The audio of delta events."""
    return b"".join(base64.b64decode(event["audio"]) for event in events if "audio" in event)


@contextmanager
def run_app(app: Starlette, config: ServerConfig, load: Any = None) -> Iterator[Server]:
    server = Server(app, config)
    thread = threading.Thread(target=server.run, args=(load,), name="server")
    thread.start()
    try:
        until(lambda: server._uvicorn.started or not thread.is_alive(), "starting")
        yield server
    finally:
        server.stop()
        thread.join(WAIT)
        assert not thread.is_alive()


@contextmanager
def serving(
    drama: Drama3,
    folder: Any,
    engine: dict[str, Any] | None = None,
    sink: Sink | None = None,
    **settings: Any,
) -> Iterator[Place]:
    """A server with an engine of its own, on a free port.

    It admits streams whatever the speed of this machine.
    """
    settings = {"port": 0, "drain_seconds": 0.2, "data_folder": str(folder), **settings}
    config = ServerConfig(**settings)
    chosen = {"step_mode": "eager", "context": 1024, **(engine or {})}
    with Engine(drama.loaded, EngineConfig(**chosen)) as running:
        assert running.wait_until_warm(WAIT)
        admit_all(running)
        app = create_app(drama, running, config, sink=sink)
        with run_app(app, config) as server:
            yield Place(server.port, app.state.service, running, server)
