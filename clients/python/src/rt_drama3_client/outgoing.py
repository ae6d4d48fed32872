"""Outgoing: what the server is told about one utterance, on connections that may break."""

from __future__ import annotations

import asyncio
import random
import time
from typing import NoReturn, Protocol

from rt_drama3_client.address import Settings
from rt_drama3_client.connection import Connection
from rt_drama3_client.errors import ClientError, ServerError, ServerSilent, SpeechCancelled
from rt_drama3_client.inbox import Inbox
from rt_drama3_client.messages import Cancelled, pack

FULL_SECONDS = 0.5  # until a full server that does not say when is asked again
MOST_BACKOFF = 2.0  # seconds
DOUBLINGS = 16  # of the pause, beyond which counting would only overflow


class Pool(Protocol):
    """Where connections come from and go to."""

    async def acquire(self) -> tuple[Connection, bool]:
        """A connection, and whether it was open already."""

    def release(self, connection: Connection) -> None:
        """It is free."""


class Outgoing:
    """The sending side of an utterance.

    Until the first audio comes, all that the server was told is kept: where the connection breaks
    or the server asks to try again, another one is told the same.

    Attributes:
        inbox: the receiving side.
        connection: that it is spoken on; None before and after, and between attempts.
        failure: why it failed for good.
    """

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self.inbox = Inbox(settings.buffer_bytes, self._ended)
        self.connection: Connection | None = None
        self.failure: ClientError | None = None
        self._pool = pool
        self._settings = settings
        self._opening: asyncio.Task[tuple[Connection, bool]] | None = None
        self._lock = asyncio.Lock()
        self._began: float | None = None  # the first attempt
        self._bidden = 0  # attempts that the server asked for, by telling when
        self._log: list[bytes] = []
        self._told = 0  # messages of it, on this connection
        self._running = False  # the server knows of the utterance, on this connection

    @property
    def over(self) -> bool:
        """Nothing more is to be said or heard."""
        inbox = self.inbox
        return self.failure is not None or inbox.stopped or inbox.done is not None

    @property
    def stuck(self) -> bool:
        """An attempt broke, or was not finished, and nobody makes another."""
        broken = self.connection is None or self.inbox.failure is not None
        return broken and not self._lock.locked()

    async def tell(self, *messages: bytes) -> None:
        """Tells the server; where the connection broke before any audio, all of it once more.

        Raises:
            SpeechCancelled: it was cancelled.
            ClientError: it failed, now or before.
        """
        async with self._lock:
            if self.failure is not None:
                raise self.failure
            self._check_stopped()
            if self.inbox.done is not None:
                return  # a length limit ended it: what else was to be said is dropped
            self._log += messages
            try:
                while not await self._attempt():
                    pass
            finally:
                self.inbox.tell()

    def fail(self, error: ClientError) -> NoReturn:
        """The end of it; the connection, in a state that nobody knows, goes too."""
        error.received = self.inbox.received()
        if error.request_id is None:
            error.request_id = self.inbox.request_id
        self.failure = error
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.listener = None
            connection.abort(error)
        self.inbox.tell()
        raise error

    async def cancel(self) -> Cancelled:
        """Stops it; ``inbox.stop`` was called before.

        Raises:
            ServerSilent: no answer; the connection was given up.
        """
        inbox, connection = self.inbox, self.connection
        if connection is not None and self._running:
            try:
                await connection.send(pack("cancel"))
                async with asyncio.timeout(self._settings.cancel_timeout):
                    while inbox.cancelled is None and self.connection is not None:
                        await inbox.news(None)
            except TimeoutError as error:
                silent = ServerSilent("the server did not answer a cancel.")
                connection.abort(silent)
                raise silent from error
            except ClientError:
                pass  # the connection is gone, and the utterance with it
        elif connection is not None:
            self._ended(True)
        elif self._opening is not None:
            self._opening.cancel()
        return inbox.outcome()

    async def _attempt(self) -> bool:
        """Tells what was not told yet; false, after a pause, where it has to be begun anew."""
        error = self.inbox.failure
        if error is None:
            try:
                await self._tell_rest()
            except SpeechCancelled:
                raise
            except ServerSilent as silent:
                self.fail(silent)
            except ClientError as failed:
                error = failed
        error = error or self.inbox.failure
        if error is not None:
            await self._make_way(error)
            return False
        if self.inbox.begun:  # nothing of it will be told again
            self._log.clear()
            self._told = 0
        return True

    async def _tell_rest(self) -> None:
        if self.connection is None:
            await self._connect()
        while self._told < len(self._log) and self.connection is not None:
            self._check_stopped()
            if self._told == 0 and not self.inbox.begun:
                self.inbox.start()
            self._told += 1
            self._running = True
            await self.connection.send(self._log[self._told - 1])

    async def _connect(self) -> None:
        timings = self.inbox.timings
        timings.attempts += 1
        if self._began is None:
            self._began = time.monotonic()
        self._opening = asyncio.create_task(self._pool.acquire(), name="rt-drama3-client connect")
        try:
            connection, timings.reused = await self._opening
        except asyncio.CancelledError:
            if self._opening.cancelled():
                self._check_stopped()
            raise
        timings.connect = 0.0 if timings.reused else connection.seconds
        if self.inbox.stopped:
            self._pool.release(connection)
            self._check_stopped()
        self._told = 0
        self._running = False
        self.connection = connection
        connection.listener = self.inbox

    async def _make_way(self, error: ClientError) -> None:
        """Waits before another attempt, where there may be one; else raises the error."""
        pause = self._pause(error)
        if pause is None:
            self.fail(error)
        deadline = time.monotonic() + pause
        while not self.inbox.stopped and (left := deadline - time.monotonic()) > 0:
            try:
                await self.inbox.news(left)
            except TimeoutError:
                break
        self.inbox.failure = None
        self._check_stopped()

    def _pause(self, error: ClientError) -> float | None:
        """Seconds before another attempt; None where there is to be none."""
        settings, attempts = self._settings, self.inbox.timings.attempts
        if self.inbox.begun or not error.retriable or settings.attempts == 1:
            return None
        if isinstance(error, ServerError) and error.scope == "message":
            return None
        asked = error.retry_after if isinstance(error, ServerError) else None
        if asked is None and error.code == "overloaded":
            asked = FULL_SECONDS
        counted = attempts if asked is not None else attempts - self._bidden
        doubled = settings.backoff * 2.0 ** min(counted - 1, DOUBLINGS)
        pause = min(MOST_BACKOFF, doubled) * random.uniform(0.75, 1.25)
        if asked is None:
            return pause if counted < settings.attempts else None
        pause = max(pause, asked)
        taken = 0.0 if self._began is None else time.monotonic() - self._began
        if taken + pause > settings.ready_timeout:
            return None
        self._bidden += 1
        return pause

    def _check_stopped(self) -> None:
        if self.inbox.stopped:
            raise SpeechCancelled("the utterance was cancelled.", request_id=self.inbox.request_id)

    def _ended(self, reusable: bool) -> None:
        """Its connection is free, or lost."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.listener = None
            if reusable:
                self._pool.release(connection)
