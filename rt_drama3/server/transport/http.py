"""Uvicorn's HTTP/1.1 with a time limit for every request and bytes parsed in time slices."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from rt_drama3.server.transport.control import EXTENSION
from rt_drama3.server.transport.line import SocketLine
from rt_drama3.server.transport.time_slices import TimeSliced

REQUEST_SECONDS = 60.0  # for a request's head to arrive, from the first byte awaited
# A body has the same time, or a little more than the application allows for it if that is more:
# bodies that no route reads are bounded, too.
BODY_MARGIN = 10.0
REQUEST_BYTES = 1 << 16  # of a request that restart its clock, since some lines are slow
ABORT_SECONDS = 2.0  # for bytes written before a response was aborted to leave
# SO_LINGER: whether close waits, and for how long; with 0 seconds it resets the connection.
_LINGER = struct.Struct("HH" if sys.platform == "win32" else "ii")


class _Flow(FlowControl):
    """Uvicorn's flow control; does not resume reading while bytes wait to be parsed."""

    def __init__(self, transport: asyncio.Transport, sliced: TimeSliced) -> None:
        super().__init__(transport)
        self._sliced = sliced

    def resume_reading(self) -> None:
        super().resume_reading()
        self._sliced.keep_paused()


class TimedHttp(SocketLine, TimeSliced, H11Protocol):
    """Answers 408 to requests that do not complete in time; an ``HttpControl``.

    Attributes:
        body_extra: seconds that a body has more than a head.
    """

    body_extra = 0.0
    _in_body = False
    _timer: asyncio.TimerHandle | None = None
    _received = 0  # bytes since the timer was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the clock of the first request."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection."""
        self.discard()
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes bytes of requests."""
        self.take(data)

    def feed(self, data: bytes) -> None:
        """Parses bytes; the first of a request, and every ``REQUEST_BYTES``, restart the clock."""
        super().data_received(data)
        self._received += len(data)
        before, self._in_body = self._in_body, self.conn.their_state is h11.SEND_BODY
        if self.scope is not None:
            extensions: dict[str, Any] = self.scope.setdefault("extensions", {})
            extensions[EXTENSION] = self
        if self._complete():
            self._cancel_timer()
        elif self._timer is None or self._received >= REQUEST_BYTES or self._in_body != before:
            self._set_timer()

    def finished(self) -> bool:
        return self._upgraded() or self.transport.is_closing()

    def wants_more(self) -> bool:
        return not self.flow.read_paused

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hands over to the WebSocket protocol, which has timers of its own."""
        self._cancel_timer()
        super().handle_websocket_upgrade(event)

    def set_incomplete(self, incomplete: bool) -> None:
        """See ``HttpControl``."""
        connection = self.transport.get_extra_info("socket")
        if connection is None or self.scope is None or self.scope["http_version"] != "1.0":
            return
        with suppress(OSError, ValueError):  # it is closed
            option = _LINGER.pack(incomplete, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)

    def abort_response(self) -> None:
        """See ``HttpControl``."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # keeps uvicorn from logging an incomplete response
        self.set_incomplete(True)  # it may have waited to write its last bytes
        self.transport.close()
        self.loop.call_later(ABORT_SECONDS, self.transport.abort)

    def abort(self) -> None:
        """Ends the connection immediately; bytes that were written may be lost."""
        self.set_incomplete(True)
        self.transport.abort()

    def unfinished(self) -> bool:
        """Whether the body of a request is still arriving."""
        return not self._upgraded() and self.conn.their_state is h11.SEND_BODY

    def _upgraded(self) -> bool:
        return self not in self.connections

    def _complete(self) -> bool:
        return self._upgraded() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)

    def _set_timer(self) -> None:
        self._cancel_timer()
        self._received = 0
        seconds = REQUEST_SECONDS + (self.body_extra if self._in_body else 0.0)
        self._timer = self.loop.call_later(seconds, self._time_out)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self._complete() or self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:  # no response has begun
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
        self.transport.close()


def timed_http(body_seconds: float) -> type[TimedHttp]:
    """``TimedHttp`` for a server whose application allows ``body_seconds`` for a body."""
    extra = max(0.0, body_seconds + BODY_MARGIN - REQUEST_SECONDS)

    class Http(TimedHttp):
        body_extra = extra

    return Http
