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
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from rt_drama3.errors import ConfigError

END_NOW = "rt_drama3.end_now"  # key of the scope's extension
GRACE_SECONDS = 2.0  # between the close frame and the abort
STUCK_SECONDS = 30  # that the system tries to send to a peer that takes nothing

EndNow = Callable[[Sequence[bytes], int, str], None]


class WebSockets(WebSocketsSansIOProtocol):
    """Uvicorn's protocol; its scope has ``END_NOW``, to end a connection without waiting for it.

    A connection that is ended for a broken or oversized frame goes on to be read for a while: a
    reset would overtake the close frame, and the client would not learn why.
    """

    _broken = False

    def data_received(self, data: bytes) -> None:
        """Bytes; those behind a broken frame are dropped."""
        if not self._broken:
            super().data_received(data)

    def handle_parser_exception(self) -> None:
        """Closes with the code that the parser chose."""
        assert self.conn.close_sent is not None
        self._broken = self.close_sent = True
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.resume_reading()
        self.close_timer = self.loop.call_later(GRACE_SECONDS, self.transport.abort)

    def handle_connect(self, event: Any) -> None:
        """A handshake; the application begins at the loop's next turn and sees the extension."""
        super().handle_connect(event)
        if not self.close_sent:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[END_NOW] = self._end_now

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
        family, kind, number, _, address = found[0]
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
