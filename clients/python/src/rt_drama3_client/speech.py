"""AsyncSpeech: one utterance."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Self

from rt_drama3_client.audio_files import AudioFile, check_fits, format_of, with_sizes
from rt_drama3_client.errors import (
    ClientError,
    ServerSilent,
    SpeechCancelled,
    UsageError,
)
from rt_drama3_client.messages import AudioChunk, Cancelled, Done, Event, Pong, Ready, Segment, pack
from rt_drama3_client.options import check, start_message
from rt_drama3_client.outgoing import Outgoing
from rt_drama3_client.pool import Pool
from rt_drama3_client.sources import FLUSH, MESSAGE_CHARACTERS, TextSource, cut, parts
from rt_drama3_client.timings import Timings

AHEAD = 100_000  # characters that may be pending at the server; its limit is 262,144


class AsyncSpeech:
    """One utterance, created by ``AsyncClient.speak`` and ``AsyncClient.stream``.

    Nothing happens before its first use. Iterating yields audio, ``events`` yields everything. Text
    and audio may be handled by different tasks. Leaving a loop early cancels the rest, except
    within ``async with``, where the end of the block does.

    Args:
        pool: the client's connections.
        source: the text; None if it is pushed.
        options: see ``Options``.
    """

    def __init__(self, pool: Pool, source: TextSource | None, options: Mapping[str, Any]) -> None:
        check(options)
        if isinstance(source, str) and len(source) > MESSAGE_CHARACTERS:
            source = list(cut(source))
        self._settings = pool.settings
        self._source = source
        self._options = dict(options)
        self._outgoing = Outgoing(pool)
        self._inbox = self._outgoing.inbox
        self._pushed = 0  # characters
        self._text_ended = False
        self._started = self._managed = False
        self._feeder: asyncio.Task[None] | None = None
        self._source_error: BaseException | None = None
        self._cancelling: asyncio.Task[Cancelled] | None = None

    # State.

    @property
    def ready(self) -> Ready | None:
        """The server's ``ready``, once received."""
        return self._inbox.ready

    @property
    def done(self) -> Done | None:
        """The server's ``done``, once everything was received."""
        return self._inbox.done

    @property
    def request_id(self) -> str | None:
        """The utterance's id in the server's logs, once the server responded."""
        return self._inbox.request_id

    @property
    def segments(self) -> list[Segment]:
        """Segments of the text in the audio received so far (the last 1000)."""
        return list(self._inbox.segments)

    @property
    def notices(self) -> list[str]:
        """What the server reported so far: text that is not spoken, options without effect."""
        return list(self._inbox.notices)

    @property
    def timings(self) -> Timings:
        """Timings so far."""
        return self._inbox.timings

    @property
    def buffered_seconds(self) -> float:
        """Seconds of audio buffered now by a player that started with the first chunk."""
        return self._inbox.timings.playback.buffered(time.perf_counter())

    # Text.

    async def push(self, text: str) -> None:
        """Adds text, split anywhere; blocks while too much of it is pending.

        Raises:
            UsageError: the text has ended, or comes from an iterable.
            SpeechCancelled: the utterance was cancelled.
            ClientError: it failed.
        """
        self._check_pushing()
        await self._push(text)

    async def flush(self) -> None:
        """Speaks all text so far, although its sentence is incomplete. Raises as ``push``."""
        self._check_pushing()
        await self._send(pack("flush"))

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
        """Yields every ``Ready``, ``Queued``, ``Segment``, ``Notice``, ``AudioChunk`` and ``Done``.

        It ends with ``Done``, or without an error if the utterance is cancelled.

        Raises:
            ClientError: the utterance failed; ``received`` has what was received before.
        """
        try:
            while (event := await self._next()) is not None:
                yield event
        finally:
            if self._source_error is not None or not (self._managed or self._outgoing.over):
                with suppress(ServerSilent):  # the connection was dropped, which is enough
                    await self.cancel()
            elif self._outgoing.over:
                await self._end_feeder()

    async def read(self) -> bytes:
        """Returns all audio; a WAV header has the correct sizes.

        Raises:
            SpeechCancelled: it was cancelled elsewhere.
            ClientError: it failed; ``received.audio`` has the audio received before.
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
        """Writes the audio to a file as it arrives; a WAV header gets the correct sizes.

        If no format was requested, the extension selects it. An existing file is replaced once
        there is audio; if the utterance fails in the middle, what was received is kept.

        Raises:
            UsageError: the extension is unknown or does not match the requested format.
            SpeechCancelled: it was cancelled elsewhere.
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
            file.samples = self._inbox.sent().samples  # only now: an encoder holds back samples
            file.complete()
        assert self.done is not None
        return self.done

    # End.

    async def cancel(self) -> Cancelled:
        """Stops immediately (barge-in) and waits for the server's response; keeps the connection.

        No more events are returned after this call, and loops end. Calling it again, or after the
        end, has no effect.

        Raises:
            ServerSilent: the server did not respond; the connection was dropped.
        """
        if self._cancelling is None:
            self._inbox.stop()
            self._cancelling = asyncio.create_task(self._cancel(), name="rt-drama3-client cancel")
            await asyncio.sleep(0)  # the message goes out even if this is interrupted
        return await asyncio.shield(self._cancelling)

    async def ping(self) -> Pong:
        """Measures the round trip on its connection, after audio that is in transit.

        Raises:
            UsageError: nothing is being spoken.
            ClientError: there was no response.
        """
        connection = self._outgoing.connection
        if connection is None:
            raise UsageError("nothing is being spoken now; ping the client instead.")
        return await connection.ping()

    async def __aenter__(self) -> Self:
        self._managed = True
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._started and not self._outgoing.over:
            with suppress(ServerSilent):
                await self.cancel()
        await self._end_feeder()

    # Internals.

    def _check_pushing(self) -> None:
        if self._source is not None:
            raise UsageError("speak() was given the text; use stream() to push text.")
        if self._text_ended:
            raise UsageError("the text has ended; start another utterance.")

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
        await self._outgoing.send(start)

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
                await self._outgoing.send()
                continue
            patience = self._patience()
            try:
                await inbox.wait(patience)
            except TimeoutError:
                self._outgoing.fail(ServerSilent(f"the server sent nothing for {patience:g} s."))

    def _patience(self) -> float | None:
        """Returns the seconds that the server may take for its next message."""
        if self._outgoing.connection is None:
            return None  # being opened, which has its own timeout
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
            await self._send(pack("text", text=part))
        while (waiting := self._pushed - inbox.spoken) > AHEAD:
            if self._outgoing.over or inbox.failure is not None:
                return
            try:
                await inbox.wait(self._settings.timeout)
            except TimeoutError:
                what = f"{waiting} characters are pending, and none was spoken in time"
                self._outgoing.fail(ServerSilent(f"{what}; read audio while pushing text."))

    async def _finish(self) -> None:
        await self._begin()
        if not self._text_ended:
            self._text_ended = True
            await self._send(pack("finish"))
            self._inbox.notify()

    async def _feed(self, source: TextSource) -> None:
        async with aclosing(parts(source)) as texts:
            async for part in texts:
                if part is FLUSH:
                    await self._send(pack("flush"))
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

    async def _send(self, message: bytes) -> None:
        await self._begin()
        await self._outgoing.send(message)

    async def _cancel(self) -> Cancelled:
        try:
            return await self._outgoing.cancel()
        finally:
            await self._end_feeder()
