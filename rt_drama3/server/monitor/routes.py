"""/v1/listen and /v1/stop: hearing what others have spoken, and muting it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from rt_drama3.protocol import (
    ListenOptions,
    ListenSession,
    Mute,
)
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.wire import parse_json
from rt_drama3.server import access, origins
from rt_drama3.server.http.requests import read_body, reports_errors, request_id, service_of
from rt_drama3.server.monitor.broadcaster import Broadcaster
from rt_drama3.server.pace import unsent_bytes
from rt_drama3.server.service import Service
from rt_drama3.server.ws.admission import admit
from rt_drama3.server.ws.outbox import REPLY_BYTES, Outbox

log = logging.getLogger("rt_drama3.server")

ROUTE = "/v1/listen"
STOP_BYTES = 1_024  # of its body
CLOSE_SECONDS = 5.0  # for the last messages and the close frame to leave


async def listen(websocket: WebSocket) -> None:
    """``WS /v1/listen``."""
    service: Service = websocket.app.state.service
    broadcaster = service.broadcaster
    assert broadcaster is not None  # otherwise there is no such route

    async def serve(name: str) -> None:
        options = ListenOptions.read(
            websocket.query_params, service.facts, service.config.sink_mode
        )
        await websocket.accept(access.subprotocol(websocket), [(b"x-request-id", name.encode())])
        await Listener(service, broadcaster, websocket, options, name).run()

    await admit(websocket, ROUTE, origins.check_listener, serve)


class Listener:
    """One listener.

    Args:
        service, broadcaster: those of the server.
        websocket: accepted.
        options: rate and mode.
        name: for logs.
    """

    def __init__(
        self,
        service: Service,
        broadcaster: Broadcaster,
        websocket: WebSocket,
        options: ListenOptions,
        name: str,
    ) -> None:
        self._service, self._broadcaster, self._websocket = service, broadcaster, websocket
        self._options, self._name = options, name
        self._session = ListenSession(service.facts, service.limits)
        self._outbox = Outbox(websocket)
        self._max_bytes = round(2 * options.sample_rate * broadcaster.seconds)  # queued
        self._ending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serves the listener until the connection ends."""
        fields = {"id": self._name, "route": ROUTE}
        log.info("connected", extra={"fields": {**fields, **vars(self._options)}})
        self._session.ready(self._options, self._broadcaster.captions)
        self._flush()
        most = self._service.config.send_buffer
        self._outbox.limit_unsent(unsent_bytes(2 * self._options.sample_rate, most))
        self._broadcaster.join(self, self._options)
        try:
            await self._read()
        finally:
            self._broadcaster.leave(self, self._options)
            if self._ending is not None:
                await asyncio.wait({self._ending})
            elif self._outbox.closing and not await self._outbox.finished(CLOSE_SECONDS):
                await self._outbox.close_now((), 1011, "stuck")
            await self._outbox.stop()
            closed = self._session.close_frame
            by = closed[1] if closed else "client"
            log.info("disconnected", extra={"fields": {**fields, "by": by}})

    def put(self, messages: Sequence[bytes]) -> None:
        """Sends what others speak; a listener too far behind is disconnected and may reconnect."""
        if self._ending is not None:
            return
        self._outbox.put(messages)
        if self._outbox.queued_bytes > self._max_bytes:
            seconds = self._broadcaster.seconds
            self._close("slow_client", f"{seconds:g} s of audio were not read.", now=True)

    def stop(self) -> None:
        """Closes the connection: the server stops."""
        self._close("shutting_down", "the server is stopping.")

    async def _read(self) -> None:
        while not self._outbox.closing:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")  # a large one arrives empty, which is an error, too
            events = self._session.receive(message.get("text", "") if data is None else data)
            self._flush()
            if any(isinstance(event, Mute) for event in events):
                log.info("stop", extra={"fields": {"id": self._name, "route": ROUTE}})
                await self._broadcaster.mute()
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._outbox.below(self._max_bytes + REPLY_BYTES)
            except TimeoutError:
                self._close("slow_client", "answers were not read.", now=True)

    def _flush(self) -> None:
        self._outbox.put(self._session.data_to_send())
        if self._session.close_frame is not None:
            self._outbox.close(*self._session.close_frame)

    def _close(self, code: str, message: str, *, now: bool = False) -> None:
        """Ends the connection; ``now``: without waiting for what was not read."""
        self._service.metrics.errors.labels(code).inc()
        self._session.close(code, message)
        if not now:
            self._flush()
        elif self._ending is None and self._session.close_frame is not None:
            last = self._session.data_to_send()
            ending = self._outbox.close_now(last, *self._session.close_frame)
            self._ending = asyncio.create_task(ending)


@reports_errors()
async def stop(request: Request) -> Response:
    """``POST /v1/stop``: mutes everything."""
    service, name = service_of(request), request_id(request)
    broadcaster = service.broadcaster
    assert broadcaster is not None  # otherwise there is no such route
    service.access.check_key(request.headers.get("authorization"))
    origin, host = request.headers.get("origin"), request.headers.get("host")
    origins.check_listener(service.config, origin, host)
    # Not counted as a connection: it has to work even at that limit.
    body = b"".join(await read_body(request, STOP_BYTES, service.config.body_seconds))
    cancel = Fields(parse_json(body, service.limits)).flag("cancel") if body else False
    await broadcaster.mute()
    cut = service.drain.cut() if cancel else 0
    log.info("stop", extra={"fields": {"id": name, "cancelled": cut}})
    return JSONResponse({"status": "quiet", "cancelled": cut}, headers={"X-Request-Id": name})
