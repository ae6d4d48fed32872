"""AsyncSpeech: one utterance, from its text to its last sample."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Self

from rt_drama3_client.address import Settings
from rt_drama3_client.audio_files import AudioFile, check_fits, format_of, with_sizes
from rt_drama3_client.errors import (
    ClientError,
    ServerSilent,
    SpeechCancelled,
    UsageError,
)
from rt_drama3_client.messages import AudioChunk, Cancelled, Done, Event, Pong, Ready, Segment, pack
from rt_drama3_client.options import check, start_message
from rt_drama3_client.outgoing import Outgoing, Pool
from rt_drama3_client.sources import FLUSH, PIECE, TextSource, cut, pieces
from rt_drama3_client.timings import Timings

AHEAD = 100_000  # characters that may wait at the server; it takes 262,144


class AsyncSpeech:
    """One utterance; ``AsyncClient.speak`` and ``AsyncClient.stream`` make it.

    Nothing happens before it is first used. Iterating gives audio, ``events`` everything. Text and
    audio may be handled by different tasks. Leaving a loop early cancels the rest, except within
    ``async with``, where the end of the block does.

    Args:
        pool: of the client.
        settings: of the client.
        source: the text; None where it is pushed.
        options: see ``Options``.
    """

    def __init__(
        self,
        pool: Pool,
        settings: Settings,
        source: TextSource | None,
        options: Mapping[str, Any],
    ) -> None:
        check(options)
        if isinstance(source, str) and len(source) > PIECE:
            source = list(cut(source))
        self._settings = settings
        self._source = source
        self._options = dict(options)
        self._outgoing = Outgoing(pool, settings)
        self._inbox = self._outgoing.inbox
        self._pushed = 0  # characters
        self._text_ended = False
        self._started = self._managed = False
        self._feeder: asyncio.Task[None] | None = None
        self._source_error: BaseException | None = None
        self._cancelling: asyncio.Task[Cancelled] | None = None

    # What is known of it.

    @property
    def ready(self) -> Ready | None:
        """What was agreed on, once the server answered."""
        return self._inbox.ready

    @property
    def done(self) -> Done | None:
        """Totals, once all of it has come."""
        return self._inbox.done

    @property
    def request_id(self) -> str | None:
        """What the server calls it in its logs, once it answered."""
        return self._inbox.request_id

    @property
    def segments(self) -> list[Segment]:
        """Pieces of the text that are, or will be, heard in what has come (the last 1000)."""
        return list(self._inbox.segments)

    @property
    def timings(self) -> Timings:
        """What it took so far."""
        return self._inbox.timings

    @property
    def lead(self) -> float:
        """Seconds of audio that a listener has in hand now who began with the first chunk."""
        return self._inbox.timings.playback.lead(time.perf_counter())

    # Text.

    async def push(self, text: str) -> None:
        """Adds text, cut anywhere; waits while much of it is not spoken yet.

        Raises:
            UsageError: the text has ended, or comes from an iterable.
            SpeechCancelled: the utterance was cancelled.
            ClientError: it failed.
        """
        self._check_pushing()
        await self._push(text)

    async def flush(self) -> None:
        """Has all that was pushed spoken, although its sentence is open. Raises as ``push``."""
        self._check_pushing()
        await self._tell(pack("flush"))

    async def finish(self) -> None:
        """Ends the text. Raises as ``push``."""
        self._check_pushing()
        await self._finish()

    # Audio.

    async def __aiter__(self) -> AsyncGenerator[AudioChunk, None]:
        async with aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, AudioChunk):
                    yield event

    async def events(self) -> AsyncGenerator[Event, None]:
        """Everything that comes: ``Ready``, ``Queued``, ``Segment``, ``AudioChunk``, ``Done``.

        It ends with ``Done``, or quietly when the utterance is cancelled.

        Raises:
            ClientError: the utterance failed; ``received`` tells what had come.
        """
        try:
            while (event := await self._next()) is not None:
                yield event
        finally:
            if self._source_error is not None or not (self._managed or self._outgoing.over):
                with suppress(ServerSilent):  # the connection was given up: nobody need know
                    await self.cancel()
            elif self._outgoing.over:
                await self._end_feeder()

    async def read(self) -> bytes:
        """All audio; a WAV header has its true sizes.

        Raises:
            SpeechCancelled: it was cancelled by somebody else.
            ClientError: it failed; ``received.audio`` is what had come.
        """
        chunks: list[bytes] = []
        try:
            async with aclosing(self.__aiter__()) as audio:
                async for chunk in audio:
                    chunks.append(chunk)
            self._check_complete()
        except ClientError as error:
            error.received = self._inbox.received(b"".join(chunks))
            raise
        return with_sizes(b"".join(chunks))

    async def save(self, path: str | os.PathLike[str]) -> Done:
        """Writes the audio into a file while it comes; a WAV header gets its true sizes.

        The format is that of the name, where none was asked for. An existing file is replaced once
        there is audio; when the utterance fails in the middle, what had come is kept.

        Raises:
            UsageError: the name's format is unknown or another than was asked for.
            SpeechCancelled: it was cancelled by somebody else.
            ClientError: it failed.
            OSError: the file cannot be written.
        """
        if self._options.get("format") is None and not self._started:
            self._options["format"] = format_of(path)
        check_fits(path, self._options.get("format") or "pcm")
        with AudioFile(path) as file:
            async with aclosing(self.__aiter__()) as audio:
                async for chunk in audio:
                    file.write(chunk)
            self._check_complete()
            file.samples = self._inbox.sent().samples  # of one that was cut, the encoder kept some
            file.complete()
        assert self.done is not None
        return self.done

    # Its end.

    async def cancel(self) -> Cancelled:
        """Stops it at once (barge-in) and waits for the server's word; the connection stays.

        Nothing of it is handed out after this was called; loops over it end. Calling it again, or
        when all is over, does no harm.

        Raises:
            ServerSilent: the server did not answer; the connection was given up.
        """
        if self._cancelling is None:
            self._inbox.stop()
            self._cancelling = asyncio.create_task(self._cancel(), name="rt-drama3-client cancel")
            await asyncio.sleep(0)  # the message goes out even if this is interrupted
        return await asyncio.shield(self._cancelling)

    async def ping(self) -> Pong:
        """There and back on its connection, behind the audio that is on its way.

        Raises:
            UsageError: nothing is being spoken.
            ClientError: no answer.
        """
        connection = self._outgoing.connection
        if connection is None:
            raise UsageError("nothing is being spoken now; ping the client instead.")
        return await connection.ping()

    async def __aenter__(self) -> Self:
        self._managed = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._started and not self._outgoing.over:
            with suppress(ServerSilent):
                await self.cancel()
        await self._end_feeder()

    # Inside.

    def _check_pushing(self) -> None:
        if self._source is not None:
            raise UsageError("its text comes from what speak was given; use stream() to push text.")
        if self._text_ended:
            raise UsageError("its text has ended; begin another utterance.")

    def _check_complete(self) -> None:
        if self._inbox.done is None:
            raise SpeechCancelled("the utterance was cancelled.", request_id=self.request_id)

    async def _begin(self) -> None:
        if self._started:
            return
        self._started = True
        whole = isinstance(self._source, str)
        self._text_ended, self._inbox.patient = whole, not whole
        text = self._source if isinstance(self._source, str) else ""
        try:
            start = start_message(text, whole, self._options)
        except UsageError as error:
            self._outgoing.fail(error)
        if self._source is not None and not whole:
            feeding = self._feed(self._source)
            self._feeder = asyncio.create_task(feeding, name="rt-drama3-client text")
            self._feeder.add_done_callback(self._fed)
        await self._outgoing.tell(start)

    async def _next(self) -> Event | None:
        try:
            return await self._next_event()
        except SpeechCancelled:
            if self._source_error is not None:
                raise self._source_error from None
            return None

    async def _next_event(self) -> Event | None:
        inbox = self._inbox
        if not inbox.stopped:
            await self._begin()
        while True:
            event = inbox.pop()
            if event is not None:
                return event
            if self._source_error is not None:
                raise self._source_error
            if inbox.stopped or inbox.done is not None:
                return None
            if self._outgoing.failure is not None:
                raise self._outgoing.failure
            if self._outgoing.stuck:
                await self._outgoing.tell()
                continue
            patience = self._patience()
            try:
                await inbox.news(patience)
            except TimeoutError:
                self._outgoing.fail(ServerSilent(f"the server said nothing for {patience:g} s."))

    def _patience(self) -> float | None:
        """Seconds that the server may take for its next word."""
        if self._outgoing.connection is None:
            return None  # being opened, which has limits of its own
        if self._inbox.position:
            return self._settings.queue_timeout
        owed = self._inbox.ready is None or self._text_ended
        return self._settings.timeout if owed else None

    async def _push(self, text: str) -> None:
        if not text:
            return
        await self._begin()
        inbox = self._inbox
        self._pushed += len("".join(text.split()))
        for part in cut(text):
            await self._tell(pack("text", text=part))
        while (waiting := self._pushed - inbox.spoken) > AHEAD:
            if self._outgoing.over or inbox.failure is not None:
                return
            try:
                await inbox.news(self._settings.timeout)
            except TimeoutError:
                what = f"{waiting} characters wait to be spoken, and none was"
                self._outgoing.fail(ServerSilent(f"{what}; read audio while pushing text."))

    async def _finish(self) -> None:
        await self._begin()
        if not self._text_ended:
            self._text_ended = True
            await self._tell(pack("finish"))
            self._inbox.tell()

    async def _feed(self, source: TextSource) -> None:
        async with aclosing(pieces(source)) as parts:
            async for part in parts:
                if part is FLUSH:
                    await self._tell(pack("flush"))
                else:
                    await self._push(part)
        await self._finish()

    def _fed(self, feeder: asyncio.Task[None]) -> None:
        error = None if feeder.cancelled() else feeder.exception()
        if error is None or self._outgoing.over:
            return
        self._source_error = error
        self._inbox.stop()
        self._cancelling = asyncio.create_task(self._cancel(), name="rt-drama3-client cancel")

    async def _end_feeder(self) -> None:
        if self._feeder is not None and self._feeder is not asyncio.current_task():
            self._feeder.cancel()
            await asyncio.wait((self._feeder,), timeout=self._settings.close_timeout)

    async def _tell(self, message: bytes) -> None:
        await self._begin()
        await self._outgoing.tell(message)

    async def _cancel(self) -> Cancelled:
        try:
            return await self._outgoing.cancel()
        finally:
            await self._end_feeder()
