"""What uvicorn leaves open to a client that means harm, or is broken: its protocols with bounds.

A request has to be whole in time; a handshake that cannot be read is answered and not left hanging;
text that is not UTF-8 is no event for the log; fragments and answers to pings are bounded; and
bytes are taken in turns, since a megabyte of tiny frames would stop everybody else's audio.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

CUT_OFF = "rt_drama3.cut_off"  # key of an HTTP scope's extension: ends a response without its end
REQUEST_SECONDS = 60.0  # for a request's head to arrive, from the first byte awaited
# Its body has the same time, or a little more than what whoever reads it allows, if that is more:
# bodies that nobody reads end, too.
BODY_MARGIN = 10.0
REQUEST_BYTES = 1 << 16  # of it that give it the same time again, since some lines are slow
CUT_OFF_SECONDS = 2.0  # for bytes that were written before a response was cut off to go out
MOST_FRAGMENTS = 16_384  # of one message: empty ones cost memory and count in no size
MOST_UNREAD = 1 << 20  # bytes of pongs that wait for a peer; audio waits before it is written
PART = 2_048  # bytes parsed between looks at the clock; a frame may have 6
TURN_SECONDS = 0.001  # of parsing for one connection until the others have their turn


CutOff = Callable[[], None]


class InTurns:
    """Bytes on their way to a protocol, which is given them part by part.

    The event loop reads up to 32 times 256 KiB from a connection before it looks at another one. So
    reading stops while something is held back, and goes on when it was parsed.
    """

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _held = b""
    _next: asyncio.Handle | None = None

    def feed(self, data: bytes) -> None:
        """Parses the next bytes."""
        raise NotImplementedError

    def finished(self) -> bool:
        """Whether what follows is of no interest."""
        raise NotImplementedError

    def wants_more(self) -> bool:
        """Whether the protocol itself has not stopped the reading."""
        raise NotImplementedError

    def take(self, data: bytes) -> None:
        """Takes what came: parses it now, or behind what is held back."""
        self._held += data
        if self._next is None:
            self._turn()
        else:
            self.transport.pause_reading()

    def hold(self) -> None:
        """Stops the reading again if somebody let it go on too early."""
        if self._next is not None:
            self.transport.pause_reading()

    def let_go(self) -> None:
        """Forgets what is held back: the connection has ended."""
        self._held = b""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _turn(self) -> None:
        waited, self._next = self._next is not None, None
        data, place = self._held, 0
        end = time.perf_counter() + TURN_SECONDS
        while place < len(data) and not self.finished():
            self.feed(data[place : place + PART])
            place += PART
            if time.perf_counter() > end:
                break
        self._held = b"" if self.finished() else data[place:]
        if self._held:
            self.transport.pause_reading()
            self._next = self.loop.call_soon(self._turn)
        elif waited and self.wants_more():
            self.transport.resume_reading()


class _Flow(FlowControl):
    """Uvicorn's control of reading and writing, which respects that something is held back."""

    def __init__(self, transport: asyncio.Transport, turns: InTurns) -> None:
        super().__init__(transport)
        self._turns = turns

    def resume_reading(self) -> None:
        super().resume_reading()
        self._turns.hold()


class TimedHttp(InTurns, H11Protocol):
    """Uvicorn's HTTP/1.1; who does not finish a request is sent away.

    Its scope has ``CUT_OFF``, for a response that cannot be completed: that is an error to
    uvicorn's log, however much it was to be expected.

    Attributes:
        body_extra: seconds that a body has more than a head.
    """

    body_extra = 0.0
    _in_body = False
    _late: asyncio.TimerHandle | None = None
    _came = 0  # bytes since the clock was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection: its first request begins now."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        self._set_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a connection."""
        self.let_go()
        self._in_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self.take(data)

    def feed(self, data: bytes) -> None:
        """Parses bytes; the first of a request set the clock, and every so many that follow."""
        super().data_received(data)
        self._came += len(data)
        before, self._in_body = self._in_body, self.conn.their_state is h11.SEND_BODY
        if self.scope is not None:
            extensions: dict[str, Any] = self.scope.setdefault("extensions", {})
            extensions[CUT_OFF] = self._cut_off
        if self._whole():
            self._in_time()
        elif self._late is None or self._came >= REQUEST_BYTES or self._in_body != before:
            self._set_clock()

    def finished(self) -> bool:
        return self._upgraded() or self.transport.is_closing()

    def wants_more(self) -> bool:
        return not self.flow.read_paused

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """A WebSocket from now on, which keeps its own time."""
        self._in_time()
        super().handle_websocket_upgrade(event)

    def _upgraded(self) -> bool:
        return self not in self.connections

    def _whole(self) -> bool:
        return self._upgraded() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)

    def _set_clock(self) -> None:
        self._in_time()
        self._came = 0
        seconds = REQUEST_SECONDS + (self.body_extra if self._in_body else 0.0)
        self._late = self.loop.call_later(seconds, self._too_late)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _cut_off(self) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True  # so uvicorn leaves it alone
        self.transport.close()
        self.loop.call_later(CUT_OFF_SECONDS, self.transport.abort)

    def _too_late(self) -> None:
        self._late = None
        if self._whole() or self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:  # nobody has begun to answer
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
        self.transport.close()


def timed_http(body_seconds: float) -> type[TimedHttp]:
    """``TimedHttp`` for a server that lets bodies take so long."""
    extra = max(0.0, body_seconds + BODY_MARGIN - REQUEST_SECONDS)

    class Http(TimedHttp):
        body_extra = extra

    return Http


class GuardedWebSockets(InTurns, WebSocketsSansIOProtocol):
    """Uvicorn's WebSockets; every peer is answered, none makes them keep more than a bound."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a connection."""
        self.let_go()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes; the handshake comes first, alone and as a whole."""
        if self.handshake_initiated:
            self.take(data)
        else:
            self.feed(data)

    def feed(self, data: bytes) -> None:
        """Parses bytes; a handshake that cannot be read is refused."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_complete:
            answer = b"".join(self.conn.data_to_send())
            self.handshake_complete = self.close_sent = True
            self.transport.write(
                answer
                or b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
            self.transport.close()

    def finished(self) -> bool:
        return self.conn.parser_exc is not None or self.transport.is_closing()

    def wants_more(self) -> bool:
        return not self.read_paused

    async def receive(self) -> Any:
        """The next message for the application."""
        message = await super().receive()
        self.hold()
        return message

    async def send(self, message: Any) -> None:
        """A message of the application."""
        await super().send(message)
        self.hold()

    def handle_cont(self, event: Any) -> None:
        """A further fragment of a message."""
        if len(self.frames) >= MOST_FRAGMENTS:
            self.frames = []
            if not self.close_sent:
                self.conn.fail(1009, "too many fragments")
                self.handle_parser_exception()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answered, unless answers pile up that the peer does not read."""
        super().handle_ping()
        if self.transport.get_write_buffer_size() > MOST_UNREAD:
            self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        """A whole message; one that is not UTF-8 ends the connection without a word in the log."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(1007, "text is not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()
