"""Outgoing: sends one utterance's messages, and retries on another connection if it fails early."""

from __future__ import annotations

import asyncio
import random
import time
from typing import NoReturn

from rt_drama3_client.connection import Connection
from rt_drama3_client.errors import ClientError, ServerError, ServerSilent, SpeechCancelled
from rt_drama3_client.inbox import Inbox
from rt_drama3_client.messages import Cancelled, pack
from rt_drama3_client.pool import Pool

FULL_SECONDS = 0.5  # delay before retrying at a full server that does not say when
MAX_BACKOFF = 2.0  # seconds
DOUBLINGS = 16  # limit of the exponent of the backoff, against overflow


class Outgoing:
    """The sending side of an utterance.

    Until the first audio arrives, all messages are kept: if the connection is lost or the server
    asks to retry, they are sent again on another connection.

    Attributes:
        inbox: the receiving side.
        connection: the current connection; None before, after, and between attempts.
        failure: why it failed permanently.
    """

    def __init__(self, pool: Pool) -> None:
        self.inbox = Inbox(pool.settings.buffer_bytes, self._ended)
        self.connection: Connection | None = None
        self.failure: ClientError | None = None
        self._pool = pool
        self._settings = pool.settings
        self._opening: asyncio.Task[tuple[Connection, bool]] | None = None
        self._lock = asyncio.Lock()
        self._began: float | None = None  # the first attempt
        self._requested_retries = 0  # retries at a time that the server specified
        self._log: list[bytes] = []
        self._sent = 0  # messages of the log sent on this connection
        self._running = False  # the utterance was started on this connection

    @property
    def over(self) -> bool:
        """True if nothing more is to be sent or received."""
        inbox = self.inbox
        return self.failure is not None or inbox.stopped or inbox.done is not None

    @property
    def stuck(self) -> bool:
        """True if an attempt failed or is incomplete, and no other one is in progress."""
        broken = self.connection is None or self.inbox.failure is not None
        return broken and not self._lock.locked()

    async def send(self, *messages: bytes) -> None:
        """Sends messages; if the connection was lost before any audio, sends all of them again.

        Raises:
            SpeechCancelled: it was cancelled.
            ClientError: it failed, now or before.
        """
        async with self._lock:
            if self.failure is not None:
                raise self.failure
            self._check_stopped()
            if self.inbox.done is not None:
                return  # a length limit ended it: further text is dropped
            self._log += messages
            try:
                while not await self._attempt():
                    pass
            finally:
                self.inbox.notify()

    def fail(self, error: ClientError) -> NoReturn:
        """Ends the utterance with an error, and drops the connection, whose state is unknown."""
        error.received = self.inbox.received()
        if error.request_id is None:
            error.request_id = self.inbox.request_id
        self.failure = error
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.listener = None
            connection.abort(error)
        self.inbox.notify()
        raise error

    async def cancel(self) -> Cancelled:
        """Cancels the utterance; ``inbox.stop`` was called before.

        Raises:
            ServerSilent: there was no response; the connection was dropped.
        """
        inbox, connection = self.inbox, self.connection
        if connection is not None and self._running:
            try:
                await connection.send(pack("cancel"))
                async with asyncio.timeout(self._settings.cancel_timeout):
                    while inbox.cancelled is None and self.connection is not None:
                        await inbox.wait(None)
            except TimeoutError as error:
                silent = ServerSilent("the server did not respond to a cancel.")
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
        """Sends what was not sent yet; False, after a pause, if it has to start again."""
        error = self.inbox.failure
        if error is None:
            try:
                await self._send_rest()
            except SpeechCancelled:
                raise
            except ServerSilent as silent:
                self.fail(silent)
            except ClientError as failed:
                error = failed
        error = error or self.inbox.failure
        if error is not None:
            await self._wait_to_retry(error)
            return False
        if self.inbox.begun:  # it will not be sent again
            self._log.clear()
            self._sent = 0
        return True

    async def _send_rest(self) -> None:
        if self.connection is None:
            await self._connect()
        while self._sent < len(self._log) and self.connection is not None:
            self._check_stopped()
            if self._sent == 0 and not self.inbox.begun:
                self.inbox.start()
            self._sent += 1
            self._running = True
            await self.connection.send(self._log[self._sent - 1])

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
        self._sent = 0
        self._running = False
        self.connection = connection
        connection.listener = self.inbox

    async def _wait_to_retry(self, error: ClientError) -> None:
        """Waits before another attempt, if one is allowed; otherwise raises the error."""
        pause = self._pause(error)
        if pause is None:
            self.fail(error)
        deadline = time.monotonic() + pause
        while not self.inbox.stopped and (left := deadline - time.monotonic()) > 0:
            try:
                await self.inbox.wait(left)
            except TimeoutError:
                break
        self.inbox.failure = None
        self._check_stopped()

    def _pause(self, error: ClientError) -> float | None:
        """Returns the seconds before another attempt; None if there must be none."""
        settings, attempts = self._settings, self.inbox.timings.attempts
        if self.inbox.begun or not error.retriable or settings.attempts == 1:
            return None
        if isinstance(error, ServerError) and error.scope == "message":
            return None
        requested = error.retry_after if isinstance(error, ServerError) else None
        if requested is None and error.code == "overloaded":
            requested = FULL_SECONDS
        counted = attempts if requested is not None else attempts - self._requested_retries
        doubled = settings.backoff * 2.0 ** min(counted - 1, DOUBLINGS)
        pause = min(MAX_BACKOFF, doubled) * random.uniform(0.75, 1.25)
        if requested is None:
            return pause if counted < settings.attempts else None
        pause = max(pause, requested)
        taken = 0.0 if self._began is None else time.monotonic() - self._began
        if taken + pause > settings.ready_timeout:
            return None
        self._requested_retries += 1
        return pause

    def _check_stopped(self) -> None:
        if self.inbox.stopped:
            raise SpeechCancelled("the utterance was cancelled.", request_id=self.inbox.request_id)

    def _ended(self, reusable: bool) -> None:
        """Releases the connection: it is free, or lost."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.listener = None
            if reusable:
                self._pool.release(connection)
