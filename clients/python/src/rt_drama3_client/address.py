"""Where the server is, and what a connection to it is allowed to take."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from rt_drama3_client.errors import UsageError

DEFAULT_URL = "http://127.0.0.1:8035"
URL_VARIABLE = "RT_DRAMA3_CLIENT_URL"
KEY_VARIABLE = "RT_DRAMA3_CLIENT_API_KEY"
_SECURE = {"http": False, "ws": False, "https": True, "wss": True}


@dataclass(frozen=True)
class Address:
    """A server.

    Attributes:
        secure: whether TLS is spoken.
        host: with the port, as in a URL.
        prefix: path before ``/v1``, without a slash at its end.
        loopback: whether it is this machine, which no proxy could reach.
    """

    secure: bool
    host: str
    prefix: str
    loopback: bool

    @property
    def stream(self) -> str:
        """URL of the native dialect."""
        return f"{'wss' if self.secure else 'ws'}://{self.host}{self.prefix}/v1/stream"

    def http(self, path: str) -> str:
        """URL of an HTTP route."""
        return f"{'https' if self.secure else 'http'}://{self.host}{self.prefix}{path}"


def read_address(url: str | None) -> Address:
    """An address as people write it: ``host:port``, ``http://...``, ``wss://.../v1/stream``.

    Args:
        url: None takes the environment's ``RT_DRAMA3_CLIENT_URL``, else this machine's server.

    Raises:
        UsageError: it is not the address of a server.
    """
    text = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    if "@" in text:  # not shown: a password may be in it
        raise UsageError(
            "the address is not to hold a user name or a password; pass a key as api_key "
            f"(--api-key, or {KEY_VARIABLE}) and write the address like {DEFAULT_URL}."
        )
    bare = re.split(r"[?#]", text, maxsplit=1)[0]  # a query may hold a key
    shown = repr(bare) if bare == text else f"{bare!r} and a query or fragment"
    wanted = f"the address is {shown}; write it like {DEFAULT_URL}."
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
    """The key, or that of the environment's ``RT_DRAMA3_CLIENT_API_KEY``.

    Raises:
        UsageError: it cannot be sent in a header.
    """
    found = (os.environ.get(KEY_VARIABLE) if key is None else key) or None
    if found is not None and not (found.isascii() and found.isprintable()):
        raise UsageError("the API key has characters that a header cannot carry.")
    return found


@dataclass(frozen=True)
class Settings:
    """How a client behaves; all times in seconds.

    Attributes:
        connect_timeout: for a connection, handshake included; each attempt has as long.
        timeout: without a word of a server that owes one: an answer to ``start``, audio once the
            text is complete, or room for what is sent.
        cancel_timeout: for the answer to a cancel; then the connection is given up.
        queue_timeout: the same while others are in front.
        ping_seconds: between pings where nothing comes; a peer that leaves one unanswered for as
            long counts as gone.
        close_timeout: for the close handshake.
        attempts: of an utterance before its first audio, in all; 1: it is never tried again.
        backoff: before the second attempt; it doubles, up to 2 s.
        ready_timeout: since its first attempt, for a server that says when to ask again
            (``Retry-After``; it is starting, or full): it is asked then, beyond ``attempts``.
        buffer_bytes: audio of an utterance that waits here to be taken; beyond it the server waits.
        max_idle: connections that are kept for later.
        proxy: True takes the system's, None none; or the address of one.
        tls: for certificates that the system does not know.
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
                raise UsageError(f"{name} is {getattr(self, name)}; it must be above 0.")
        for name in ("backoff", "ready_timeout", "max_idle"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must not be negative.")


def _here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
