"""What the application can ask of a connection beyond ASGI.

The transport puts itself into the scope's extensions. Under another ASGI server the extension is
missing, and the application falls back to plain ASGI messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

EXTENSION = "rt_drama3"  # key of the scope's extension, and of a large message's parts


class LineControl(Protocol):
    """Control of the bytes of one connection."""

    def held(self) -> int:
        """Bytes written that the peer has not acknowledged.

        Where the system does not report them, those that it has taken are not counted.
        """

    def limit_unsent(self, size: int) -> None:
        """Bounds the bytes that wait to be sent: in the system, and in the transport."""


class WebSocketControl(LineControl, Protocol):
    """Control of one WebSocket."""

    def expect_pongs(self, due: Callable[[], float | None]) -> None:
        """Sets when pings have to be answered.

        Args:
            due: the time of the event loop from which on a pong is awaited, since a client that
                plays while it reads finds the ping behind audio; None awaits none. A peer that
                does not answer for ``ping_timeout`` from then on is gone.
        """

    def send_now(self, data: bytes) -> bool:
        """Sends a binary message within this turn of the event loop.

        Every further turn may cost the time that another thread holds the interpreter, so audio is
        sent this way while the transport's buffer has room.

        Returns:
            Whether it was sent; false when the buffer is full or the connection is closing.
        """

    def close_now(self, messages: Sequence[bytes], code: int, reason: str) -> None:
        """Sends last messages and a close frame behind whatever is unsent, then aborts."""


class HttpControl(LineControl, Protocol):
    """Control of one HTTP connection."""

    def set_incomplete(self, incomplete: bool) -> None:
        """Says whether a response without a length is under way.

        HTTP/1.0 has no chunks: only the end of the connection ends such a response, and a client
        would take a part of it for all. So while it is incomplete, its connection ends with a
        reset, even if the process is killed. Without effect on HTTP/1.1.
        """

    def abort_response(self) -> None:
        """Closes the connection in the middle of a response, which uvicorn would log as a bug."""


def control_of(scope: MutableMapping[str, Any]) -> Any:
    """The ``WebSocketControl`` or ``HttpControl`` of a scope; None under another ASGI server."""
    return scope.get("extensions", {}).get(EXTENSION)


def message_parts(message: Mapping[str, Any]) -> str | Sequence[bytes]:
    """The content of a ``websocket.receive``: text, or binary data in one part or several.

    A large text message is given as empty text: text is refused whatever it says.
    """
    data = message.get("bytes")
    if data is None:
        return message.get("text") or ""
    parts: Sequence[bytes] = message.get(EXTENSION, (data,))
    return parts
