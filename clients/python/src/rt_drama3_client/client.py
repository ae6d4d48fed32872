"""AsyncClient: speech, voices and models of one server, over pooled connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self, Unpack

from rt_drama3_client import routes
from rt_drama3_client.address import Server, Settings, read_address, read_key
from rt_drama3_client.clips import Clip
from rt_drama3_client.messages import Pong
from rt_drama3_client.options import Options
from rt_drama3_client.pool import Pool
from rt_drama3_client.routes import Voice
from rt_drama3_client.sources import TextSource, check_source
from rt_drama3_client.speech import AsyncSpeech


class AsyncClient:
    """A client of one server. Use it with ``async with``, or call ``close``.

    It belongs to the event loop of its first use. Utterances may overlap: each has its own
    connection while it is spoken, and connections are reused.

    Args:
        url: ``http://host:port`` (or https, ws, wss), optionally with a path prefix; default: the
            environment variable ``RT_DRAMA3_CLIENT_URL``, then ``http://127.0.0.1:8035``.
        api_key: default: the environment variable ``RT_DRAMA3_CLIENT_API_KEY``.
        settings: timeouts and limits.

    Raises:
        UsageError: the address, the key or a setting is not valid.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._server = Server(read_address(url), read_key(api_key), settings or Settings())
        self._pool = Pool(self._server)

    def speak(self, text: TextSource, **options: Unpack[Options]) -> AsyncSpeech:
        """Speaks a text, or text that is still being written.

        Args:
            text: a string, or an iterable (asynchronous or not) of parts, such as tokens of a
                language model; ``FLUSH`` among them speaks the text so far immediately.
            options: see ``Options``.

        Raises:
            UsageError: it is not text, or an option is unknown.
        """
        check_source(text)
        return AsyncSpeech(self._pool, text, options)

    def stream(self, **options: Unpack[Options]) -> AsyncSpeech:
        """An utterance whose text is pushed: ``push``, ``flush``, ``finish``.

        Raises:
            UsageError: an option is unknown.
        """
        return AsyncSpeech(self._pool, None, options)

    async def connect(self) -> float:
        """Opens a connection before the first utterance; returns the seconds it took.

        Raises:
            ClientError: it cannot be opened.
        """
        connection, reused = await self._pool.acquire()
        self._pool.release(connection)
        return 0.0 if reused else connection.seconds

    async def ping(self) -> Pong:
        """Measures the round trip, and returns the server's clock.

        Raises:
            ClientError: there is no connection, or no response.
        """
        connection, _ = await self._pool.acquire()
        try:
            return await connection.ping()
        finally:
            self._pool.release(connection)

    async def voices(self) -> list[Voice]:
        """Returns the stored voices. Raises ``ClientError``, like the next methods."""
        return await asyncio.to_thread(routes.voices, self._server)

    async def add_voice(self, name: str, clips: Sequence[Clip]) -> Voice:
        """Stores a voice from clips and their transcripts, ``(text, audio)``.

        Args:
            name: its name; an existing voice of that name is replaced.
            clips: audio is the bytes of a file, a ``Path`` to it, or its URL if the server fetches
                URLs; maps as in ``references`` are accepted as well.

        Raises:
            UsageError: the name or the clips cannot be sent.
            ClientError: there was no response, or the request was refused.
        """
        return await asyncio.to_thread(routes.add_voice, self._server, name, clips)

    async def delete_voice(self, name: str) -> None:
        """Deletes a voice."""
        await asyncio.to_thread(routes.delete_voice, self._server, name)

    async def models(self) -> list[str]:
        """Returns the names of the served models."""
        return await asyncio.to_thread(routes.models, self._server)

    async def close(self) -> None:
        """Closes all connections and ends their utterances."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
