"""Whose web page asks: a browser lets any page of the internet talk to this machine.

``Origin`` tells which page it is; other programs send none. A key keeps foreign pages out, and so
does an operator's list. Where there is neither, only this machine can connect, and a page that its
user happens to look at must not speak through the speaker or the microphone that is played into.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from rt_drama3.protocol import Refused
from rt_drama3.protocol.refusals import show
from rt_drama3.server.config import ServerConfig, is_loopback


def check_handshake(config: ServerConfig, origin: str | None, host: str | None = None) -> None:
    """Checks who opens a WebSocket to speak.

    Raises:
        Refused: ``forbidden``.
    """
    if config.allowed_origins:
        if not (origin is None or _among(config.allowed_origins, origin) or _is_own(origin, host)):
            raise _refused(origin)
    else:
        check_request(config, origin)


def check_request(config: ServerConfig, origin: str | None) -> None:
    """Checks who asks for speech over HTTP, as far as no key or CORS preflight does.

    Raises:
        Refused: ``forbidden``.
    """
    if origin is None or config.api_keys or config.insecure:
        return
    if not (_among((*config.allowed_origins, *config.cors_origins), origin) or _is_here(origin)):
        raise _refused(origin)


def check_reader(config: ServerConfig, host: str | None) -> None:
    """Checks who reads what the server tells of itself, where no key does.

    A page may make the name of its site point at this machine; then the browser takes the server
    for that site, sends no ``Origin``, and lets the page read. ``Host`` still has that name.

    Raises:
        Refused: ``forbidden``.
    """
    if not host or config.api_keys or config.insecure:
        return
    origins = (*config.allowed_origins, *config.cors_origins)
    hosts = (f"http://{allowed}" for allowed in config.allowed_hosts)
    known = {_parts(origin)[2].rstrip(".") for origin in (*origins, *hosts)}
    name = "" if "@" in host else _parts(f"http://{host}")[2].rstrip(".")
    here = name == "localhost" or name.endswith(".localhost") or _is_address(name)
    if not (here or "*" in (*origins, *config.allowed_hosts) or (name and name in known)):
        raise Refused(
            "forbidden",
            f"host {show(host)} is not this machine's address; ask for that, or let allowed_hosts "
            "name it.",
        )


def check_listener(config: ServerConfig, origin: str | None, host: str | None) -> None:
    """Checks who wants to hear or silence others.

    A page has to be the server's own, under an address that no foreign name can be made to point
    at, or one that is allowed.

    Raises:
        Refused: ``forbidden``.
    """
    if origin is None or _among(config.allowed_origins, origin):
        return
    if not _is_own(origin, host):
        raise _refused(origin)


def _among(allowed: tuple[str, ...], origin: str) -> bool:
    return origin in allowed or "*" in allowed


def _is_own(origin: str, host: str | None) -> bool:
    """Whether it is a page of this server, under a name that nobody else can give it."""
    scheme, place, name = _parts(origin)
    own = scheme in ("http", "https") and place == host
    return own and (name == "localhost" or _is_address(name))


def _is_here(origin: str) -> bool:
    """Whether a page is this machine's: from one of its servers, its disk, or a program's own.

    No page of a site can have another scheme than http or https. "null" is what a site's sandboxed
    frames have.
    """
    scheme, _, name = _parts(origin)
    if scheme in ("http", "https"):
        return is_loopback(name) or name.endswith(".localhost")
    return bool(scheme)


def _parts(origin: str) -> tuple[str, str, str]:
    """Scheme, host with port, and host; all empty for what is no origin."""
    try:
        there = urlsplit(origin)
        return there.scheme, there.netloc, there.hostname or ""
    except ValueError:
        return "", "", ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refused(origin: str) -> Refused:
    return Refused(
        "forbidden", f"origin {show(origin)} is not allowed; allowed_origins may name it."
    )
