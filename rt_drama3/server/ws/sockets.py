"""The listening socket, and uvicorn's WebSocket protocol with a way out for clients that hang.

A peer that stopped reading leaves bytes in the transport's buffer for ever, and a graceful close
waits for them. So a connection that is ended by policy is closed behind what is stuck and, if that
does not move, aborted.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

from websockets.exceptions import InvalidState

from rt_drama3.errors import ConfigError
from rt_drama3.server.guards import GuardedWebSockets
from rt_drama3.server.ws.fragments import Fragmenter

END_NOW = "rt_drama3.end_now"  # key of the scope's extension
SEND_NOW = "rt_drama3.send_now"  # another: sends at once, or returns that it cannot
PARTS = "rt_drama3.parts"  # key of a large message's event
LARGE = 1 << 16  # bytes of a message
GRACE_SECONDS = 2.0  # between the close frame and the abort
STUCK_SECONDS = 30  # that the system tries to send to a peer that takes nothing

SendNow = Callable[[bytes], bool]
EndNow = Callable[[Sequence[bytes], int, str], None]


class WebSockets(GuardedWebSockets):
    """Uvicorn's protocol; its scope has ``END_NOW``, to end a connection without waiting for it.

    ``SEND_NOW`` sends within the present turn of the event loop. Every further turn may cost the
    time that another thread keeps the interpreter, so audio takes that way when the line is free.

    Large messages come in parts: their event has ``PARTS``, a list of bytes, and empty ``bytes``.

    A connection that is ended for a broken or oversized frame goes on to be read for a while: a
    reset would overtake the close frame, and the client would not learn why.
    """

    _broken = False
    _resting = False
    _fragmenter: Fragmenter | None = None

    def feed(self, data: bytes) -> None:
        """Bytes; those behind a broken frame are dropped."""
        if self._fragmenter is None:  # the handshake comes alone, and as a whole
            self._fragmenter = Fragmenter(self.config.ws_max_size)
            super().feed(data)
            return
        for part in self._fragmenter.feed(data):
            if not self._broken:
                super().feed(part)
        if self._fragmenter.cutting and not self.read_paused and not self._resting:
            # The loop reads from a socket as long as it has bytes: others get their turn first.
            self._resting = True
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def wants_more(self) -> bool:
        """Whether reading may go on, once nothing is held back."""
        return not self._resting and super().wants_more()

    def _read_on(self) -> None:
        self._resting = False
        held = self._next is not None  # then reading goes on when that was parsed
        if not held and not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def send_receive_event_to_app(self) -> None:
        """A whole message; joining a large one is left to whoever has the time."""
        if self.close_sent or len(self.frames) == 1 or sum(map(len, self.frames)) <= LARGE:
            super().send_receive_event_to_app()
            return
        event: dict[str, Any] = {"type": "websocket.receive"}
        if self.curr_msg_data_type == "bytes":
            event |= {"bytes": b"", PARTS: self.frames}
        else:
            event |= {"text": ""}  # text is refused whatever it says
        self.frames = []
        self.queue.put_nowait(cast(Any, event))
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def handle_parser_exception(self) -> None:
        """Closes with the code that the parser chose."""
        assert self.conn.close_sent is not None
        self._broken = self.close_sent = True
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.resume_reading()
        self.close_timer = self.loop.call_later(GRACE_SECONDS, self.transport.abort)

    async def send(self, message: Any) -> None:
        """As uvicorn's, which takes a handshake that was refused for one that was forgotten."""
        await super().send(message)
        last = not message.get("more_body", False)
        if message["type"] == "websocket.http.response.body" and last:
            self.handshake_complete = True

    def keepalive_timeout(self) -> None:
        """No pong came: the client is told, if it lives, and its speech ends now.

        Uvicorn's close alone would wait until everything before it was read.
        """
        if self.close_sent or self.transport.is_closing():
            return
        super().keepalive_timeout()
        reason = "keepalive ping timeout"
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1011, "reason": reason})
        self.loop.call_later(GRACE_SECONDS, self.transport.abort)

    def handle_connect(self, event: Any) -> None:
        """A handshake; the application begins at the loop's next turn and sees the extension."""
        super().handle_connect(event)
        if not self.close_sent:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[END_NOW] = self._end_now
            extensions[SEND_NOW] = self._send_now

    def _send_now(self, data: bytes) -> bool:
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

    def _end_now(self, last_words: Sequence[bytes], code: int, reason: str) -> None:
        if self.disconnected or self.transport.is_closing():
            return
        self.stop_keepalive()
        if not self.close_sent:
            for message in last_words:
                self.conn.send_binary(message)
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.loop.call_later(GRACE_SECONDS, self.transport.abort)


def listen(host: str, port: int, send_buffer: int) -> socket.socket:
    """A listening socket; what is set on it holds for the connections it accepts.

    Raises:
        ConfigError: the address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Of "localhost", some systems tell ::1 first, and everybody writes 127.0.0.1.
        first = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        family, kind, number, _, address = first
        listener = socket.socket(family, kind, number)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}.") from error
    try:
        if sys.platform != "win32":  # there it would let others take the port over
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        with contextlib.suppress(OSError, AttributeError):  # where the system has it
            option = socket.TCP_USER_TIMEOUT
            listener.setsockopt(socket.IPPROTO_TCP, option, 1_000 * STUCK_SECONDS)
        listener.bind(address)
        listener.listen(2_048)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port, or "
            "stop what uses it."
        ) from error
    listener.setblocking(False)
    return listener
