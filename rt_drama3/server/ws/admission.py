"""admit: the checks before a WebSocket is accepted, on every route."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from rt_drama3.errors import RtDrama3Error
from rt_drama3.protocol import as_refused, error_headers, fish_error, new_request_id
from rt_drama3.server import access
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.service import Service

log = logging.getLogger("rt_drama3.server")

CheckOrigin = Callable[[ServerConfig, str | None, str | None], None]


async def admit(
    websocket: WebSocket,
    route: str,
    check_origin: CheckOrigin,
    serve: Callable[[str], Awaitable[None]],
) -> None:
    """Admits a WebSocket, and counts it while ``serve`` runs with its id.

    An error before it is accepted becomes the response to the handshake.
    """
    service: Service = websocket.app.state.service
    name = new_request_id()
    try:
        service.access.check_key(access.authorization(websocket))
        asked = websocket.headers
        check_origin(service.config, asked.get("origin"), asked.get("host"))
        service.check_ready()
        address = websocket.client.host if websocket.client else ""
        with service.access.connection(address, route):
            await serve(name)
    except RtDrama3Error as error:
        status, body = fish_error(error, name)
        service.metrics.errors.labels(as_refused(error).code).inc()
        log.info("refused", extra={"fields": {"id": name, "route": route, **body}})
        response = JSONResponse(body, status, error_headers(error, name))
        await websocket.send_denial_response(response)
    except WebSocketDisconnect:
        pass  # during the handshake
