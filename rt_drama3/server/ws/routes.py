"""The WebSocket routes: access checks, and the session of each dialect."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from rt_drama3.errors import RtDrama3Error
from rt_drama3.protocol import (
    FishLiveSession,
    NativeSession,
    Session,
    as_refused,
    error_headers,
    fish_error,
    new_request_id,
)
from rt_drama3.server import access, origins
from rt_drama3.server.service import Service
from rt_drama3.server.ws.connection import LiveConnection

log = logging.getLogger("rt_drama3.server")


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
    address = websocket.client.host if websocket.client else ""
    connection_id = new_request_id()
    try:
        service.access.check_key(access.authorization(websocket))
        asked = websocket.headers
        origins.check_handshake(service.config, asked.get("origin"), asked.get("host"))
        service.check_ready()
        with service.access.connection(address, route):
            idle = f"{service.limits.idle_seconds:g}".encode()
            headers = [(b"x-request-id", connection_id.encode()), (b"x-idle-seconds", idle)]
            await websocket.accept(access.subprotocol(websocket), headers)
            connection = LiveConnection(service, websocket, make(), route, connection_id)
            with service.drain.conversation(connection):
                await connection.run()
    except RtDrama3Error as error:
        status, body = fish_error(error, connection_id)
        service.metrics.errors.labels(as_refused(error).code).inc()
        log.info("refused", extra={"fields": {"id": connection_id, "route": route, **body}})
        response = JSONResponse(body, status, error_headers(error, connection_id))
        await websocket.send_denial_response(response)
    except WebSocketDisconnect:
        pass  # during the handshake
