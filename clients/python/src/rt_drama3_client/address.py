"""The server's address, and the client's settings."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from rt_drama3_client.errors import UsageError

DEFAULT_URL = "http://127.0.0.1:8035"
URL_VARIABLE = "RT_DRAMA3_CLIENT_URL"
KEY_VARIABLE = "RT_DRAMA3_CLIENT_API_KEY"
_SECURE = {"http": False, "ws": False, "https": True, "wss": True}


@dataclass(frozen=True)
class Address:
    """The address of a server.

    Attributes:
        secure: whether to use TLS.
        host: host and port, as in a URL.
        prefix: path before ``/v1``, without a trailing slash.
        loopback: whether it is this machine, which is never reached through a proxy.
    """

    secure: bool
    host: str
    prefix: str
    loopback: bool

    @property
    def stream(self) -> str:
        """URL of the native WebSocket protocol."""
        return f"{'wss' if self.secure else 'ws'}://{self.host}{self.prefix}/v1/stream"

    def http(self, path: str) -> str:
        """URL of an HTTP route."""
        return f"{'https' if self.secure else 'http'}://{self.host}{self.prefix}{path}"


def read_address(url: str | None) -> Address:
    """Parses an address such as ``host:port``, ``http://...`` or ``wss://.../v1/stream``.

    Args:
        url: None uses the environment variable ``RT_DRAMA3_CLIENT_URL``, else this machine's
            server.

    Raises:
        UsageError: it is not the address of a server.
    """
    text = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    if "@" in text:  # not shown: it may contain a password
        raise UsageError(
            "the address must not contain a user name or a password; pass a key as api_key "
            f"(--api-key, or {KEY_VARIABLE}) and use an address like {DEFAULT_URL}."
        )
    bare = re.split(r"[?#]", text, maxsplit=1)[0]  # a query may contain a key
    shown = repr(bare) if bare == text else f"{bare!r} and a query or fragment"
    wanted = f"invalid address {shown}: use one like {DEFAULT_URL}."
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(wanted) from error
    if parts.scheme not in _SECURE or not host or bare != text:
        raise UsageError(wanted)
    if " " in text or not text.isprintable() or not parts.path.isascii():
        raise UsageError(wanted)
    shown = f"[{host}]" if ":" in host else host
    prefix = parts.path.removesuffix("/").removesuffix("/v1/stream").removesuffix("/")
    return Address(
        _SECURE[parts.scheme], shown if port is None else f"{shown}:{port}", prefix, _here(host)
    )


def read_key(key: str | None) -> str | None:
    """Returns the key, or the value of the environment variable ``RT_DRAMA3_CLIENT_API_KEY``.

    Raises:
        UsageError: it cannot be sent in a header.
    """
    found = (os.environ.get(KEY_VARIABLE) if key is None else key) or None
    if found is not None and not (found.isascii() and found.isprintable()):
        raise UsageError("the API key has characters that are not allowed in a header.")
    return found


@dataclass(frozen=True)
class Settings:
    """Timeouts and limits of a client; all times in seconds.

    Attributes:
        connect_timeout: for each attempt to connect, including the handshake.
        timeout: for a server that owes a response: to ``start``, audio once the text is complete,
            or room for what is sent.
        cancel_timeout: for the response to a cancel; then the connection is dropped.
        queue_timeout: like ``timeout``, while the utterance is queued.
        ping_seconds: interval of pings while nothing arrives; a peer that does not respond to one
            for as long is considered dead.
        close_timeout: for the close handshake.
        attempts: maximum number of attempts of an utterance before its first audio; 1 disables
            retries.
        backoff: delay before the second attempt; it doubles, up to 2 s.
        ready_timeout: how long to retry, from the first attempt, while a server that is starting or
            full says when to retry (``Retry-After``); these retries do not count as ``attempts``.
        buffer_bytes: audio of an utterance that is buffered here; beyond it the server waits.
        max_idle: number of idle connections that are kept open.
        proxy: True for the system's proxy, None for none, or the address of one.
        tls: context for certificates that the system does not trust.
    """

    connect_timeout: float = 10.0
    timeout: float = 30.0
    cancel_timeout: float = 2.0
    queue_timeout: float = 120.0
    ping_seconds: float = 5.0
    close_timeout: float = 2.0
    attempts: int = 3
    backoff: float = 0.1
    ready_timeout: float = 10.0
    buffer_bytes: int = 8 << 20
    max_idle: int = 4
    proxy: str | Literal[True] | None = True
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        for name in (
            *("connect_timeout", "timeout", "cancel_timeout", "queue_timeout", "close_timeout"),
            *("ping_seconds", "attempts", "buffer_bytes"),
        ):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be greater than 0.")
        for name in ("backoff", "ready_timeout", "max_idle"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must not be negative.")


@dataclass(frozen=True)
class Server:
    """A server: where it is, the key for it, and how patiently it is used."""

    address: Address
    key: str | None = field(repr=False)
    settings: Settings

    @property
    def headers(self) -> dict[str, str]:
        """The headers that identify the client."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}


def _here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
