"""What the application can ask of a connection beyond ASGI.

The transport puts itself into the scope's extensions. Under another ASGI server the extension is
missing, and the application falls back to plain ASGI messages.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol

EXTENSION = "rt_drama3"  # key of the scope's extension, and of a large message's parts


class WebSocketControl(Protocol):
    """Control of one WebSocket."""

    def send_now(self, data: bytes) -> bool:
        """Sends a binary message within this turn of the event loop.

        Every further turn may cost the time that another thread holds the interpreter, so audio is
        sent this way while the transport's buffer has room.

        Returns:
            Whether it was sent; false when the buffer is full or the connection is closing.
        """

    def close_now(self, messages: Sequence[bytes], code: int, reason: str) -> None:
        """Sends last messages and a close frame behind whatever is unsent, then aborts."""


class HttpControl(Protocol):
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
