"""AsyncClient: speech, voices and models of one server, over connections that are kept."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from rt_drama3_client import routes
from rt_drama3_client.address import Address, Settings, read_address, read_key
from rt_drama3_client.clips import Clip
from rt_drama3_client.connection import Connection
from rt_drama3_client.errors import ClientClosed
from rt_drama3_client.messages import Pong
from rt_drama3_client.options import Options
from rt_drama3_client.routes import Voice
from rt_drama3_client.sources import TextSource, check_source
from rt_drama3_client.speech import AsyncSpeech


class AsyncClient:
    """A client of one server; ``async with``, or ``close`` it in the end.

    It belongs to the event loop that it is first used on. Utterances may overlap: each has a
    connection to itself, and connections are used again.

    Args:
        url: ``http://host:port`` (or https, ws, wss), a path prefix included; default: the
            environment's ``RT_DRAMA3_CLIENT_URL``, then ``http://127.0.0.1:8035``.
        api_key: default: the environment's ``RT_DRAMA3_CLIENT_API_KEY``.
        settings: timeouts and bounds.

    Raises:
        UsageError: the address, the key or a setting is impossible.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._address = read_address(url)
        self._key = read_key(api_key)
        self._settings = settings or Settings()
        self._pool = _Pool(self._address, self._key, self._settings)

    def speak(self, text: TextSource, **options: Unpack[Options]) -> AsyncSpeech:
        """Speaks a text, or text that is still being written.

        Args:
            text: a string, or an iterable (asynchronous or not) of pieces as a language model
                writes them; ``FLUSH`` among them speaks what there is at once.
            options: see ``Options``.

        Raises:
            UsageError: that is no text, or an option is unknown.
        """
        check_source(text)
        return AsyncSpeech(self._pool, self._settings, text, options)

    def stream(self, **options: Unpack[Options]) -> AsyncSpeech:
        """An utterance whose text is pushed: ``push``, ``flush``, ``finish``.

        Raises:
            UsageError: an option is unknown.
        """
        return AsyncSpeech(self._pool, self._settings, None, options)

    async def connect(self) -> float:
        """Opens a connection ahead of the first utterance; returns the seconds that it took.

        Raises:
            ClientError: it cannot be opened.
        """
        connection, reused = await self._pool.acquire()
        self._pool.release(connection)
        return 0.0 if reused else connection.seconds

    async def ping(self) -> Pong:
        """There and back, and the server's clock.

        Raises:
            ClientError: no connection, or no answer.
        """
        connection, _ = await self._pool.acquire()
        try:
            return await connection.ping()
        finally:
            self._pool.release(connection)

    async def voices(self) -> list[Voice]:
        """The stored voices. Raises ``ClientError``, as the next ones do."""
        return await asyncio.to_thread(routes.voices, *self._http())

    async def add_voice(self, name: str, clips: Sequence[Clip]) -> Voice:
        """Stores a voice: clips of it, each with what is said in it, ``(text, audio)``.

        Args:
            name: to ask for it with; one of that name is replaced.
            clips: audio is the bytes of a file, a ``Path`` to it, or its URL where the server
                fetches those; maps as among ``references`` will do, too.

        Raises:
            UsageError: the name or the clips cannot be sent.
            ClientError: no answer, or it was refused.
        """
        return await asyncio.to_thread(routes.add_voice, *self._http(), name, clips)

    async def delete_voice(self, name: str) -> None:
        """Forgets a voice."""
        await asyncio.to_thread(routes.delete_voice, *self._http(), name)

    async def models(self) -> list[str]:
        """Names of the models that are served."""
        return await asyncio.to_thread(routes.models, *self._http())

    async def close(self) -> None:
        """Ends all connections, and what is spoken on them."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _http(self) -> tuple[Address, str | None, Settings]:
        return self._address, self._key, self._settings


class _Pool:
    """Connections that are idle, last used first; see ``speech.Pool``."""

    def __init__(self, address: Address, key: str | None, settings: Settings) -> None:
        self._address = address
        self._key = key
        self._settings = settings
        self._idle: list[Connection] = []
        # One that ended by itself is held by nobody else.
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def acquire(self) -> tuple[Connection, bool]:
        while self._idle and not self._closed:
            connection = self._idle.pop()
            if connection.alive:
                return connection, True
            self._close_later(connection)
        self._check_open()
        connection = await Connection.open(self._address, self._key, self._settings)
        self._all.add(connection)
        try:
            self._check_open()
        except ClientClosed:
            await connection.close()
            raise
        return connection, False

    def release(self, connection: Connection) -> None:
        usable = connection.alive and not self._closed
        if usable and len(self._idle) < self._settings.max_idle:
            self._idle.append(connection)
        else:
            self._close_later(connection)

    async def close(self) -> None:
        self._closed = True
        self._idle.clear()
        await asyncio.gather(*(connection.close() for connection in list(self._all)))
        if self._closing:
            await asyncio.wait(self._closing)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client was closed.")

    def _close_later(self, connection: Connection) -> None:
        task = asyncio.create_task(connection.close(), name="rt-drama3-client close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
