"""The WebSocket routes: access checks, and the session of each dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.websockets import WebSocket

from rt_drama3.protocol import FishLiveSession, NativeSession, Session
from rt_drama3.server import access, origins
from rt_drama3.server.service import Service
from rt_drama3.server.ws.admission import admit
from rt_drama3.server.ws.connection import LiveConnection


async def stream(websocket: WebSocket) -> None:
    """``/v1/stream``."""
    service: Service = websocket.app.state.service
    await _serve(
        websocket, service, "/v1/stream", lambda: NativeSession(service.facts, service.limits)
    )


async def tts_live(websocket: WebSocket) -> None:
    """``/v1/tts/live``."""
    service: Service = websocket.app.state.service
    model = websocket.headers.get("model", "")
    await _serve(
        websocket,
        service,
        "/v1/tts/live",
        lambda: FishLiveSession(service.facts, service.limits, model=model),
    )


async def _serve(
    websocket: WebSocket, service: Service, route: str, make: Callable[[], Session[Any]]
) -> None:
    async def serve(name: str) -> None:
        idle = f"{service.limits.idle_seconds:g}".encode()
        headers = [(b"x-request-id", name.encode()), (b"x-idle-seconds", idle)]
        await websocket.accept(access.subprotocol(websocket), headers)
        connection = LiveConnection(service, websocket, make(), route, name)
        with service.drain.conversation(connection):
            await connection.run()

    await admit(websocket, route, origins.check_handshake, serve)
