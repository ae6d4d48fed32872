"""LiveConnection: one WebSocket in either dialect; a thin loop around a protocol session.

Reading turns each message into events and acts on them; concurrently, a task for every utterance
sends what its stream speaks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket

from rt_drama3.engine.speech import Speech
from rt_drama3.errors import Overloaded, RequestError, RtDrama3Error
from rt_drama3.protocol import (
    Cancel,
    Event,
    Finish,
    Flush,
    Refused,
    Session,
    Start,
    Text,
    Utterance,
    as_refused,
)
from rt_drama3.protocol.wire import unpack
from rt_drama3.server.openings import Opened
from rt_drama3.server.pace import Pace
from rt_drama3.server.sender import SpeechSender
from rt_drama3.server.service import Service
from rt_drama3.server.transport.control import message_parts
from rt_drama3.server.workers import LONG_MESSAGE
from rt_drama3.server.ws.outbox import REPLY_BYTES, Outbox
from rt_drama3.server.ws.utterance import LiveUtterance

log = logging.getLogger("rt_drama3.server")

LONG_TEXT = 300  # characters; longer text is segmented in a thread
CLOSE_SECONDS = 5.0  # for the last messages and the close frame to leave
IDLE_SECONDS = 2.0  # without text after which an open utterance counts as finished at shutdown


class LiveConnection:
    """One client; a ``Conversation``.

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
        self._metrics = service.metrics
        self._websocket = websocket
        self._session = session
        self._route = route
        self._id = connection_id
        self._outbox = Outbox(websocket)
        self._outbox.expect_pongs(self._pong_due)
        self._clock = asyncio.get_running_loop().time
        self._pace = Pace(service.config.slow_seconds, self._outbox, self._clock)
        broadcaster = service.broadcaster
        self._channel = None if broadcaster is None else broadcaster.channel()
        self._live: dict[Utterance, LiveUtterance] = {}
        self._received_at = self._sent_at = time.monotonic()
        self._busy_since = 0.0  # first of the utterances that are open
        self._draining = False
        self._idle_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serves the client until the connection ends."""
        log.info("connected", extra={"fields": {"id": self._id, "route": self._route}})
        try:
            await self._read()
        except Exception as error:
            log.error("connection %s failed", self._id, exc_info=error)
            self._close("internal", "the server failed.")
        finally:
            self._act(self._session.disconnected(), "disconnect")
            tasks = {live.task for live in self._live.values()}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            if self._outbox.closing and not await self._outbox.finished(CLOSE_SECONDS):
                await self._outbox.close_now((), 1011, "stuck")
            await self._outbox.stop()
            closed = self._session.close_frame
            by = closed[1] if closed else "client"
            log.info("disconnected", extra={"fields": {"id": self._id, "by": by}})

    # Conversation.

    def drain(self) -> None:
        """Closes the connection as soon as all its utterances are idle."""
        self._draining = True
        self._close_if_idle()

    def cut(self) -> int:
        """Ends what is being spoken, for the operator; returns the number of utterances."""
        running = [utterance for utterance, live in self._live.items() if not live.stopped]
        for utterance in running:
            self._fail(utterance, Refused("stopped", "the operator stopped all speech."), "stopped")
        return len(running)

    def stop(self) -> None:
        """Closes the connection."""
        self._close("shutting_down", "the server is stopping.")

    def _close_if_idle(self) -> None:
        """While draining: closes now or when it may; each end and each ``Idle`` asks again."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if not self._draining or self._outbox.closing:
            return
        since = [live.idle_since for live in self._live.values()]
        if None in since:
            return
        wait = max([at for at in since if at is not None], default=0.0) + IDLE_SECONDS
        wait -= time.monotonic()
        if not since or wait <= 0:
            self.stop()
        else:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(wait, self._close_if_idle)

    # Reading.

    async def _read(self) -> None:
        while not self._outbox.closing:
            try:
                async with asyncio.timeout(self._idle_left()):
                    message = await self._websocket.receive()
            except TimeoutError:
                if self._idle_left() <= 0:
                    idle = self._service.limits.idle_seconds
                    self._close("idle", f"nothing was received or sent for {idle:g} s.")
                continue
            if message["type"] == "websocket.disconnect":
                return
            self._received_at = time.monotonic()
            events = self._session.receive(await self._unpacked(message))
            self._flush()
            for event in events:
                await self._do(event)
            try:
                async with asyncio.timeout(self._service.config.slow_seconds):
                    await self._outbox.below(REPLY_BYTES)
            except TimeoutError:
                await self._close_slow("answers were not read")

    async def _unpacked(self, message: Message) -> Any:
        """What the session takes: the message itself or the content of a large one."""
        parts = message_parts(message)
        if isinstance(parts, str):
            return parts
        if sum(map(len, parts)) <= LONG_MESSAGE:
            return parts[0]
        try:
            return await self._service.workers.unpack(unpack, parts, self._service.limits)
        except Refused as error:
            return error

    def _idle_left(self) -> float:
        """Seconds until the connection counts as idle; waiting for the server does not count."""
        limit = self._service.limits.idle_seconds
        if any(live.opened is None or live.queued_up for live in self._live.values()):
            return limit
        sent = [live.sent_at for live in self._live.values()]
        return max(self._received_at, self._sent_at, *sent) + limit - time.monotonic()

    def _pong_due(self) -> float | None:
        """Some clients read nothing between utterances: ``idle_seconds`` ends those."""
        return max(self._busy_since, self._pace.heard_at) if self._live else None

    async def _do(self, event: Event) -> None:
        if isinstance(event, Start):
            self._start(event)
        elif isinstance(event, Text | Flush | Finish):
            live = self._live.get(event.utterance)
            if live is None or live.stopped:
                return
            if live.opened is None or live.held:
                live.held.append(event)  # the session limits the text that waits
            elif live.speech is not None:
                await self._forward(event, live, live.speech)
        else:
            self._act([event], "client")

    def _act(self, events: Sequence[Event], reason: str) -> None:
        for event in events:
            if isinstance(event, Cancel):
                self._cancel(event, reason)
            elif self._channel is not None:  # Mute
                self._channel.cancel()

    def _cancel(self, event: Cancel, reason: str) -> None:
        live = self._live.get(event.utterance)
        if self._channel is not None and reason != "error" and not self._is_behind(live):
            self._channel.cancel()
        if live is not None and not live.stopped:
            if live.opened is not None or reason != "error":  # otherwise nothing was cut short
                self._metrics.cancels.labels(reason).inc()
            live.stop(reason, event.answer)

    def _is_behind(self, live: LiveUtterance | None) -> bool:
        """Whether another utterance is spoken before it, which must be heard to its end."""
        first = next((one for one in self._live.values() if not one.stopped), live)
        return first is not live

    async def _forward(
        self, event: Text | Flush | Finish, live: LiveUtterance, speech: Speech
    ) -> None:
        try:
            if isinstance(event, Text):
                live.got_text(event.text)
                if len(event.text) > LONG_TEXT:
                    await self._service.workers.run(speech.push_text, event.text)
                else:
                    speech.push_text(event.text)
            elif isinstance(event, Flush):
                speech.flush()
            else:
                speech.finish()
        except (Overloaded, RequestError) as error:
            if not speech.ended:  # otherwise its end is already on its way to the client
                self._fail(event.utterance, error)

    # Sending and closing.

    def _flush(self) -> None:
        self._outbox.put(self._session.data_to_send())
        if self._session.close_frame is not None:
            self._outbox.close(*self._session.close_frame)

    def _fail(self, utterance: Utterance, error: RtDrama3Error, reason: str = "error") -> None:
        refused = as_refused(error)
        self._metrics.errors.labels(refused.code).inc()
        fields = {"id": utterance.id, "connection": self._id, "code": refused.code}
        log.info("utterance failed", extra={"fields": fields})
        if refused.code == "internal":
            log.error("utterance %s failed: %s", utterance.id, error)
        events = self._session.fail(utterance, error)
        self._flush()
        self._act(events, reason)

    def _close(self, code: str, message: str) -> None:
        if not self._session.closed:
            self._metrics.errors.labels(code).inc()
            events = self._session.close(code, message)
            self._flush()
            self._act(events, code)

    async def _close_slow(self, what: str) -> None:
        """Closes a stalled client without waiting for its send buffer."""
        self._metrics.errors.labels("slow_client").inc()
        self._act(self._session.close("slow_client", f"{what} for too long."), "slow_client")
        frame = self._session.close_frame or (1008, "slow_client")  # none: it is gone already
        await self._outbox.close_now(self._session.data_to_send(), *frame)

    # Speaking.

    def _start(self, event: Start) -> None:
        self._metrics.requests.labels(self._route).inc()
        if not self._live:
            self._busy_since = self._clock()
        live = LiveUtterance(
            event.utterance,
            self._session,
            self._outbox,
            self._metrics,
            self._route,
            self._close_if_idle,
            next(reversed(self._live.values()), None),
        )
        self._live[event.utterance] = live
        live.opening = asyncio.create_task(self._open(event, live))
        live.task = asyncio.create_task(self._speak(live))

    async def _open(self, event: Start, live: LiveUtterance) -> Opened:
        """Opens the stream after those that are spoken before it."""
        await live.others(spoken=True)
        if event.refused is not None:
            raise event.refused
        return await self._service.openings.open(event.utterance.order)

    async def _speak(self, live: LiveUtterance) -> None:
        utterance, sender, broadcast = live.utterance, None, None
        try:
            await asyncio.wait({live.opening})
            if live.opening.cancelled() and not live.answer:
                return  # those before it may speak for long
            await live.others()  # their last messages go first
            live.before = None
            if live.opening.cancelled():
                utterance.cancelled(0)
                return
            opened = live.opened = live.opening.result()
            utterance.ready(opened.voice, opened.order)
            self._flush()
            if not opened.order.text.strip():
                live.idle()
            await self._forward_held(live)
            if self._channel is not None:
                broadcast = self._channel.begin(utterance.id)
            sender = SpeechSender(live, opened, self._service, broadcast, self._pace)
            outcome = await sender.run()
            if outcome is not None and not live.stopped:
                await sender.finish()
            if outcome is None:
                self.stop()
            elif live.stopped:  # maybe while the last audio was sent
                utterance.cancelled(outcome.frames)
            else:
                utterance.done(outcome)
        except RtDrama3Error as error:
            self._fail(utterance, error)
            utterance.cancelled(0)
        except TimeoutError:
            await self._close_slow("audio was not read")
        except Exception as error:
            log.error("utterance %s failed", utterance.id, exc_info=error)
            self._fail(utterance, RtDrama3Error("a bug"))
        finally:
            self._flush()
            live.abandon()
            if broadcast is not None:
                broadcast.end()
            self._ended(live, sender.waited if sender else "")

    def _ended(self, live: LiveUtterance, waited: str) -> None:
        del self._live[live.utterance]
        self._sent_at = max(self._sent_at, live.sent_at)
        fields = {
            "id": live.utterance.id,
            "connection": self._id,
            "route": self._route,
            "stopped": live.stopped,
            "waited": waited,
            "sent": vars(live.utterance.sent),
        }
        log.info("utterance ended", extra={"fields": fields})
        self._close_if_idle()

    async def _forward_held(self, live: LiveUtterance) -> None:
        """Forwards what arrived while the stream was being opened; the reader may add to it."""
        while live.held:
            if live.speech is not None and not live.stopped:
                await self._forward(live.held[0], live, live.speech)
            live.held.popleft()
