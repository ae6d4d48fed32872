"""create_app: every route of the server as one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from rt_drama3.protocol import Refused, error_headers, fish_error, new_request_id, openai_error
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.http import pages, routes
from rt_drama3.server.http import speech as http
from rt_drama3.server.monitor import routes as listen_routes
from rt_drama3.server.service import Service
from rt_drama3.server.ws import routes as live_routes
from rt_drama3.sinks import Sink

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3
    from rt_drama3.engine.engine import Engine

NO_ROUTE = "no_such_route"
EXPOSED = ["X-Request-Id", "X-Sample-Rate", "X-Channels", "X-Bit-Depth", "X-Notice", "Retry-After"]


def create_app(
    drama: Drama3 | None = None,
    engine: Engine | None = None,
    config: ServerConfig | None = None,
    name: str = "nano",
    sink: Sink | None = None,
) -> Starlette:
    """Creates the application; its ``state.service`` is the shared state.

    Args:
        drama: None while it is being loaded; then call ``state.service.attach``.
        engine: None is that of ``drama``.
        config: settings; None are the defaults.
        name: the model's name for clients.
        sink: plays clients' speech, in place of the one that ``config`` names; the server opens it
            by ``state.service.broadcaster.sink_open``.

    Raises:
        SinkError: this system has no sink of the kind that ``config`` names.
    """
    settings = config or ServerConfig()
    service = Service(settings, name, sink)
    if drama is not None:
        service.attach(drama, engine or drama.engine)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        service.close()

    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.cors_origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],  # SDKs add their own; access depends on the origin
        allow_private_network=True,  # public pages ask for it before they call this machine
        expose_headers=EXPOSED,
    )
    app = Starlette(
        routes=[
            *pages.routes(settings),
            Route("/health", routes.health),
            Route("/ready", routes.ready),
            Route("/metrics", routes.prometheus),
            Route("/openapi.json", routes.openapi),
            Route("/v1/models", routes.models),
            Route("/v1/models/", routes.models),
            Route("/v1/models/{name:path}", routes.one_model),
            Route("/v1/voices", routes.list_voices, methods=["GET"]),
            Route("/v1/voices", routes.add_voice, methods=["POST"]),
            Route("/v1/voices/{name}", routes.one_voice, methods=["GET", "DELETE"]),
            Route("/v1/tts", http.tts, methods=["POST"]),
            Route("/v1/audio/speech", http.openai_speech, methods=["POST"]),
            Route("/v1/audio/voices", routes.audio_voices),
            Route("/v1/audio/models", routes.audio_models),
            WebSocketRoute("/v1/stream", live_routes.stream),
            WebSocketRoute("/v1/tts/live", live_routes.tts_live),
            *_listening_routes(service),
        ],
        middleware=[Middleware(_Slashes), *([cors] if settings.cors_origins else [])],
        exception_handlers={HTTPException: _no_such_route},
        lifespan=lifespan,
    )
    app.state.service = service
    app.router.default = _unrouted(app.router.default)
    return app


class _Slashes:
    """Treats ``//v1/..`` as ``/v1/..``: a base URL may end in a slash.

    Some clients add a slash of their own, and none of them explains the 404. One at the end of a
    WebSocket's path is dropped, too; over HTTP the router redirects such a request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            path = "/" + scope["path"].lstrip("/")
            if scope["type"] == "websocket":
                path = path.rstrip("/")
            if path != scope["path"]:
                scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)


def _listening_routes(service: Service) -> list[BaseRoute]:
    """The routes for listening, if the operator enabled it."""
    found: list[BaseRoute] = []
    if service.broadcaster is not None:
        found.append(Route("/v1/stop", listen_routes.stop, methods=["POST"]))
    if service.config.listen:
        found.append(WebSocketRoute("/v1/listen", listen_routes.listen))
    return found


def _unrouted(default: ASGIApp) -> ASGIApp:
    """Answers requests without a route; Starlette would call a WebSocket forbidden."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await default(scope, receive, send)
            return
        websocket, name = WebSocket(scope, receive, send), new_request_id()
        error = _missing("WebSocket", websocket.url.path)
        status, body = fish_error(error, name)
        await websocket.send_denial_response(JSONResponse(body, status, error_headers(error, name)))

    return answer


_HINTS = {
    "/v1/stream": "is a WebSocket route; proxies must forward the Upgrade header",
    "/v1/tts/live": "is a WebSocket route; proxies must forward the Upgrade header",
    "/v1/listen": "is a WebSocket route of rt-drama3 serve --listen",
    "/audio/speech": "is /v1/audio/speech here; the base URL of OpenAI's clients ends in /v1",
    "/audio/voices": "is /v1/audio/voices here; the base URL of OpenAI's clients ends in /v1",
    "/audio/models": "is /v1/audio/models here; the base URL of OpenAI's clients ends in /v1",
    "/models": "is /v1/models here; the base URL of OpenAI's clients ends in /v1",
    "/obs": "is enabled by rt-drama3 serve --listen",
    "/v1/stop": "is enabled by rt-drama3 serve --listen or --sink, for POST",
}


def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    name = new_request_id()
    refused = _missing(request.method, request.url.path, error.detail)
    # Either API may have been meant: OpenAI's SDKs read one part, Fish's the other.
    _, fish = fish_error(refused, name)
    _, openai = openai_error(refused, name)
    body = {**fish, **openai, "status": error.status_code}
    headers = {**(error.headers or {}), **error_headers(refused, name)}
    return JSONResponse(body, error.status_code, headers)


def _missing(method: str, path: str, detail: str = "Not Found") -> Refused:
    """The 404 error for a path without a route, or without one for that method."""
    path = path[:200]
    known = _HINTS.get(path)
    if path.startswith("/v1/v1/"):
        known = "has /v1 twice; the base URL of this client ends before it"
    more = f" {path} {known}." if known else ""
    return Refused(NO_ROUTE, f"{method} {path}: {detail}.{more}")
