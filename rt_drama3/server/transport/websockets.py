"""Uvicorn's WebSockets, hardened: bounded, read in time slices, and closable while stuck.

A peer that stopped reading leaves bytes in the transport's buffer forever, and a graceful close
waits for them. So a connection that is ended by policy gets its close frame behind whatever is
stuck and, if that does not move, is aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from rt_drama3.server.transport.control import EXTENSION
from rt_drama3.server.transport.fragments import Fragmenter
from rt_drama3.server.transport.line import SocketLine
from rt_drama3.server.transport.time_slices import TimeSlice, TimeSliced

LARGE = 1 << 16  # bytes of a message that is handed over in parts
TINY_FRAMES = 512  # bytes of them that are parsed between readings of the clock
GRACE_SECONDS = 2.0  # between the close frame and the abort
MAX_FRAGMENTS = 16_384  # of one message: empty ones cost memory without adding to its size
MAX_UNREAD = 1 << 20  # bytes of pongs that a peer leaves unread; audio waits before it is written


class WebSockets(SocketLine, TimeSliced, WebSocketsSansIOProtocol):
    """One WebSocket; a ``WebSocketControl``.

    Large messages arrive in parts (``message_parts``); joining them is left to a thread.

    A connection that is failed for a broken or oversized frame is still read for a while: a reset
    would overtake the close frame, and the client would not learn the reason.
    """

    _failed = False
    _yielding = False  # reading is paused until the next turn of the event loop
    _fragmenter: Fragmenter | None = None
    _handling: TimeSlice | None = None  # of the application's messages
    _pong_due: Callable[[], float | None] | None = None  # None: as soon as a ping was sent

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection."""
        self.discard()
        self._pong_due = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes bytes; the handshake arrives first, alone and complete."""
        if self.handshake_initiated:
            self.take(data)
        else:
            self.feed(data)

    def feed(self, data: bytes) -> None:
        """Parses bytes; those behind a broken frame are dropped."""
        if self._fragmenter is None:  # the handshake
            self._fragmenter = Fragmenter(self.config.ws_max_size)
            self._parse_frames(data)
            return
        for part in self._fragmenter.feed(data):
            if not self._failed:
                self._parse_frames(part)
        if self._fragmenter.cutting and not self.read_paused and not self._yielding:
            # The event loop reads a socket as long as it has bytes: let others have their turn.
            self._yielding = True
            self.transport.pause_reading()
            self.loop.call_soon(self._resume)

    def chunk(self) -> int:
        """Few bytes where frames begin, since each may have 6."""
        most = super().chunk()
        inside = 0 if self._fragmenter is None else self._fragmenter.inside
        return min(most, max(TINY_FRAMES, inside))

    def finished(self) -> bool:
        return self.conn.parser_exc is not None or self.transport.is_closing()

    def wants_more(self) -> bool:
        return not self._yielding and not self.read_paused

    async def receive(self) -> Any:
        """Returns the next event for the application; other tasks get their turn in between."""
        if self._handling is None:
            self._handling = TimeSlice()
        await self._handling.rest()
        message = await super().receive()
        self.keep_paused()
        return message

    async def send(self, message: Any) -> None:
        """Sends an event; uvicorn mistakes a refused handshake for a forgotten one."""
        await super().send(message)
        self.keep_paused()
        last = not message.get("more_body", False)
        if message["type"] == "websocket.http.response.body" and last:
            self.handshake_complete = True

    # WebSocketControl.

    def send_now(self, data: bytes) -> bool:
        """See ``WebSocketControl``."""
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return False
        if not self.handshake_complete or not self.writable.is_set():
            return False
        try:
            self.conn.send_binary(data)
        except InvalidState:  # the peer has closed
            return False
        self.transport.write(b"".join(self.conn.data_to_send()))
        return True

    def close_now(self, messages: Sequence[bytes], code: int, reason: str) -> None:
        """See ``WebSocketControl``."""
        if self.disconnected or self.transport.is_closing():
            return
        self.stop_keepalive()
        if not self.close_sent:
            for message in messages:
                self.conn.send_binary(message)
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self._disconnect(code, reason)

    def expect_pongs(self, due: Callable[[], float | None]) -> None:
        """See ``WebSocketControl``."""
        self._pong_due = due

    # Uvicorn's handlers.

    def handle_connect(self, event: Any) -> None:
        """Accepts a handshake; the application starts in the loop's next turn."""
        super().handle_connect(event)
        if not self.close_sent:
            cast(dict[str, Any], self.scope["extensions"])[EXTENSION] = self

    def handle_cont(self, event: Any) -> None:
        """Takes a further fragment of a message."""
        if len(self.frames) >= MAX_FRAGMENTS:
            self._fail(1009, "too many fragments")
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answers, unless the peer leaves too many answers unread."""
        super().handle_ping()
        if self.transport.get_write_buffer_size() > MAX_UNREAD:
            self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        """Hands over a complete message; one that is not UTF-8 fails the connection unlogged."""
        is_text = self.curr_msg_data_type == "text"
        large = len(self.frames) > 1 and sum(map(len, self.frames)) > LARGE
        if large and not self.close_sent:
            event = {"text": ""} if is_text else {"bytes": b"", EXTENSION: self.frames}
            self.frames = []
            self.queue.put_nowait(cast(Any, {"type": "websocket.receive", **event}))
            if not self.read_paused:
                self.read_paused = True
                self.transport.pause_reading()
            return
        if is_text and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self._fail(1007, "text is not UTF-8")
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Closes with the code that the parser chose."""
        assert self.conn.close_sent is not None
        self._failed = self.close_sent = True
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.resume_reading()
        self.close_timer = self.loop.call_later(GRACE_SECONDS, self.transport.abort)

    def keepalive_timeout(self) -> None:
        """No pong came: closes if one was due, and ends the client's speech immediately.

        Uvicorn alone would wait until everything before the close frame was read.
        """
        due = self.ping_sent_at if self._pong_due is None else self._pong_due()
        if due is None:
            self.stop_keepalive()
            self.schedule_ping()
            return
        assert self.ping_timeout is not None  # otherwise nothing is awaited
        ends = max(self.ping_sent_at, due) + self.ping_timeout
        if self.loop.time() < ends:
            self.pong_timer = self.loop.call_at(ends, self.keepalive_timeout)
            return
        if not self.close_sent and not self.transport.is_closing():
            super().keepalive_timeout()
            self._disconnect(1011, "keepalive ping timeout")

    def _parse_frames(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_complete:
            answer = b"".join(self.conn.data_to_send())
            self.handshake_complete = self.close_sent = True
            self.transport.write(
                answer
                or b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
            self.transport.close()

    def _resume(self) -> None:
        self._yielding = False
        waiting = self._next is not None  # then parsing those bytes resumes reading
        if not waiting and not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _fail(self, code: int, reason: str) -> None:
        self.frames = []
        if not self.close_sent:
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    def _disconnect(self, code: int, reason: str) -> None:
        """Reports the end to the application, and aborts when the peer does not close."""
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.loop.call_later(GRACE_SECONDS, self.transport.abort)
