"""The HTTP routes: voices and models. Blocking; ``AsyncClient`` calls them in threads."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgpack

from rt_drama3_client.address import Server
from rt_drama3_client.clips import Clip, as_clips
from rt_drama3_client.connection import connect_failed, refusal
from rt_drama3_client.errors import BadServerMessage, UsageError

MAX_RESPONSE = 16 << 20  # bytes
_NAME = re.compile(r"[^\W_][\w .:@+-]{0,127}")  # the server's rule


@dataclass(frozen=True)
class Voice:
    """A stored voice.

    Attributes:
        name: its name.
        texts: transcripts of its clips.
        seconds: total duration of its clips.
        created: Unix time in seconds.
        notices: warnings; only when it is added.
    """

    name: str
    texts: tuple[str, ...] = ()
    seconds: float = 0.0
    created: int = 0
    notices: tuple[str, ...] = ()


def voices(server: Server) -> list[Voice]:
    """``GET /v1/voices``."""
    return [_voice(one) for one in _list(_request(server, "GET", "/v1/voices"))]


def add_voice(server: Server, name: str, clips: Sequence[Clip]) -> Voice:
    """``POST /v1/voices``."""
    _check_name(name)
    references = as_clips(clips)
    try:
        body = msgpack.packb({"name": name, "references": references})
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"the clips cannot be sent: {error}.") from error
    return _voice(_request(server, "POST", "/v1/voices", body))


def delete_voice(server: Server, name: str) -> None:
    """``DELETE /v1/voices/{name}``."""
    _check_name(name)
    _request(server, "DELETE", f"/v1/voices/{quote(name, safe='')}")


def models(server: Server) -> list[str]:
    """``GET /v1/models``."""
    return [str(model.get("id")) for model in _list(_request(server, "GET", "/v1/models"))]


def _request(server: Server, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
    """Sends one request.

    Raises:
        ConnectFailed: there was no response.
        ServerError: it was refused.
        BadServerMessage: the response is not HTTP, or not JSON.
    """
    address, settings = server.address, server.settings
    headers = {"User-Agent": "rt-drama3-client", "Content-Type": "application/msgpack"}
    headers |= server.headers
    request = urllib.request.Request(address.http(path), body, headers, method=method)
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if address.loopback or settings.proxy is None:
        handlers.append(urllib.request.ProxyHandler({}))
    elif isinstance(settings.proxy, str):
        proxies = {"http": settings.proxy, "https": settings.proxy}
        handlers.append(urllib.request.ProxyHandler(proxies))
    if settings.tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=settings.tls))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=settings.timeout) as got:
            answer = got.read(MAX_RESPONSE)
    except urllib.error.HTTPError as error:
        with error:
            answer = error.read(MAX_RESPONSE)
        headers = {name.lower(): value for name, value in error.headers.items()}
        raise refusal(error.code, headers, answer, address) from error
    except (OSError, UnicodeError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        raise connect_failed(address, cause) from error
    except http.client.HTTPException as error:
        raise BadServerMessage(
            f"{address.host} did not respond with HTTP: {error!r:.80}."
        ) from error
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise BadServerMessage(f"{path} did not respond with JSON.") from error
    if not isinstance(found, dict):
        raise BadServerMessage(f"{path} did not respond with an object.")
    return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, so that the key is sent only to the given server."""

    def redirect_request(self, *request: object) -> None:
        return None


def _check_name(name: str) -> None:
    """Refuses an invalid name before it becomes part of a URL."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid voice name {name!r:.140}: use up to 128 letters, digits, spaces and "
            ". : @ + - _, starting with a letter or digit."
        )


def _list(found: dict[str, Any]) -> list[dict[str, Any]]:
    entries = found.get("data")
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise BadServerMessage("the server's list has no data.")
    return entries


def _voice(found: dict[str, Any]) -> Voice:
    try:
        return Voice(
            str(found["name"]),
            tuple(map(str, found.get("texts", ()))),
            float(found.get("seconds", 0.0)),
            int(found.get("created", 0)),
            tuple(map(str, found.get("notices", ()))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadServerMessage("the server's voice has missing or invalid fields.") from error
