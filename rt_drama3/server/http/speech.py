"""HTTP speech: ``POST /v1/tts`` (Fish) and ``POST /v1/audio/speech`` (OpenAI).

The response's head is sent with its first bytes, so any failure before that is an HTTP error. The
body is sent chunk by chunk, and a client that disconnects stops its speech immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rt_drama3.engine.events import Segment, Stamps
from rt_drama3.errors import RtDrama3Error
from rt_drama3.protocol import (
    Padding,
    Refused,
    SpeechOrder,
    audio_headers,
    fish_error,
    openai_error,
    parse_fish_tts,
    parse_openai_speech,
    split_audio,
    sse_delta,
    sse_done,
    sse_error,
    take_of,
)
from rt_drama3.server.http.requests import (
    ErrorShape,
    error_response,
    read_limited,
    reports_errors,
    request_id,
    service_of,
    until_gone,
)
from rt_drama3.server.monitor.broadcaster import BroadcastStream
from rt_drama3.server.openings import Opened
from rt_drama3.server.origins import check_request
from rt_drama3.server.pace import Pace
from rt_drama3.server.sender import SpeechSender
from rt_drama3.server.service import Service
from rt_drama3.server.transport.control import HttpControl, control_of

if TYPE_CHECKING:
    from rt_drama3.engine.best_of import FinishedTake
    from rt_drama3.engine.speech import Speech

log = logging.getLogger("rt_drama3.server")


@reports_errors()
async def tts(request: Request) -> Response:
    """``POST /v1/tts``."""
    service = service_of(request)

    def parse(body: bytes) -> SpeechOrder:
        kind = request.headers.get("content-type", "")
        model = request.headers.get("model", "")
        return parse_fish_tts(body, kind, service.facts, service.limits, model)

    return await _speech(request, "/v1/tts", parse, fish_error)


@reports_errors(openai_error)
async def openai_speech(request: Request) -> Response:
    """``POST /v1/audio/speech``."""
    service = service_of(request)

    def parse(body: bytes) -> SpeechOrder:
        kind = request.headers.get("content-type", "")
        return parse_openai_speech(body, service.facts, service.limits, kind)

    return await _speech(request, "/v1/audio/speech", parse, openai_error)


async def _speech(
    request: Request, route: str, parse: Callable[[bytes], SpeechOrder], shape: ErrorShape
) -> Response:
    service, name = service_of(request), request_id(request)
    accepted = time.monotonic()
    address = request.client.host if request.client else ""
    with contextlib.ExitStack() as until_over:
        service.access.check_key(request.headers.get("authorization"))
        check_request(service.config, request.headers.get("origin"))
        service.check_ready()
        until_over.enter_context(service.access.connection(address, route))
        order = await service.workers.unpack(parse, await read_limited(request, service))
        return SpeechResponse(service, order, name, route, accepted, shape, until_over.pop_all())


class SpeechResponse(Response):
    """Speaks an order as the body of a response; a ``Conversation``, ``Receiver`` and ``Line``.

    Args:
        service: of the server.
        order: what to speak.
        name: request id.
        route: for metrics and logs.
        accepted: when the request arrived.
        shape: of errors.
        until_over: closed at the end of the response.

    Attributes:
        handed: bytes of the body so far.
    """

    def __init__(
        self,
        service: Service,
        order: SpeechOrder,
        name: str,
        route: str,
        accepted: float,
        shape: ErrorShape,
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
        self._sounded = False
        self._send: Send | None = None
        self._control: HttpControl | None = None
        self.handed = 0
        self._sent = 0
        self._work: asyncio.Task[None] | None = None
        self._speech: Speech | FinishedTake | None = None
        self._cut = False
        self._left = False
        self._stopped = False
        self._complete = False

    # Conversation.

    def cut(self) -> int:
        """Ends what is being spoken, for the operator; returns 1."""
        self._cut = True
        if self._speech is not None:
            self._speech.cancel()
        return 1

    def drain(self) -> None:
        """Speech over HTTP always ends by itself."""

    def stop(self) -> None:
        """Ends the response with an error."""
        self._stopped = True
        if self._work is not None:
            self._work.cancel()

    # Receiver.

    def queued(self, position: int) -> None:
        """HTTP has no message for it."""

    def unspoken(self, text: str) -> None:
        """Headers, where notices are, went out before."""

    def segment(self, segment: Segment) -> None:
        """HTTP has no message for it."""

    def idle(self) -> None:
        """The text of a request is complete; it is never idle."""

    async def audio(self, data: bytes, samples: int, stamps: Stamps | None) -> None:
        self._check_cut()
        self._sounded = self._sounded or stamps is not None
        if stamps is not None and data and not self._begun:
            elapsed = time.monotonic() - self._accepted
            self._service.metrics.first_audio.observe(elapsed)
        if data:
            await self._begin()
        self._service.metrics.sent.labels(self._route).inc(len(data))
        self._sent += len(data)
        width = self._order.output.kind.sample_bytes
        for part in split_audio(data, self._service.limits.audio_bytes, width):
            await self._put(sse_delta(part) if self._order.sse else part)

    def padding(self, ended: bool) -> Padding:
        return Padding.SILENCE if ended and not self._sounded else Padding.NONE

    # Line.

    def held(self) -> int:
        return 0 if self._control is None else self._control.held()

    def limit_unsent(self, size: int) -> None:
        if self._control is not None:
            self._control.limit_unsent(size)

    # Response.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send, self._control = send, control_of(scope)
        with self._until_over:
            self._work = asyncio.create_task(self._serve(scope, receive))
            gone = asyncio.create_task(until_gone(receive))
            gone.add_done_callback(self._hang_up)
            try:
                await asyncio.wait({self._work, gone}, return_when=asyncio.FIRST_COMPLETED)
                connected = not gone.done()
            finally:
                for task in (self._work, gone):
                    task.cancel()
                await asyncio.wait({self._work, gone})
            if connected and self._stopped and not self._complete:
                await self._fail(_stopping(), scope, receive)
            if connected and not self._complete and self._control is not None:
                self._control.abort_response()  # the reason is logged already

    def _hang_up(self, gone: asyncio.Task[None]) -> None:
        """Cancels the speech of a client that has left, without waiting for its tasks to end."""
        speech = self._speech
        if not (gone.cancelled() or speech is None or speech.ended):
            self._left = True
            self._service.metrics.cancels.labels("disconnect").inc()
            speech.cancel()

    async def _serve(self, scope: Scope, receive: Receive) -> None:
        service = self._service
        service.metrics.requests.labels(self._route).inc()
        sender = None
        try:
            with service.drain.conversation(self):
                opened = await service.openings.open(self._order)
                self._order = opened.order
                broadcaster = service.broadcaster
                channel = None if broadcaster is None else broadcaster.channel()
                broadcast = None if channel is None else channel.begin(self._name)
                clock = asyncio.get_running_loop().time
                pace = Pace(service.config.slow_seconds, self, clock)
                sender = SpeechSender(self, opened, service, broadcast, pace)
                await self._speak(opened, sender, broadcast)
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
            fields["waited"] = sender.waited if sender else ""
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
        # Otherwise the body has no proper end, which every client treats as a failure.

    async def _speak(
        self, opened: Opened, sender: SpeechSender, broadcast: BroadcastStream | None
    ) -> None:
        service = self._service
        speech = self._speech = opened.take or opened.speech
        try:
            outcome = await sender.run()
            self._check_cut()
            if outcome is None:
                raise _stopping()
            await sender.finish()
            await self._begin()
            if broadcast is not None:
                broadcast.end()
        finally:
            if speech is not None:
                if not (speech.ended or self._left):
                    reason = "shutting_down" if service.drain.fading else "disconnect"
                    service.metrics.cancels.labels(reason).inc()
                speech.cancel()
            if broadcast is not None:
                broadcast.cancel()  # without effect after its end
        if self._order.sse:
            tokens = await service.workers.wait(service.tokens, self._order.text)
            take = take_of(outcome) if self._order.take else None
            await self._put(sse_done(tokens, outcome.frames, take))
        await self._put(b"", last=True)

    def _check_cut(self) -> None:
        if self._cut:
            raise Refused("stopped", "the operator stopped all speech.")

    async def _begin(self) -> None:
        """Sends the head, once."""
        if self._begun:
            return
        self._begun = True
        headers = audio_headers(self._order, self._name)
        headers["Cache-Control"] = "no-store"
        headers["X-Accel-Buffering"] = "no"  # nginx would collect several seconds of audio
        raw = [
            (key.lower().encode(), value.encode("latin-1", "replace"))
            for key, value in headers.items()
        ]
        assert self._send is not None
        if self._control is not None:
            self._control.set_incomplete(True)
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _put(self, data: bytes, last: bool = False) -> None:
        assert self._send is not None
        if last and self._control is not None:
            self._control.set_incomplete(False)
        if data or last:
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})
            self.handed += len(data)
            self._complete = self._complete or last


def _stopping() -> Refused:
    return Refused("shutting_down", "the server is stopping.")
