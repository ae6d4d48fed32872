"""Access: who may use the server: API keys, and limits on connections.

A browser's WebSocket cannot send ``Authorization``. Its key comes as an offered subprotocol
instead: a query would put it into logs and histories.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.websockets import WebSocket

from rt_drama3.protocol import Refused
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.metrics import Metrics

SUBPROTOCOL = "rt-drama3"  # offered next to the key; a browser expects one of its offers chosen
KEY_PREFIX = "rt-drama3.key."  # followed by the key, base64url without padding
MAX_OFFER = 2_048  # characters; longer subprotocols are ignored


class Access:
    """Checks keys and counts connections.

    Args:
        config: names keys and limits.
        metrics: of the server.
    """

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        self._keys = tuple(key.encode() for key in config.api_keys)
        self._per_client, self._total = config.connections_per_client, config.connections
        self._metrics = metrics
        self._connections: Counter[str] = Counter()  # by address

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return self._connections.total()

    def check_key(self, authorization: str | None) -> None:
        """Checks ``Authorization``.

        Raises:
            Refused: ``unauthorized``.
        """
        if not self._keys:
            return
        scheme, _, key = (authorization or "").partition(" ")
        given = key.strip().encode()
        # Compares every key, each in constant time, so that timing reveals nothing of them.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            what = "no API key was sent" if not key else "the API key is not known"
            raise Refused("unauthorized", f"{what}.")

    @contextmanager
    def connection(self, address: str, route: str) -> Iterator[None]:
        """Counts a connection while it lasts.

        Raises:
            Refused: ``overloaded``: too many are open, in total or from this client.
        """
        mine, total = self._connections[address], self.connections
        if mine >= self._per_client:
            raise Refused(
                "overloaded",
                f"{mine} connections of this client are open; the limit is {self._per_client} "
                "(connections_per_client).",
                "Close some, or ask the operator to raise connections_per_client; behind a proxy "
                "all clients count as one unless it is in trusted_proxies.",
            )
        if total >= self._total:
            raise Refused(
                "overloaded",
                f"{total} connections are open; the limit is {self._total} (connections).",
            )
        self._connections[address] += 1
        gauge = self._metrics.connections.labels(route)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()
            self._connections[address] -= 1
            if not self._connections[address]:
                del self._connections[address]


def authorization(websocket: WebSocket) -> str | None:
    """The value of ``Authorization``, or what a browser sent in its place."""
    header = websocket.headers.get("authorization")
    if header is not None:
        return header
    for offer in _offers(websocket):
        if offer.startswith(KEY_PREFIX) and len(offer) <= MAX_OFFER:
            text = offer.removeprefix(KEY_PREFIX)
            try:
                key = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
                return f"Bearer {key.decode('ascii')}"
            except (binascii.Error, UnicodeDecodeError):
                return "Bearer"  # matches no key
    return None


def subprotocol(websocket: WebSocket) -> str | None:
    """The subprotocol to accept: never the offer that holds the key."""
    return SUBPROTOCOL if SUBPROTOCOL in _offers(websocket) else None


def _offers(websocket: WebSocket) -> list[str]:
    return list(websocket.scope.get("subprotocols", ()))
