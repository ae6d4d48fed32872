"""The server to measure: its address, its dialect and the request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rt_drama3_bench.errors import BenchError


class Dialect(NamedTuple):
    """A dialect's route and schemes, its usual rate in Hz, and the variable of its key."""

    route: str
    schemes: tuple[str, str]  # without and with encryption
    rate: int
    key: str


_SOCKET, _HTTP = ("ws", "wss"), ("http", "https")
DIALECTS = {
    "native": Dialect("/v1/stream", _SOCKET, 16_000, "RT_DRAMA3_CLIENT_API_KEY"),
    "fish-live": Dialect("/v1/tts/live", _SOCKET, 24_000, "FISH_API_KEY"),
    "fish-http": Dialect("/v1/tts", _HTTP, 24_000, "FISH_API_KEY"),
    "openai": Dialect("/v1/audio/speech", _HTTP, 24_000, "OPENAI_API_KEY"),
}


@dataclass(frozen=True)
class Endpoint:
    """A server and the request to make.

    Attributes:
        url: as the user gave it: a base, or the whole address of the route.
        dialect: one of ``DIALECTS``.
        key: sent as a bearer token; None sends none.
        model, voice: as the dialect names them; None leaves them to the server.
        rate: samples per second to ask for; 0 is the dialect's usual one. Assumed, too, where the
            answer does not state any.
        extra: further fields of the request.
        timeout: seconds within which an utterance must be complete.
        channels: assumed where the answer does not state any.

    Raises:
        BenchError: the dialect is unknown, or the address is not a URL.
    """

    url: str
    dialect: str = "native"
    key: str | None = field(default=None, repr=False)
    model: str | None = None
    voice: str | None = None
    rate: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 60.0
    channels: int = 1

    def __post_init__(self) -> None:
        """Checks what can be checked without a connection."""
        if self.dialect not in DIALECTS:
            known = ", ".join(DIALECTS)
            raise BenchError(f"the dialect is {self.dialect!r}; use one of {known}.")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
            raise BenchError(
                f"the address is {self.url!r}; it must be like http://host:port (https, ws, wss)."
            )

    @property
    def asked_rate(self) -> int:
        """Samples per second that are asked for."""
        return self.rate or DIALECTS[self.dialect].rate

    @property
    def secure(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.url).scheme in ("https", "wss")

    @property
    def host(self) -> str:
        """Host name or IP address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port, or the scheme's default."""
        return urlsplit(self.url).port or (443 if self.secure else 80)

    @property
    def path(self) -> str:
        """Path of the route: the address may end in it, in ``/v1`` or before that."""
        parts = urlsplit(self.url)
        path, route = parts.path.rstrip("/"), DIALECTS[self.dialect].route
        if path.endswith(route):
            return path
        return path.removesuffix("/v1") + route

    @property
    def address(self) -> str:
        """The whole URL, of a WebSocket or for HTTP."""
        scheme = DIALECTS[self.dialect].schemes[self.secure]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{self.path}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the handshake or the request."""
        found = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        if self.model and self.dialect.startswith("fish"):
            found["model"] = self.model
        return found


def extra_fields(settings: Iterable[str]) -> dict[str, Any]:
    """The further fields of a request from ``KEY=JSON``; what is not JSON is text.

    Raises:
        BenchError: a setting has no key.
    """
    extra: dict[str, Any] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or not name:
            raise BenchError(f"--set is {setting!r}; it must be KEY=VALUE.")
        try:
            extra[name] = json.loads(value)
        except json.JSONDecodeError:
            extra[name] = value
    return extra


def key_of(dialect: str, variable: str | None) -> str | None:
    """The key from the environment: a command line is visible to other users.

    Args:
        dialect: decides which variable is read.
        variable: read instead; it must be set.

    Raises:
        BenchError: the named variable is not set.
    """
    if variable is None:
        known = DIALECTS.get(dialect)
        return None if known is None else os.environ.get(known.key) or None
    key = os.environ.get(variable)
    if not key:
        raise BenchError(f"--key-env names {variable}, which is not set; export the key first.")
    return key
