"""HTTP speech: ``POST /v1/tts`` (Fish) and ``POST /v1/audio/speech`` (OpenAI).

The response's head is sent when its first bytes exist, so whatever goes wrong before is an HTTP
error; the body goes out chunk by chunk, and a client that leaves stops its speech at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from rt_drama3.errors import RtDrama3Error
from rt_drama3.protocol import (
    Refused,
    SpeechOrder,
    as_refused,
    audio_headers,
    error_headers,
    fish_error,
    new_request_id,
    openai_error,
    parse_fish_tts,
    parse_openai_speech,
    split_audio,
    sse_delta,
    sse_done,
    sse_error,
    take_of,
)
from rt_drama3.server.origins import check_request
from rt_drama3.server.outgoing import Pace, Playback
from rt_drama3.server.service import Opened, Service
from rt_drama3.server.transport.control import HttpControl, control_of

if TYPE_CHECKING:
    from rt_drama3.engine.speech import Speech
    from rt_drama3.scenes.best_of import Chosen

log = logging.getLogger("rt_drama3.server")

_REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)

T = TypeVar("T")
Errors = Callable[[RtDrama3Error, str], tuple[int, dict[str, Any]]]


def service_of(request: Request) -> Service:
    """The server's shared state."""
    service: Service = request.app.state.service
    return service


def request_id(request: Request) -> str:
    """The client's ``X-Request-Id`` where it is a plain word, else a new one."""
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else new_request_id()


def error_response(
    service: Service, error: RtDrama3Error, name: str, shape: Errors = fish_error
) -> Response:
    """An error in the shape of its API; counts and logs it."""
    refused = as_refused(error)
    service.metrics.errors.labels(refused.code).inc()
    fields = {"id": name, "code": refused.code}
    log.info("refused", extra={"fields": fields})
    if refused.code == "internal":
        log.error("request %s failed: %s", name, error)
    status, body = shape(refused, name)
    return JSONResponse(body, status, error_headers(refused, name))


async def read_body(request: Request, most: int, seconds: float) -> list[bytes]:
    """The body in the parts in which it came; joining a large one is left to a thread.

    Args:
        request: not read yet.
        most: bytes it may have.
        seconds: for all of it to come.

    Raises:
        Refused: ``too_large`` or ``idle``.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise Refused("too_large", f"the body has {length} bytes; at most {most} may be.")
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > most:
                    raise Refused("too_large", f"the body has more than {most} bytes.")
    except TimeoutError:
        raise Refused(
            "idle", f"the body did not come within {seconds:g} s (body_seconds); {size} bytes did."
        ) from None
    return parts


async def read_limited(request: Request, service: Service) -> list[bytes]:
    """``read_body`` within the server's limits."""
    return await read_body(request, service.limits.message_bytes, service.config.body_seconds)


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Does something for a client whose body was read, and stops when the client leaves.

    Raises:
        ClientDisconnect: it left.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.wait({task, gone})


async def tts(request: Request) -> Response:
    """``POST /v1/tts``."""
    service = service_of(request)

    def parse(body: bytes) -> SpeechOrder:
        kind = request.headers.get("content-type", "")
        model = request.headers.get("model", "")
        return parse_fish_tts(body, kind, service.facts, service.limits, model)

    return await _speech(request, "/v1/tts", parse, fish_error)


async def openai_speech(request: Request) -> Response:
    """``POST /v1/audio/speech``."""
    service = service_of(request)

    def parse(body: bytes) -> SpeechOrder:
        kind = request.headers.get("content-type", "")
        return parse_openai_speech(body, service.facts, service.limits, kind)

    return await _speech(request, "/v1/audio/speech", parse, openai_error)


async def _speech(
    request: Request, route: str, parse: Callable[[bytes], SpeechOrder], shape: Errors
) -> Response:
    service, name = service_of(request), request_id(request)
    accepted = time.monotonic()
    address = request.client.host if request.client else ""
    with contextlib.ExitStack() as until_over:
        try:
            service.check_key(request.headers.get("authorization"))
            check_request(service.config, request.headers.get("origin"))
            service.check_ready()
            until_over.enter_context(service.client(address, route))
            order = await service.unpack(parse, await read_limited(request, service))
        except RtDrama3Error as error:
            return error_response(service, error, name, shape)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        return SpeechResponse(service, order, name, route, accepted, shape, until_over.pop_all())


class SpeechResponse(Response):
    """Speaks an order as the body of a response.

    Args:
        service: of the server.
        order: what to speak.
        name: request id.
        route: for metrics and logs.
        accepted: when the request came.
        shape: of errors.
        until_over: closed when the response is over.
    """

    def __init__(
        self,
        service: Service,
        order: SpeechOrder,
        name: str,
        route: str,
        accepted: float,
        shape: Errors,
        until_over: contextlib.ExitStack,
    ) -> None:
        super().__init__()
        self._service = service
        self._order = order
        self._name = name
        self._route = route
        self._accepted = accepted
        self._shape = shape
        self._until_over = until_over
        self._begun = False
        self._send: Send | None = None
        self._sent = 0
        self._work: asyncio.Task[None] | None = None
        self._speech: Speech | Chosen | None = None
        self._cut = False
        self._stopped = False
        self._complete = False

    def cut(self) -> int:
        """Ends what is being spoken, for the operator; returns how much that was."""
        self._cut = True
        if self._speech is not None:
            self._speech.cancel()
        return 1

    def drain(self) -> None:
        """See ``Service.drain``: what is spoken is spoken to its end."""

    def stop(self) -> None:
        """See ``Service.drain``."""
        self._stopped = True
        if self._work is not None:
            self._work.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        with self._until_over:
            self._work = asyncio.create_task(self._serve(scope, receive))
            gone = asyncio.create_task(_until_gone(receive))
            try:
                await asyncio.wait({self._work, gone}, return_when=asyncio.FIRST_COMPLETED)
                there = not gone.done()
            finally:
                for task in (self._work, gone):
                    task.cancel()
                await asyncio.wait({self._work, gone})
            if there and self._stopped and not self._complete:
                error = Refused("shutting_down", "the server is stopping.")
                await self._fail(error, scope, receive)
            control: HttpControl | None = control_of(scope)
            if there and not self._complete and control is not None:
                control.abort_response()  # the reason is logged already

    async def _serve(self, scope: Scope, receive: Receive) -> None:
        service = self._service
        service.metrics.requests.labels(self._route).inc()
        opened = None
        try:
            with service.conversation(self):
                opened = await service.open(self._order)
                self._order = opened.order
                await self._speak(opened)
        except RtDrama3Error as error:
            await self._fail(error, scope, receive)
        except TimeoutError:
            await self._fail(Refused("slow_client", "audio was not read."), scope, receive)
        except OSError:
            pass  # the client is gone
        except Exception as error:
            log.error("request %s failed", self._name, exc_info=error)
            await self._fail(RtDrama3Error("a bug"), scope, receive)
        finally:
            fields = {"id": self._name, "route": self._route, "sent_bytes": self._sent}
            fields["waited"] = service.waited(opened.speech if opened else None)
            log.info("request ended", extra={"fields": fields})

    async def _fail(self, error: RtDrama3Error, scope: Scope, receive: Receive) -> None:
        response = error_response(self._service, error, self._name, self._shape)
        assert self._send is not None
        if not self._begun:
            await response(scope, receive, self._send)
            self._complete = True
        elif self._order.sse:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await self._put(sse_error(error, self._name))
                    await self._put(b"", last=True)
        # Else the body stays without its end, which every client takes for a failure.

    async def _speak(self, opened: Opened) -> None:
        speech = opened.chosen or opened.speech
        outgoing, service = opened.outgoing, self._service
        pace, playback = Pace(service.config.slow_seconds), Playback()
        summary, told, sounded = None, -1, False
        self._speech = speech
        heard = None if service.hub is None else service.hub.lane().begin(self._name)
        try:
            if speech is not None:
                async for chunk in speech:
                    self._check_cut()
                    fading = service.fading
                    data, _ = outgoing.push(chunk.pcm, fade=fading)
                    sounded = True
                    if not self._begun and data:
                        service.metrics.first_audio.observe(time.monotonic() - self._accepted)
                    async with asyncio.timeout(max(pace.begin(), 0.001)):
                        await self._audio(data)
                    pace.end(chunk.seconds)
                    service.metrics.added.observe(time.monotonic() - chunk.stamps.decoded)
                    if heard is not None:
                        heard.take(chunk, speech)
                    if playback.play(chunk.seconds, chunk.segment != told):
                        service.metrics.underruns.inc()
                    told = chunk.segment
                    if fading:
                        break
                else:
                    self._check_cut()
                    summary = await speech.summary()
            silence = b"" if sounded or service.fading else outgoing.breath()[0]
            data = silence + outgoing.end()[0]
            async with asyncio.timeout(max(pace.begin(), 0.001)):
                await self._audio(data, last=True)
            if heard is not None and summary is not None:
                heard.end()
        finally:
            if speech is not None:
                if not speech.ended:
                    reason = "shutting_down" if service.fading else "disconnect"
                    service.metrics.cancels.labels(reason).inc()
                speech.cancel()
            if heard is not None:
                heard.cancel()  # nothing, once it has ended
        outcome = service.outcome(summary, self._order)
        if self._order.sse:
            tokens = await service.in_thread(service.tokens, self._order.text)
            take = take_of(outcome) if self._order.take else None
            await self._put(sse_done(tokens, outcome.frames, take))
        await self._put(b"", last=True)

    def _check_cut(self) -> None:
        if self._cut:
            raise Refused("stopped", "the operator stopped all speech.")

    async def _audio(self, data: bytes, last: bool = False) -> None:
        """Sends audio, the head before the first of it."""
        if data or last:
            await self._begin()
        self._service.metrics.sent.labels(self._route).inc(len(data))
        self._sent += len(data)
        width = self._order.output.kind.sample_bytes
        for part in split_audio(data, self._service.limits.audio_bytes, width):
            await self._put(sse_delta(part) if self._order.sse else part)

    async def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        headers = audio_headers(self._order, self._name)
        headers["Cache-Control"] = "no-store"
        raw = [
            (key.lower().encode(), value.encode("latin-1", "replace"))
            for key, value in headers.items()
        ]
        assert self._send is not None
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _put(self, data: bytes, last: bool = False) -> None:
        assert self._send is not None
        if data or last:
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})
            self._complete = self._complete or last


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
