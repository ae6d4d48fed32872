"""Connection: one WebSocket to /v1/stream; what comes goes to whoever speaks on it just now."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import ssl
import time
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
)

from rt_drama3_client.address import Address, Settings
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
from rt_drama3_client.messages import Pong, ServerMessage, pack, unpack

MAX_MESSAGE = 4 << 20  # bytes; only a take of hours would be larger
# What a proxy or load balancer says in place of a server.
_CODES = {401: "unauthorized", 403: "forbidden", 404: "no_such_route", 429: "overloaded"}
_STRANGE = frozenset((400, 404, 405, 426, 501))  # of one that knows no such route


class Listener(Protocol):
    """An utterance, as its connection sees it."""

    async def take(self, name: str | None, message: ServerMessage) -> None:
        """A message came, about the utterance of that name; waits while there is no room."""

    def lost(self, error: ClientError) -> None:
        """The connection ended."""


class Connection:
    """An open connection. Use ``Connection.open``; one utterance at a time is spoken on it.

    Attributes:
        seconds: that opening it took.
        listener: gets what comes.
        failure: why it ended; None while it is open.
    """

    def __init__(self, socket: ClientConnection, settings: Settings, seconds: float) -> None:
        self.seconds = seconds
        self.listener: Listener | None = None
        self.failure: ClientError | None = None
        self._socket = socket
        self._settings = settings
        self._last_words: ServerError | None = None
        self._numbers = itertools.count(1)
        self._pings: dict[object, tuple[float, asyncio.Future[Pong]]] = {}
        self._reader = asyncio.create_task(self._read(), name="rt-drama3-client reader")

    @classmethod
    async def open(cls, address: Address, key: str | None, settings: Settings) -> Connection:
        """Connects.

        Raises:
            ConnectFailed: nobody answers there, or not as a server of this kind.
            ServerError: the server refused.
            UsageError: the address or proxy is impossible.
        """
        began = time.perf_counter()
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        tls = {"ssl": settings.tls} if address.secure and settings.tls is not None else {}
        try:
            socket = await connect(
                address.stream,
                additional_headers=headers,
                user_agent_header="rt-drama3-client",
                compression=None,  # audio does not shrink, and waiting for a compressor is latency
                open_timeout=settings.connect_timeout,
                close_timeout=settings.close_timeout,
                ping_interval=None,  # see _next
                max_size=MAX_MESSAGE,
                proxy=None if address.loopback else settings.proxy,
                **cast(Any, tls),
            )
        except InvalidStatus as error:
            raise _refused(error, address) from error
        except InvalidProxy as error:  # its own message shows the proxy, and a password in it
            raise UsageError(f"the proxy cannot be used: {error.msg}.") from None
        except (InvalidURI, ImportError) as error:  # socks needs another package
            raise UsageError(f"{address.stream} cannot be connected to: {error}.") from error
        except TimeoutError as error:
            took = f"{settings.connect_timeout:g} s"
            raise ConnectFailed(f"{address.host} did not answer within {took}.") from error
        except (OSError, EOFError, InvalidHandshake, UnicodeError) as error:
            raise connect_failed(address, error) from error
        return cls(socket, settings, time.perf_counter() - began)

    @property
    def alive(self) -> bool:
        """Whether an utterance can begin on it."""
        return self.failure is None and self._last_words is None

    async def send(self, message: bytes) -> None:
        """Sends one message.

        Raises:
            ClientError: the connection is lost, or took nothing for too long and is lost now.
        """
        if self.failure is not None:
            raise self.failure
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._socket.send(message)
        except ConnectionClosed as closed:
            # The reader knows why once it has read all that came, unless nobody takes that.
            await asyncio.wait((self._reader,), timeout=self._settings.close_timeout)
            self._end(_lost(closed))
            self._raise_failure()
        except TimeoutError:
            took = f"{self._settings.timeout:g} s"
            self.abort(ServerSilent(f"the server took nothing for {took}."))
            self._raise_failure()
        except asyncio.CancelledError:
            # Nobody can tell how much of the message went out.
            self.abort(ConnectionLost("sending was interrupted."))
            raise

    async def ping(self) -> Pong:
        """Asks for the server's clock; the answer comes behind the audio that is on its way.

        Raises:
            ClientError: no answer.
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
        """Ends it at once, for a reason."""
        self._end(error)
        self._socket.transport.abort()

    async def close(self) -> None:
        """Says goodbye and waits until the socket and the reader are gone."""
        busy = self.listener is not None
        self._end(ClientClosed("the client was closed."))
        self._reader.cancel()
        await asyncio.wait((self._reader,))
        if busy:  # a polite close would wait behind audio that nobody reads
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
                    self._last_words = message  # the close that follows says no more
                elif message is not None and self.listener is not None:
                    await self.listener.take(name, message)
        except ConnectionClosed as closed:
            self._end(self._last_words or _lost(closed))
        except BadServerMessage as error:
            self.abort(error)
        finally:
            self._end(ConnectionLost("the connection ended."))

    async def _next(self) -> bytes | str:
        """The next message; notices a peer that is gone without a word.

        Pings go out only while this waits: a listener that takes its time must not look like a
        server that is gone, as it would to the pings of the WebSocket library.
        """
        pong: asyncio.Future[float] | None = None
        while True:
            try:
                async with asyncio.timeout(self._settings.ping_seconds):
                    return await self._socket.recv()
            except TimeoutError:
                if pong is not None and not pong.done():
                    took = f"{2 * self._settings.ping_seconds:g} s"
                    self.abort(ConnectionLost(f"nothing came for {took}, no answer to a ping."))
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
        return ConnectionLost("the connection broke.")
    reason = f" {closed.rcvd.reason!r}" if closed.rcvd.reason else ""
    return ConnectionLost(f"the server closed the connection ({closed.rcvd.code}{reason}).")


def _refused(error: InvalidStatus, address: Address) -> ClientError:
    """A handshake that was answered with an HTTP error."""
    response = error.response
    return refusal(response.status_code, response.headers, response.body or b"", address)


def connect_failed(address: Address, error: BaseException | str) -> ConnectFailed:
    """Why no connection could be opened, as an error of this package."""
    what = f"{address.host} cannot be connected to"
    if isinstance(error, ssl.SSLCertVerificationError):  # its errno is none of the system's
        return ConnectFailed(
            f"{what}: its certificate is not trusted ({error.verify_message}).",
            remedy="Check the certificate and the name in it, or pass Settings(tls=...).",
            retriable=False,
        )
    if isinstance(error, ssl.SSLError):
        return ConnectFailed(
            f"{what}: it does not speak TLS as asked ({error.reason or error}).",
            remedy="Write http:// where the server has no TLS, or check its port.",
            retriable=False,
        )
    number = getattr(error, "errno", None)
    said = os.strerror(number) if number and number > 0 else str(error)
    broken = address.secure and isinstance(error, ConnectionResetError | EOFError)
    remedy = "Write http:// where the server has no TLS, or check that it runs." if broken else None
    return ConnectFailed(f"{what}: {said or 'the connection was closed'}.", remedy=remedy)


def refusal(
    status: int, headers: Mapping[str, str], body: bytes | bytearray, address: Address
) -> ClientError:
    """An HTTP answer that was not asked for as an error of this package, whoever answered."""
    if status < 400:
        return BadServerMessage(
            f"{address.host} is not an rt-drama3 server: it answered with HTTP status {status}."
        )
    try:
        said = json.loads(bytes(body))
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}

    def text(name: str) -> str:
        value = said.get(name)
        return value if isinstance(value, str) else ""

    code = text("code") or _CODES.get(status, "not_ready" if status >= 500 else "bad_request")
    strange = not text("code") and status in _STRANGE
    error = server_error(
        code,
        text("message") or f"{address.host} answered with HTTP status {status}.",
        remedy=text("remedy") or (BadServerMessage.remedy if strange else ""),
        retriable=bool(said.get("retriable", status in (408, 429) or status >= 500)),
        request_id=text("request_id") or text("id") or headers.get("x-request-id"),
        scope="request",
    )
    wait = headers.get("retry-after", "")
    if wait.isascii() and wait.isdigit() and len(wait) < 10:  # a date is not understood
        error.retry_after = float(wait)
    return error
