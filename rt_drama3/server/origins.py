"""Origin checks against cross-site requests and DNS rebinding.

A browser lets any web page connect to this machine. ``Origin`` names the page; programs other than
browsers send none. An API key or the operator's list keeps foreign pages out. Without either, only
this machine can connect, and a page that its user opens must not speak through the local speaker
or microphone.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from rt_drama3.protocol import Refused
from rt_drama3.protocol.refusals import show
from rt_drama3.server.config import ServerConfig, is_loopback


def check_handshake(config: ServerConfig, origin: str | None, host: str | None = None) -> None:
    """Checks the origin of a WebSocket that speaks.

    Raises:
        Refused: ``forbidden``.
    """
    if config.allowed_origins:
        if not (origin is None or _among(config.allowed_origins, origin) or _is_own(origin, host)):
            raise _refused(origin)
    else:
        check_request(config, origin)


def check_request(config: ServerConfig, origin: str | None) -> None:
    """Checks the origin of a request for speech, if no key or CORS preflight does.

    Raises:
        Refused: ``forbidden``.
    """
    if origin is None or config.api_keys or config.insecure:
        return
    if not (_among((*config.allowed_origins, *config.cors_origins), origin) or _is_here(origin)):
        raise _refused(origin)


def check_reader(config: ServerConfig, host: str | None) -> None:
    """Checks the host of a request for the server's own data, if no key protects it.

    A page can make the name of its site resolve to this machine; the browser then treats the server
    as that site, sends no ``Origin``, and lets the page read. ``Host`` still has that name.

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
            f"host {show(host)} is not this machine's address; use that, or add it to "
            "allowed_hosts.",
        )


def check_listener(config: ServerConfig, origin: str | None, host: str | None) -> None:
    """Checks the origin of a listener, and of a request to mute others.

    It must be a page of the server itself, under an address that no foreign name can resolve to, or
    an allowed one.

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
    """Whether it is a page of this server, under a name that no other site can have."""
    scheme, authority, name = _parts(origin)
    own = scheme in ("http", "https") and authority == host
    return own and (name == "localhost" or _is_address(name))


def _is_here(origin: str) -> bool:
    """Whether a page is local: from a server on this machine, its disk, or an application.

    Pages of web sites always have the scheme http or https; their sandboxed frames have "null".
    """
    scheme, _, name = _parts(origin)
    if scheme in ("http", "https"):
        return is_loopback(name) or name.endswith(".localhost")
    return bool(scheme)


def _parts(origin: str) -> tuple[str, str, str]:
    """Scheme, host with port, and host; all empty if it is invalid."""
    try:
        parts = urlsplit(origin)
        return parts.scheme, parts.netloc, parts.hostname or ""
    except ValueError:
        return "", "", ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refused(origin: str) -> Refused:
    return Refused("forbidden", f"origin {show(origin)} is not allowed; add it to allowed_origins.")
