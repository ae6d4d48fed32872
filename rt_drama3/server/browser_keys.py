"""The API key of a browser's WebSocket, which cannot send ``Authorization``.

It comes as an offered subprotocol instead: a query would put it into logs and histories.
"""

from __future__ import annotations

import base64
import binascii

from starlette.websockets import WebSocket

SUBPROTOCOL = "rt-drama3"  # offered beside the key; a browser wants one of its offers chosen
KEY_PREFIX = "rt-drama3.key."  # followed by the key, base64url without padding
LONGEST = 2_048  # characters of an offered subprotocol that are looked at


def authorization(websocket: WebSocket) -> str | None:
    """The value of ``Authorization``, or what a browser sent in its place."""
    header = websocket.headers.get("authorization")
    if header is not None:
        return header
    for offer in _offers(websocket):
        if offer.startswith(KEY_PREFIX) and len(offer) <= LONGEST:
            text = offer.removeprefix(KEY_PREFIX)
            try:
                key = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
                return f"Bearer {key.decode('ascii')}"
            except (binascii.Error, UnicodeDecodeError):
                return "Bearer"  # no key that could be known
    return None


def subprotocol(websocket: WebSocket) -> str | None:
    """What to accept the handshake with: never the offer that holds the key."""
    return SUBPROTOCOL if SUBPROTOCOL in _offers(websocket) else None


def _offers(websocket: WebSocket) -> list[str]:
    return list(websocket.scope.get("subprotocols", ()))
