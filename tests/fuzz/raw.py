"""A WebSocket client that can do everything wrong, on a plain socket."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LEAVING = ("close", "drop", "reset", "half")
KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455, 1.2


class Gone(Exception):  # noqa: N818 - the name is the condition
    """The server closed the connection or reset it."""


def handshake(path: str = "/v1/stream", **headers: str) -> bytes:
    """The request of a client; a header that is empty is left out."""
    fields = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items() if v), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    masked: bool = True,
    reserved: int = 0,
    length: int | None = None,
) -> bytes:
    """A frame as it goes over the line; ``length`` may be a lie. The mask is zeros."""
    size = len(payload) if length is None else length
    head = bytes([(fin << 7) | (reserved << 4) | opcode])
    mask = masked << 7
    if size < 126:
        head += bytes([mask | size])
    elif size < 1 << 16:
        head += struct.pack("!BH", mask | 126, size)
    else:
        head += struct.pack("!BQ", mask | 127, size)
    return head + (bytes(4) if masked else b"") + payload


class Raw:
    """A connection.

    Args:
        port: on this machine.
        patience: seconds for whatever the server has to do.
        room: bytes that the system keeps of what was not read; 0 leaves it to the system.
    """

    def __init__(self, port: int, patience: float, room: int = 0) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(patience)
        if room:  # before the connection: no window may shrink
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def send(self, data: bytes) -> None:
        """Raises: Gone."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionError) as error:
            raise Gone from error

    def _more(self) -> None:
        try:
            data = self.socket.recv(65_536)
        except ConnectionError as error:
            raise Gone from error
        if not data:
            raise Gone
        self._rest += data

    def _take(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._more()
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def response(self) -> int:
        """The status of an HTTP answer; its body stays unread."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, self._rest = self._rest.split(b"\r\n\r\n", 1)
        return int(head.split(b" ", 2)[1])

    def drain(self) -> None:
        """Reads up to the end of the connection."""
        with suppress(Gone):
            while True:
                self._rest = b""
                self._more()

    def upgrade(self, path: str) -> None:
        """A right handshake."""
        self.send(handshake(path))
        assert self.response() == 101

    def read(self) -> tuple[int, bytes]:
        """The next frame of the server: opcode and payload."""
        head = self._take(2)
        assert (head[0] & 0x80, head[1] & 0x80) == (0x80, 0), "a frame is whole and not masked"
        size = head[1]
        if size == 126:
            size = int.from_bytes(self._take(2), "big")
        elif size == 127:
            size = int.from_bytes(self._take(8), "big")
        return head[0] & 0x0F, self._take(size)

    def code(self) -> int:
        """Reads up to the close frame and returns its code; 0 where the line ended without one."""
        with suppress(Gone):
            while True:
                opcode, payload = self.read()
                if opcode == CLOSE:
                    return int.from_bytes(payload[:2], "big")
        return 0

    def leave(self, how: str) -> None:
        """Ends the connection politely, by closing or resetting it, or by half."""
        with suppress(Gone, OSError):
            if how == "close":
                self.send(frame(CLOSE, b"\x03\xe8"))
                self.code()
            elif how == "reset":
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif how == "half":
                self.socket.shutdown(socket.SHUT_WR)
                self.drain()
        self.socket.close()
