"""/v1/listen and /v1/stop: who may hear what is spoken, and who may silence it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from rt_drama3.errors import RtDrama3Error
from rt_drama3.protocol import (
    Close,
    Event,
    Hush,
    ListenOptions,
    ListenSession,
    Send,
    as_refused,
    error_headers,
    fish_error,
    new_request_id,
)
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.wire import parse_json
from rt_drama3.server import browser_keys, origins
from rt_drama3.server.http.speech import error_response, read_body, request_id, service_of
from rt_drama3.server.monitor.hub import Hub
from rt_drama3.server.service import Service
from rt_drama3.server.ws.outbox import REPLY_BYTES, Outbox

log = logging.getLogger("rt_drama3.server")

ROUTE = "/v1/listen"
LARGEST_STOP = 1_024  # bytes of its body
CLOSE_SECONDS = 5.0  # for the last words and the close frame to leave


async def listen(websocket: WebSocket) -> None:
    """``WS /v1/listen``."""
    service: Service = websocket.app.state.service
    hub = service.hub
    assert hub is not None  # else there is no such route
    address = websocket.client.host if websocket.client else ""
    name = new_request_id()
    try:
        service.check_key(browser_keys.authorization(websocket))
        origin, host = websocket.headers.get("origin"), websocket.headers.get("host")
        origins.check_listener(service.config, origin, host)
        service.check_ready()
        options = ListenOptions.read(
            websocket.query_params, service.facts, service.config.sink_mode
        )
        with service.client(address, ROUTE):
            headers = [(b"x-request-id", name.encode())]
            await websocket.accept(browser_keys.subprotocol(websocket), headers)
            await Listener(service, hub, websocket, options, name).run()
    except RtDrama3Error as error:
        status, body = fish_error(error, name)
        service.metrics.errors.labels(as_refused(error).code).inc()
        log.info("refused", extra={"fields": {"id": name, "route": ROUTE, **body}})
        response = JSONResponse(body, status, error_headers(error, name))
        await websocket.send_denial_response(response)
    except WebSocketDisconnect:
        pass  # during the handshake


class Listener:
    """One listener.

    Args:
        service, hub: of the server.
        websocket: accepted.
        options: what it asked for.
        name: for logs.
    """

    def __init__(
        self, service: Service, hub: Hub, websocket: WebSocket, options: ListenOptions, name: str
    ) -> None:
        self._service, self._hub, self._websocket = service, hub, websocket
        self._options, self._name = options, name
        self._session = ListenSession(service.facts, service.limits)
        self._outbox = Outbox(websocket)
        self._most = round(2 * options.sample_rate * hub.seconds)  # bytes that may wait
        self._closed_by = "client"
        self._ending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serves the listener until the connection ends."""
        fields = {"id": self._name, "route": ROUTE}
        log.info("connected", extra={"fields": {**fields, **vars(self._options)}})
        self._outbox.put([self._session.ready(self._options, self._hub.captions)])
        self._hub.join(self, self._options)
        try:
            await self._read()
        finally:
            self._hub.leave(self, self._options)
            if self._ending is not None:
                await asyncio.wait({self._ending})
            elif self._outbox.closing and not await self._outbox.finished(CLOSE_SECONDS):
                await self._outbox.close_now((), 1011, "stuck")
            await self._outbox.stop()
            log.info("disconnected", extra={"fields": {**fields, "by": self._closed_by}})

    def put(self, messages: Sequence[bytes]) -> None:
        """Sends what is heard; who is too far behind is ended and may connect anew."""
        if self._ending is not None:
            return
        self._outbox.put(messages)
        if self._outbox.queued_bytes > self._most:
            seconds = self._hub.seconds
            self._close("slow_client", f"{seconds:g} s of audio were not read.", at_once=True)

    def stop(self) -> None:
        """Ends the connection: the server stops."""
        self._close("shutting_down", "the server is stopping.")

    async def _read(self) -> None:
        while not self._outbox.closing:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")  # a large one comes empty, which is as wrong
            for event in self._session.receive(message.get("text", "") if data is None else data):
                if isinstance(event, Hush):
                    log.info("stop", extra={"fields": {"id": self._name, "route": ROUTE}})
                    await self._hub.hush()
                else:
                    self._act(event)
            try:
                await self._outbox.below(self._most + REPLY_BYTES, CLOSE_SECONDS)
            except TimeoutError:
                self._close("slow_client", "answers were not read.", at_once=True)

    def _act(self, event: Event) -> None:
        if isinstance(event, Send):
            self._outbox.put((event.data,))
        elif isinstance(event, Close):
            self._closed_by = event.reason
            self._outbox.close(event.code, event.reason)

    def _close(self, code: str, message: str, *, at_once: bool = False) -> None:
        """Ends the connection; at once is without waiting for what was not read."""
        self._service.metrics.errors.labels(code).inc()
        events = self._session.close(code, message)
        if not at_once:
            for event in events:
                self._act(event)
            return
        said = [event.data for event in events if isinstance(event, Send)]
        for event in events:
            if isinstance(event, Close) and self._ending is None:
                self._closed_by = event.reason
                ending = self._outbox.close_now(said, event.code, event.reason)
                self._ending = asyncio.create_task(ending)


async def stop(request: Request) -> Response:
    """``POST /v1/stop``: be quiet now."""
    service, name = service_of(request), request_id(request)
    hub = service.hub
    assert hub is not None  # else there is no such route
    try:
        service.check_key(request.headers.get("authorization"))
        origin, host = request.headers.get("origin"), request.headers.get("host")
        origins.check_listener(service.config, origin, host)
        # Connections are not counted here: it has to work where there are too many.
        body = b"".join(await read_body(request, LARGEST_STOP, service.config.body_seconds))
        cancel = Fields(parse_json(body, service.limits)).flag("cancel") if body else False
        await hub.hush()
        cut = service.cut() if cancel else 0
    except RtDrama3Error as error:
        return error_response(service, error, name)
    except ClientDisconnect:
        return Response(status_code=499)  # nobody reads it
    log.info("stop", extra={"fields": {"id": name, "cancelled": cut}})
    return JSONResponse({"status": "quiet", "cancelled": cut}, headers={"X-Request-Id": name})
