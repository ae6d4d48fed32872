"""LiveConnection: one WebSocket in either dialect; a thin loop around a protocol session.

Two things run at once: reading (each message becomes events, each event is done) and, for every
utterance, a task that takes chunks from the engine and puts their messages into the outbox.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from rt_drama3.errors import RequestError, RtDrama3Error
from rt_drama3.protocol import (
    Cancel,
    Close,
    Event,
    Finish,
    FishLiveSession,
    Flush,
    NativeSession,
    Send,
    Session,
    Start,
    Text,
    Utterance,
    as_refused,
    error_headers,
    fish_error,
    new_request_id,
)
from rt_drama3.server.outbox import ANSWER_BYTES, Outbox
from rt_drama3.server.outgoing import Pace, Playback
from rt_drama3.server.service import Opened, Service
from rt_drama3.server.sockets import END_NOW
from rt_drama3.speech import AudioChunk, Speech

log = logging.getLogger("rt_drama3.server")

LONG_TEXT = 2_000  # characters; more are taken apart in a thread
QUEUE_SECONDS = 0.1  # between looks at the place in the queue
CLOSE_SECONDS = 5.0  # for the last words and the close frame to leave


@dataclass(eq=False)
class _Talk:
    """An utterance and what speaks it."""

    opened: Opened
    task: asyncio.Task[None] | None = None
    taken: int = 0  # characters of text that the engine was given
    spoken: int = 0  # and of those that were begun
    told: int = 0  # segments that the client knows of
    stopped: str = ""  # why it was cut short

    @property
    def speech(self) -> Speech | None:
        return self.opened.speech


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
        service.check_key(websocket.headers.get("authorization"))
        service.check_origin(websocket.headers.get("origin"))
        service.check_ready()
        with service.client(address, route):
            headers = [(b"x-request-id", connection_id.encode())]
            await websocket.accept(headers=headers)
            connection = LiveConnection(service, websocket, make(), route, connection_id)
            with service.conversation(connection):
                await connection.run()
    except RtDrama3Error as error:
        status, body = fish_error(error, connection_id)
        service.metrics.errors.labels(as_refused(error).code).inc()
        log.info("refused", extra={"fields": {"id": connection_id, "route": route, **body}})
        response = JSONResponse(body, status, error_headers(error, connection_id))
        await websocket.send_denial_response(response)
    except WebSocketDisconnect:
        pass  # during the handshake


class LiveConnection:
    """One client.

    Args:
        service: of the server.
        websocket: accepted.
        session: of the dialect.
        route: for metrics and logs.
        connection_id: for logs.
    """

    def __init__(
        self,
        service: Service,
        websocket: WebSocket,
        session: Session[Any],
        route: str,
        connection_id: str,
    ) -> None:
        self._service = service
        self._websocket = websocket
        self._session = session
        self._route = route
        self._id = connection_id
        self._outbox = Outbox(websocket)
        self._talks: dict[Utterance, _Talk] = {}
        self._active = time.monotonic()
        self._closed_by: str | None = None

    async def run(self) -> None:
        """Serves the client until the connection ends."""
        log.info("connected", extra={"fields": {"id": self._id, "route": self._route}})
        try:
            await self._read()
        except Exception as error:
            log.error("connection %s failed", self._id, exc_info=error)
            self._close("internal", "the server failed.")
        finally:
            self._act_all(self._session.disconnected(), "disconnect")
            tasks = {talk.task for talk in self._talks.values() if talk.task is not None}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            if self._outbox.closing and not await self._outbox.finished(CLOSE_SECONDS):
                await self._end_now((), 1011, "stuck")
            await self._outbox.stop()
            closed = self._closed_by or "client"
            log.info("disconnected", extra={"fields": {"id": self._id, "by": closed}})

    def drain(self) -> None:
        """Ends the connection when nothing is being spoken; see ``Service.drain``."""
        if not self._talks:
            self.stop()

    def stop(self) -> None:
        """Ends the connection."""
        self._close("shutting_down", "the server is stopping.")

    # Reading.

    async def _read(self) -> None:
        while not self._outbox.closing:
            try:
                async with asyncio.timeout(self._idle_left()):
                    message = await self._websocket.receive()
            except TimeoutError:
                if self._idle_left() <= 0:
                    idle = self._service.limits.idle_seconds
                    self._close("idle", f"nothing came or went for {idle:g} s.")
                continue
            if message["type"] == "websocket.disconnect":
                return
            self._active = time.monotonic()
            data = message.get("bytes")
            events = self._session.receive(message.get("text", "") if data is None else data)
            for event in events:
                await self._do(event)
            try:
                await self._outbox.below(ANSWER_BYTES, self._service.config.slow_seconds)
            except TimeoutError:
                await self._slow("answers were not read")

    def _idle_left(self) -> float:
        """Seconds until the connection counts as idle."""
        limit = self._service.limits.idle_seconds
        speeches = [talk.speech for talk in self._talks.values()]
        if any(speech and speech.queue_position is not None for speech in speeches):
            return limit
        return self._active + limit - time.monotonic()

    async def _do(self, event: Event) -> None:
        if isinstance(event, Start):
            await self._start(event.utterance)
        elif isinstance(event, Text | Flush | Finish):
            talk = self._talks.get(event.utterance)
            if talk is not None and talk.speech is not None:
                await self._pass_on(event, talk, talk.speech)
        else:
            self._act(event)

    def _act_all(self, events: list[Event], reason: str) -> None:
        for event in events:
            self._act(event, reason)

    def _act(self, event: Event, reason: str = "client") -> None:
        if isinstance(event, Send):
            self._outbox.put((event.data,))
        elif isinstance(event, Close):
            self._closed_by = event.reason
            self._outbox.close(event.code, event.reason)
        elif isinstance(event, Cancel):
            talk = self._talks.get(event.utterance)
            if talk is not None and not talk.stopped:
                talk.stopped = reason
                self._service.metrics.cancels.labels(reason).inc()
                if talk.speech is not None:
                    talk.speech.cancel()

    async def _start(self, utterance: Utterance) -> None:
        self._service.metrics.requests.labels(self._route).inc()
        before = [talk.task for talk in self._talks.values() if talk.task is not None]
        try:
            opened = await self._service.open(utterance.order)
        except RtDrama3Error as error:
            if before:  # its cancelled goes first
                await asyncio.wait(before)
            self._fail(utterance, error)
            return
        utterance.order = opened.order
        talk = _Talk(opened, taken=len(utterance.order.text))
        self._talks[utterance] = talk
        talk.task = asyncio.create_task(self._speak(utterance, talk, before))

    async def _pass_on(self, event: Text | Flush | Finish, talk: _Talk, speech: Speech) -> None:
        try:
            if isinstance(event, Text):
                talk.taken += len(event.text)
                if len(event.text) > LONG_TEXT:
                    await self._service.in_thread(speech.push_text, event.text)
                else:
                    speech.push_text(event.text)
            elif isinstance(event, Flush):
                speech.flush()
            else:
                speech.finish()
        except RequestError as error:
            if not speech.ended:  # else its end is on its way to the client
                self._fail(event.utterance, error)

    def _fail(self, utterance: Utterance, error: RtDrama3Error) -> None:
        refused = as_refused(error)
        self._service.metrics.errors.labels(refused.code).inc()
        fields = {"id": utterance.id, "connection": self._id, "code": refused.code}
        log.info("utterance failed", extra={"fields": fields})
        if refused.code == "internal":
            log.error("utterance %s failed: %s", utterance.id, error)
        self._act_all(self._session.fail(utterance, error), "error")

    def _close(self, code: str, message: str) -> None:
        self._service.metrics.errors.labels(code).inc()
        self._act_all(self._session.close(code, message), code)

    async def _slow(self, what: str) -> None:
        """Ends a client that does not read: behind what is stuck, and without waiting for it."""
        self._service.metrics.errors.labels("slow_client").inc()
        said: list[bytes] = []
        code, reason = 1008, "slow_client"
        for event in self._session.close("slow_client", f"{what} for too long."):
            if isinstance(event, Send):
                said.append(event.data)
            elif isinstance(event, Close):
                code, reason = event.code, event.reason
            else:
                self._act(event, "slow_client")
        self._closed_by = reason
        await self._end_now(said, code, reason)

    async def _end_now(self, said: Sequence[bytes], code: int, reason: str) -> None:
        end_now = self._websocket.scope["extensions"].get(END_NOW)
        await self._outbox.stop()
        if end_now is not None:
            end_now(said, code, reason)

    # Speaking.

    async def _speak(
        self, utterance: Utterance, talk: _Talk, before: list[asyncio.Task[None]]
    ) -> None:
        queue = asyncio.create_task(self._tell_queue(utterance, talk))
        try:
            if before:
                await asyncio.wait(before)
            self._outbox.put(utterance.ready(talk.opened.voice))
            await self._tell(utterance, talk, queue)
        except RtDrama3Error as error:
            self._fail(utterance, error)
            self._outbox.put(utterance.cancelled(0))
        except TimeoutError:
            await self._slow("audio was not read")
        except Exception as error:
            log.error("utterance %s failed", utterance.id, exc_info=error)
            self._fail(utterance, RtDrama3Error("a bug"))
        finally:
            queue.cancel()
            if talk.speech is not None:
                talk.speech.cancel()
            del self._talks[utterance]
            fields = {"id": utterance.id, "connection": self._id, "route": self._route}
            log.info(
                "utterance ended",
                extra={"fields": {**fields, "stopped": talk.stopped, "sent": vars(utterance.sent)}},
            )
            if self._service.draining and not self._talks:
                self.stop()

    async def _tell(self, utterance: Utterance, talk: _Talk, queue: asyncio.Task[None]) -> None:
        speech, outgoing = talk.speech, talk.opened.outgoing
        pace, playback = Pace(self._service.config.slow_seconds), Playback()
        fading = False
        if speech is not None:
            async for chunk in speech:
                queue.cancel()
                await self._outbox.below(0, pace.begin())
                pace.end(chunk.seconds)
                new_text = self._tell_segments(utterance, talk, chunk)
                fading = self._service.fading
                data, samples = outgoing.push(chunk.pcm, fade=fading)
                self._send_audio(utterance, data, samples, chunk)
                if playback.play(chunk.seconds, new_text) and not talk.stopped:
                    self._service.metrics.underruns.inc()
                if fading:
                    break
        if fading:
            self.stop()
            return
        summary = None if speech is None else await speech.summary()
        outcome = self._service.outcome(summary)
        if talk.stopped:
            self._outbox.put(utterance.cancelled(outcome.frames))
            return
        data, samples = outgoing.end()
        await self._outbox.below(0, pace.begin())
        self._send_audio(utterance, data, samples, None)
        self._outbox.put(utterance.done(outcome))

    def _tell_segments(self, utterance: Utterance, talk: _Talk, chunk: AudioChunk) -> bool:
        """Tells of the pieces that begin with this chunk; returns whether any does."""
        assert talk.speech is not None
        begun = talk.speech.segments
        first = talk.told
        for index in range(first, min(chunk.segment + 1, len(begun))):
            text, frame = begun[index]
            self._outbox.put(utterance.segment(index, text, frame))
            talk.spoken += len(text)
            talk.told = index + 1
        if talk.told >= talk.speech.pieces:  # the counts differ by white space: begin anew
            talk.taken = talk.spoken = 0
        utterance.waiting(max(0, talk.taken - talk.spoken))
        return talk.told > first

    def _send_audio(
        self, utterance: Utterance, data: bytes, samples: int, chunk: AudioChunk | None
    ) -> None:
        first = utterance.first_audio is None
        messages = utterance.audio(data, samples, chunk.stamps if chunk else None)
        self._outbox.put(messages)
        now = self._active = time.monotonic()
        metrics = self._service.metrics
        metrics.sent.labels(self._route).inc(len(data) if messages else 0)
        if chunk is not None:
            metrics.added.observe(now - chunk.stamps.decoded)
        if first and utterance.first_audio is not None:
            metrics.first_audio.observe(utterance.first_audio)

    async def _tell_queue(self, utterance: Utterance, talk: _Talk) -> None:
        told = None
        while talk.speech is not None and not talk.speech.ended:
            position = talk.speech.queue_position
            if position is not None and position != told:
                told = position
                self._outbox.put(utterance.queued(position))
            await asyncio.sleep(QUEUE_SECONDS)
