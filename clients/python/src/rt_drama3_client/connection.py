"""Connection: one WebSocket to /v1/stream, which passes messages to the current utterance."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import ssl
import time
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
)

from rt_drama3_client.address import Address, Server, Settings
from rt_drama3_client.errors import (
    BadServerMessage,
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    ServerError,
    ServerSilent,
    UsageError,
    server_error,
)
from rt_drama3_client.inbox import Inbox
from rt_drama3_client.messages import Pong, pack, unpack

MAX_MESSAGE = 4 << 20  # bytes; only a take of hours would be larger
# Status codes of a proxy or load balancer in front of the server.
_CODES = {401: "unauthorized", 403: "forbidden", 404: "no_such_route", 429: "overloaded"}
_NO_ROUTE = frozenset((400, 404, 405, 426, 501))  # from servers that do not have this route


class Connection:
    """An open connection, for one utterance at a time. Use ``Connection.open``.

    Attributes:
        seconds: time it took to open.
        listener: receives the messages of the current utterance.
        failure: why it ended; None while it is open.
    """

    def __init__(self, socket: ClientConnection, settings: Settings, seconds: float) -> None:
        self.seconds = seconds
        self.listener: Inbox | None = None
        self.failure: ClientError | None = None
        self._socket = socket
        self._settings = settings
        self._final_error: ServerError | None = None
        self._numbers = itertools.count(1)
        self._pings: dict[object, tuple[float, asyncio.Future[Pong]]] = {}
        self._reader = asyncio.create_task(self._read(), name="rt-drama3-client reader")

    @classmethod
    async def open(cls, server: Server) -> Connection:
        """Connects.

        Raises:
            ConnectFailed: there is no server, or it is not of this kind.
            ServerError: the server refused.
            UsageError: the address or proxy is not valid.
        """
        began, address, settings = time.perf_counter(), server.address, server.settings
        tls = {"ssl": settings.tls} if address.secure and settings.tls is not None else {}
        try:
            socket = await connect(
                address.stream,
                additional_headers=server.headers,
                user_agent_header="rt-drama3-client",
                compression=None,  # audio does not compress, and compressing adds latency
                open_timeout=settings.connect_timeout,
                close_timeout=settings.close_timeout,
                ping_interval=None,  # see _next
                max_size=MAX_MESSAGE,
                proxy=None if address.loopback else settings.proxy,
                **cast(Any, tls),
            )
        except InvalidStatus as error:
            raise _refused(error, address) from error
        except InvalidProxy as error:  # its message contains the proxy, perhaps with a password
            raise UsageError(f"the proxy cannot be used: {error.msg}.") from None
        except (InvalidURI, ImportError) as error:  # socks needs another package
            raise UsageError(f"{address.stream} cannot be connected to: {error}.") from error
        except TimeoutError as error:
            took = f"{settings.connect_timeout:g} s"
            raise ConnectFailed(f"{address.host} did not respond within {took}.") from error
        except (OSError, EOFError, InvalidHandshake, UnicodeError) as error:
            raise connect_failed(address, error) from error
        return cls(socket, settings, time.perf_counter() - began)

    @property
    def alive(self) -> bool:
        """Whether an utterance can begin on it."""
        return self.failure is None and self._final_error is None

    async def send(self, message: bytes) -> None:
        """Sends one message.

        Raises:
            ClientError: the connection is lost, or accepted nothing for too long and was dropped.
        """
        if self.failure is not None:
            raise self.failure
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._socket.send(message)
        except ConnectionClosed as closed:
            # The reader knows the reason once it has read everything, unless it is blocked.
            await asyncio.wait((self._reader,), timeout=self._settings.close_timeout)
            self._end(_lost(closed))
            self._raise_failure()
        except TimeoutError:
            took = f"{self._settings.timeout:g} s"
            self.abort(ServerSilent(f"the server accepted nothing for {took}."))
            self._raise_failure()
        except asyncio.CancelledError:
            # It is unknown how much of the message was sent.
            self.abort(ConnectionLost("sending was interrupted."))
            raise

    async def ping(self) -> Pong:
        """Requests the server's clock; the response arrives after audio that is in transit.

        Raises:
            ClientError: there was no response.
        """
        number = next(self._numbers)
        answer: asyncio.Future[Pong] = asyncio.get_running_loop().create_future()
        self._pings[number] = (time.perf_counter(), answer)
        try:
            await self.send(pack("ping", data=number))
            async with asyncio.timeout(self._settings.timeout):
                return await answer
        except TimeoutError as error:
            raise ServerSilent("a ping was not answered.") from error
        finally:
            del self._pings[number]
            answer.cancel()

    def abort(self, error: ClientError) -> None:
        """Drops the connection immediately."""
        self._end(error)
        self._socket.transport.abort()

    async def close(self) -> None:
        """Closes the connection and waits until the socket and the reader have ended."""
        busy = self.listener is not None
        self._end(ClientClosed("the client was closed."))
        self._reader.cancel()
        await asyncio.wait((self._reader,))
        if busy:  # a close handshake would wait behind unread audio
            self._socket.transport.abort()
        await self._socket.close()
        await self._socket.wait_closed()

    async def _read(self) -> None:
        try:
            while True:
                data = await self._next()
                name, message = unpack(data, time.perf_counter())
                if isinstance(message, Pong):
                    self._answer(message)
                elif isinstance(message, ServerError) and message.scope == "connection":
                    self._final_error = message  # the close that follows has no more details
                elif message is not None and self.listener is not None:
                    await self.listener.take(name, message)
        except ConnectionClosed as closed:
            self._end(self._final_error or _lost(closed))
        except BadServerMessage as error:
            self.abort(error)
        finally:
            self._end(ConnectionLost("the connection ended."))

    async def _next(self) -> bytes | str:
        """Returns the next message; detects a peer that has disappeared.

        Pings are sent only while this waits: a slow listener must not look like a dead server, as
        it would to the pings of the WebSocket library.
        """
        pong: asyncio.Future[float] | None = None
        while True:
            try:
                async with asyncio.timeout(self._settings.ping_seconds):
                    return await self._socket.recv()
            except TimeoutError:
                if pong is not None and not pong.done():
                    took = f"{2 * self._settings.ping_seconds:g} s"
                    self.abort(ConnectionLost(f"nothing arrived for {took}, not even a pong."))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.ping_seconds):
                        pong = cast("asyncio.Future[float]", await self._socket.ping())

    def _answer(self, pong: Pong) -> None:
        sent, answer = self._pings.get(pong.data, (0.0, None))
        if answer is not None and not answer.done():
            answer.set_result(Pong(pong.data, pong.server_ms, time.perf_counter() - sent))

    def _end(self, error: ClientError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        for _, answer in self._pings.values():
            if not answer.done():
                answer.set_exception(error)
        if self.listener is not None:
            self.listener.lost(error)

    def _raise_failure(self) -> NoReturn:
        assert self.failure is not None
        raise self.failure


def _lost(closed: ConnectionClosed) -> ConnectionLost:
    if closed.rcvd is None:
        return ConnectionLost("the connection was lost.")
    reason = f" {closed.rcvd.reason!r}" if closed.rcvd.reason else ""
    return ConnectionLost(f"the server closed the connection ({closed.rcvd.code}{reason}).")


def _refused(error: InvalidStatus, address: Address) -> ClientError:
    """Converts an HTTP error during the handshake."""
    response = error.response
    return refusal(response.status_code, response.headers, response.body or b"", address)


def connect_failed(address: Address, error: BaseException | str) -> ConnectFailed:
    """Converts a failure to connect into an error of this package."""
    what = f"{address.host} cannot be connected to"
    if isinstance(error, ssl.SSLCertVerificationError):  # its errno is not a system error
        return ConnectFailed(
            f"{what}: its certificate is not trusted ({error.verify_message}).",
            remedy="Check the certificate and the name in it, or pass Settings(tls=...).",
            retriable=False,
        )
    if isinstance(error, ssl.SSLError):
        return ConnectFailed(
            f"{what}: the TLS handshake failed ({error.reason or error}).",
            remedy="Use http:// if the server has no TLS, or check its port.",
            retriable=False,
        )
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number and number > 0 else str(error)
    broken = address.secure and isinstance(error, ConnectionResetError | EOFError)
    remedy = (
        "Use http:// if the server has no TLS, or check that it is running." if broken else None
    )
    return ConnectFailed(f"{what}: {reason or 'the connection was closed'}.", remedy=remedy)


def refusal(
    status: int, headers: Mapping[str, str], body: bytes | bytearray, address: Address
) -> ClientError:
    """Converts an unexpected HTTP response, of the server or a proxy, into an error."""
    if status < 400:
        return BadServerMessage(
            f"{address.host} is not an rt-drama3 server: it responded with HTTP status {status}."
        )
    try:
        found = json.loads(bytes(body))
    except ValueError:
        found = {}
    fields = found if isinstance(found, dict) else {}

    def text(name: str) -> str:
        value = fields.get(name)
        return value if isinstance(value, str) else ""

    code = text("code") or _CODES.get(status, "not_ready" if status >= 500 else "bad_request")
    foreign = not text("code") and status in _NO_ROUTE
    error = server_error(
        code,
        text("message") or f"{address.host} responded with HTTP status {status}.",
        remedy=text("remedy") or (BadServerMessage.remedy if foreign else ""),
        retriable=bool(fields.get("retriable", status in (408, 429) or status >= 500)),
        request_id=text("request_id") or text("id") or headers.get("x-request-id"),
        scope="request",
    )
    wait = headers.get("retry-after", "")
    if wait.isascii() and wait.isdigit() and len(wait) < 10:  # dates are not supported
        error.retry_after = float(wait)
    return error
