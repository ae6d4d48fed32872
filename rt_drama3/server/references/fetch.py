"""Fetcher: fetches reference clips by URL, from public addresses only.

A client names the URL, so this could be abused to reach what only this machine can reach (SSRF).
The host of every hop is resolved here, each of its addresses is checked, and the connection uses
the checked address: nothing is resolved twice, so DNS rebinding gains nothing. TLS still verifies
the name. That pinning is why this uses asyncio streams with h11 (which uvicorn brings) and not an
HTTP library: those resolve by themselves, follow proxies of the environment, decompress, and keep
connections and cookies.

Everything is bounded: bytes, the total time for all clips of a request, redirects, headers, and
concurrent fetches. The fetching task can be cancelled at any point.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

import h11

from rt_drama3 import __version__
from rt_drama3.protocol import Refused
from rt_drama3.protocol.refusals import show
from rt_drama3.server.references.addresses import is_public

log = logging.getLogger("rt_drama3.server")

MAX_REDIRECTS = 3
LONGEST_URL = 2_048
HEAD_BYTES = 16_384  # bytes of a response before its body
READ_BYTES = 65_536
PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9.])?|[0-9a-f:.]*:[0-9a-f:.]*")
_PLAIN = re.compile(r"[!-~]+")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolves a name to all its addresses, by the system's resolver.

    Raises:
        OSError: there are none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True)
class Target:
    """A URL whose text passed all checks.

    Attributes:
        url: the complete URL.
        secure: https.
        host: in lower case; an IPv6 address without brackets.
        port: the scheme's default if it names none.
        path: with the query.
    """

    url: str
    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str, ports: Sequence[int]) -> Target:
        """Checks a URL.

        Raises:
            Refused: ``bad_reference``.
        """
        if len(url) > LONGEST_URL:
            raise _refused(url, f"has {len(url)} characters; the limit is {LONGEST_URL}")
        if not _PLAIN.fullmatch(url) or "\\" in url:
            raise _refused(url, "has characters that a URL cannot have; percent-encode them")
        try:
            parts: SplitResult = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise _refused(url, "is not a URL that can be read; correct it") from None
        if parts.scheme not in PORTS:
            raise _refused(url, "is neither http nor https; use one of them")
        if "@" in parts.netloc:
            raise _refused(url, "has credentials in it; use one that needs none")
        if not _HOST.fullmatch(host):
            raise _refused(url, "has no host name that can be looked up; correct it")
        port = PORTS[parts.scheme] if port is None else port
        if port not in ports:
            wanted = ", ".join(map(str, ports))
            raise _refused(url, f"has port {port}; allowed are {wanted}")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(url, parts.scheme == "https", host, port, path)

    @property
    def authority(self) -> str:
        """For the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = PORTS["https" if self.secure else "http"]
        return host if self.port == default else f"{host}:{self.port}"


class Fetcher:
    """Fetches clips for requests.

    Args:
        seconds: total time for all clips of one request.
        ports: allowed in URLs.
        concurrent: limit of requests that fetch concurrently.
        resolve: returns the addresses of a name.
        allowed: decides whether an address may be connected to.
        tls: for https; None verifies against the system's authorities.
    """

    def __init__(
        self,
        seconds: float = 10.0,
        ports: Sequence[int] = (80, 443),
        concurrent: int = 8,
        resolve: Resolve = resolve,
        allowed: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._seconds = seconds
        self._ports = tuple(ports)
        self._slots = asyncio.Semaphore(concurrent)
        self._resolve = resolve
        self._allowed = allowed
        self._tls = tls

    async def fetch(self, urls: Sequence[str], each: int, together: int) -> list[bytes]:
        """Fetches the URLs of one request, one after the other.

        Args:
            urls: those of the request.
            each: limit of bytes for one.
            together: limit of bytes for all.

        Raises:
            Refused: ``bad_reference``, or ``overloaded`` if its turn did not come.
        """
        found: list[bytes] = []
        began, current = time.monotonic(), ""
        try:
            async with asyncio.timeout(self._seconds), self._slots:
                for url in urls:
                    current = url
                    left = together - sum(map(len, found))
                    found.append(await self._one(url, min(each, left), each))
        except TimeoutError:
            if not current:
                raise Refused(
                    "overloaded",
                    f"no URL could be fetched within {self._seconds:g} s: too many requests fetch.",
                ) from None
            raise _refused(
                current,
                f"did not answer in full within the {self._seconds:g} s that all URLs of a request "
                "have; use a faster host, or send the audio itself",
                began,
            ) from None
        return found

    async def _one(self, url: str, most: int, each: int) -> bytes:
        target, began = Target.parse(url, self._ports), time.monotonic()
        for _ in range(MAX_REDIRECTS + 1):
            async with contextlib.aclosing(self._get(target, began)) as parts:
                body, moved = bytearray(), None
                async for part in parts:
                    if isinstance(part, str):
                        moved = part
                        break
                    body += part
                    if len(body) > most:
                        limit = (
                            f"{each} bytes that a clip"
                            if most == each
                            else (f"{most} bytes that all clips of a request together still")
                        )
                        raise _refused(
                            url, f"has more than the {limit} may have; shorten it", began
                        )
            if moved is None:
                fields = {"host": target.host, "bytes": len(body)}
                log.info("clip fetched", extra={"fields": fields})
                return bytes(body)
            onward = Target.parse(urljoin(target.url, moved), self._ports)
            if target.secure and not onward.secure:
                raise _refused(url, "redirects from https to http; use another one", began)
            target = onward
        raise _refused(
            url, f"redirects more than {MAX_REDIRECTS} times; use the last one itself", began
        )

    async def _get(self, target: Target, began: float) -> AsyncGenerator[bytes | str, None]:
        """Yields the parts of a response's body, or a str: where it redirects to."""
        reader, writer = await self._connect(target, began)
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        try:
            headers = [
                ("Host", target.authority),
                ("User-Agent", f"rt-drama3/{__version__}"),
                ("Accept", "audio/*, */*;q=0.1"),
                ("Accept-Encoding", "identity"),
                ("Connection", "close"),
            ]
            request = h11.Request(method="GET", target=target.path, headers=headers)
            writer.write(connection.send(request) + connection.send(h11.EndOfMessage()))
            await writer.drain()
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await reader.read(READ_BYTES))
                elif isinstance(event, h11.Response):
                    moved = _check(event, target, began)
                    if moved is not None:
                        yield moved
                        return
                elif isinstance(event, h11.Data):
                    yield bytes(event.data)
                elif not isinstance(event, h11.InformationalResponse):
                    return
        except h11.ProtocolError:
            raise _refused(
                target.url, "was not answered in full, or not as HTTP; use another host", began
            ) from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise _refused(target.url, f"broke off ({reason}); try again", began) from None
        finally:
            writer.transport.abort()

    async def _connect(
        self, target: Target, began: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to a checked address; the name is only used for TLS."""
        try:
            addresses = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError):
            addresses = ()
        if not addresses:
            raise _refused(target.url, "has a host that cannot be found; correct it", began)
        if not all(map(self._allowed, addresses)):
            raise _refused(
                target.url, "leads to an address that is not public; use a public one", began
            )
        if target.secure and self._tls is None:  # reads the authorities' files
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        context = self._tls if target.secure else None
        name = target.host if target.secure else None
        reason = "no address answers"
        for address in addresses:
            try:
                return await asyncio.open_connection(
                    address, target.port, ssl=context, server_hostname=name
                )
            except ssl.SSLError:
                reason = "TLS failed: its certificate is not valid for the name"
            except OSError as error:
                reason = error.strerror or reason
        raise _refused(target.url, f"cannot be connected to ({reason}); use another one", began)


def _check(response: h11.Response, target: Target, began: float) -> str | None:
    """Checks a response; returns where it redirects to, None if its body is the clip."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
    if response.status_code in _REDIRECTS and "location" in headers:
        return headers["location"]
    if response.status_code != 200:
        raise _refused(
            target.url, f"was answered with status {response.status_code}; correct it", began
        )
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise _refused(
            target.url, f"has Content-Encoding {show(encoding)}; none is accepted", began
        )
    return None


def _refused(url: str, what: str, began: float | None = None) -> Refused:
    """The error for the client; the log gets only the host."""
    if began is not None:
        with contextlib.suppress(ValueError):
            fields = {"host": urlsplit(url).hostname, "seconds": round(time.monotonic() - began, 3)}
            log.info("clip not fetched", extra={"fields": fields})
    return Refused("bad_reference", f"the clip's URL {show(url)} {what}.")
