"""LiveConnection: one WebSocket in either dialect; a thin loop around a protocol session.

Two things run at once: reading (each message becomes events, each event is done) and, for every
utterance, a task that has what is spoken told to the client (``telling``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket

from rt_drama3.engine.speech import Speech
from rt_drama3.errors import Overloaded, RequestError, RtDrama3Error
from rt_drama3.protocol import (
    Cancel,
    Close,
    Event,
    Finish,
    Flush,
    Hush,
    Refused,
    Send,
    Session,
    Start,
    Text,
    Utterance,
    as_refused,
)
from rt_drama3.protocol.wire import unpack
from rt_drama3.server.service import LONG_MESSAGE, Opened, Service
from rt_drama3.server.transport.control import message_parts
from rt_drama3.server.ws.outbox import REPLY_BYTES, Outbox
from rt_drama3.server.ws.telling import Talk, Teller

log = logging.getLogger("rt_drama3.server")

LONG_TEXT = 2_000  # characters; more are taken apart in a thread
CLOSE_SECONDS = 5.0  # for the last words and the close frame to leave


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
        self._lane = None if service.hub is None else service.hub.lane()
        self._teller = Teller(service, self._outbox, self._lane, route, self.stop)
        self._talks: dict[Utterance, Talk] = {}
        self._heard = time.monotonic()  # when a message last came
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
                await self._outbox.close_now((), 1011, "stuck")
            await self._outbox.stop()
            closed = self._closed_by or "client"
            log.info("disconnected", extra={"fields": {"id": self._id, "by": closed}})

    def drain(self) -> None:
        """Ends the connection when nothing is being spoken; see ``Service.drain``."""
        if not self._outbox.closing and all(map(self._is_silent, self._talks.values())):
            self.stop()

    def _is_silent(self, talk: Talk) -> bool:
        """Whether an utterance has waited for text for long, as those of some clients always do."""
        if talk.speech is None or talk.held or talk.sending:
            return False
        return self._service.silent(talk.speech)

    def cut(self) -> int:
        """Ends what is being spoken, for the operator; returns how much that was."""
        running = [utterance for utterance, talk in self._talks.items() if not talk.stopped]
        for utterance in running:
            self._fail(utterance, Refused("stopped", "the operator stopped all speech."), "stopped")
        return len(running)

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
            self._heard = time.monotonic()
            for event in self._session.receive(await self._unpacked(message)):
                await self._do(event)
            try:
                await self._outbox.below(REPLY_BYTES, self._service.config.slow_seconds)
            except TimeoutError:
                await self._slow("answers were not read")

    async def _unpacked(self, message: Message) -> Any:
        """What the session takes: the message itself or, of a large one, what is in it."""
        parts = message_parts(message)
        if isinstance(parts, str):
            return parts
        if sum(map(len, parts)) <= LONG_MESSAGE:
            return parts[0]
        try:
            return await self._service.unpack(unpack, parts, self._service.limits)
        except Refused as error:
            return error

    def _idle_left(self) -> float:
        """Seconds until the connection counts as idle; who waits for the server is not."""
        limit = self._service.limits.idle_seconds
        for talk in self._talks.values():
            if talk.opened is None or (talk.speech and talk.speech.queue_position is not None):
                return limit
        return max(self._heard, self._teller.sent) + limit - time.monotonic()

    async def _do(self, event: Event) -> None:
        if isinstance(event, Start):
            self._start(event.utterance)
        elif isinstance(event, Text | Flush | Finish):
            talk = self._talks.get(event.utterance)
            if talk is None or talk.stopped:
                return
            if talk.opened is None or talk.held:
                talk.held.append(event)  # the session bounds the text that waits
            elif talk.speech is not None:
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
        elif isinstance(event, Hush):
            if self._lane is not None:
                self._lane.cancel()
        elif isinstance(event, Cancel):
            talk = self._talks.get(event.utterance)
            if self._lane is not None and reason != "error" and not self._waits(talk):
                self._lane.cancel()
            if talk is not None and not talk.stopped:
                talk.stopped = reason
                if talk.opened is not None or reason != "error":  # else nothing was cut short
                    self._service.metrics.cancels.labels(reason).inc()
                if talk.speech is not None:
                    talk.speech.cancel()
                elif talk.opening is not None:
                    _let_go(talk.opening)

    def _waits(self, talk: Talk | None) -> bool:
        """Whether one is spoken before it, which is to be heard to its end."""
        first = next((one for one in self._talks.values() if not one.stopped), talk)
        return first is not talk

    def _start(self, utterance: Utterance) -> None:
        self._service.metrics.requests.labels(self._route).inc()
        before = [talk for talk in self._talks.values() if talk.task is not None]
        talk = Talk(taken=len(utterance.order.text))
        self._talks[utterance] = talk
        to_the_end = [one.task for one in before if one.task is not None and not one.stopped]
        talk.opening = asyncio.create_task(self._open(utterance, to_the_end))
        last_words = [one.task for one in before if one.task is not None]
        talk.task = asyncio.create_task(self._speak(utterance, talk, last_words))

    async def _open(self, utterance: Utterance, before: list[asyncio.Task[None]]) -> Opened:
        """Opens the stream, once those are over that are to be spoken before it."""
        if before:
            await asyncio.wait(before)
        if utterance.refused is not None:
            raise utterance.refused
        return await self._service.open(utterance.order)

    async def _pass_on(self, event: Text | Flush | Finish, talk: Talk, speech: Speech) -> None:
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
        except (Overloaded, RequestError) as error:
            if not speech.ended:  # else its end is on its way to the client
                self._fail(event.utterance, error)

    def _fail(self, utterance: Utterance, error: RtDrama3Error, reason: str = "error") -> None:
        refused = as_refused(error)
        self._service.metrics.errors.labels(refused.code).inc()
        fields = {"id": utterance.id, "connection": self._id, "code": refused.code}
        log.info("utterance failed", extra={"fields": fields})
        if refused.code == "internal":
            log.error("utterance %s failed: %s", utterance.id, error)
        self._act_all(self._session.fail(utterance, error), reason)

    def _close(self, code: str, message: str) -> None:
        events = self._session.close(code, message)
        if events:  # else it was closed before, and counted
            self._service.metrics.errors.labels(code).inc()
        self._act_all(events, code)

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
        await self._outbox.close_now(said, code, reason)

    # Speaking.

    async def _speak(
        self, utterance: Utterance, talk: Talk, before: list[asyncio.Task[None]]
    ) -> None:
        assert talk.opening is not None
        try:
            await asyncio.wait({talk.opening})
            if talk.opening.cancelled() and not utterance.owes_cancelled:
                return  # nobody waits for a word on it, and those before may speak for long
            if before:  # the last words on the one before go first
                await asyncio.wait(before)
            if talk.opening.cancelled():
                self._outbox.put(utterance.cancelled(0))
                return
            opened = talk.opening.result()
            talk.opened, utterance.order = opened, opened.order
            self._outbox.put(utterance.ready(opened.voice))
            await self._pass_on_held(talk)
            await self._teller.tell(utterance, talk, opened)
        except RtDrama3Error as error:
            self._fail(utterance, error)
            self._outbox.put(utterance.cancelled(0))
        except TimeoutError:
            await self._slow("audio was not read")
        except Exception as error:
            log.error("utterance %s failed", utterance.id, exc_info=error)
            self._fail(utterance, RtDrama3Error("a bug"))
        finally:
            _let_go(talk.opening)
            if talk.heard is not None:
                talk.heard.end()
            del self._talks[utterance]
            fields = {"id": utterance.id, "connection": self._id, "route": self._route}
            log.info(
                "utterance ended",
                extra={
                    "fields": {
                        **fields,
                        "stopped": talk.stopped,
                        "waited": self._service.waited(talk.speech),
                        "sent": vars(utterance.sent),
                    }
                },
            )
            if self._service.draining and not self._talks:
                self.stop()

    async def _pass_on_held(self, talk: Talk) -> None:
        """What came while the stream was being opened; the reader adds to it until it is empty."""
        while talk.held:
            if talk.speech is not None and not talk.stopped:
                await self._pass_on(talk.held[0], talk, talk.speech)
            talk.held.popleft()


def _let_go(opening: asyncio.Task[Opened]) -> None:
    """Ends a stream that is open, perhaps unnoticed as yet, or being opened."""

    def end(opening: asyncio.Task[Opened]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            speech = opening.result().speech
            if speech is not None:
                speech.cancel()

    opening.cancel()
    opening.add_done_callback(end)
