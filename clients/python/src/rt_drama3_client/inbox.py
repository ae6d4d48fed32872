"""Inbox: what the server says about one utterance, kept until somebody takes it, within bounds."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from rt_drama3_client.errors import ClientError, Received, ServerError
from rt_drama3_client.messages import (
    AudioChunk,
    Cancelled,
    Done,
    Event,
    Queued,
    Ready,
    Segment,
    Sent,
    ServerMessage,
)
from rt_drama3_client.timings import Timings

MOST_SEGMENTS: Final = 1_000  # that are remembered
EVENT_BYTES: Final = 256  # what an event without audio counts in the buffer


class Inbox:
    """The receiving side of an utterance.

    Args:
        most: bytes that may wait; beyond it the connection is not read.
        ended: called when nothing more comes of the utterance and its connection is free, with
            whether that can be used again.

    Attributes:
        ready, done, cancelled: those messages, when they came.
        segments: the last ones.
        position: in the queue; 0 when its turn has come.
        failure: what ended it early, perhaps only this attempt.
        stopped: it was cancelled here; nothing more is handed out.
        begun: audio came.
        spoken: characters of the text whose audio began.
        timings: of it.
    """

    def __init__(self, most: int, ended: Callable[[bool], None]) -> None:
        self.ready: Ready | None = None
        self.done: Done | None = None
        self.cancelled: Cancelled | None = None
        self.segments: deque[Segment] = deque(maxlen=MOST_SEGMENTS)
        self.position = 0
        self.failure: ClientError | None = None
        self.stopped = False
        self.begun = False
        self.spoken = 0
        self.timings = Timings()
        self.patient = False  # gaps before a new piece of text are no fault
        self._started = 0.0
        self._events: deque[Event] = deque()
        self._size = 0
        self._most = most
        self._ended = ended
        self._messages = self._bytes = self._samples = 0
        self._new_text = False
        self._news = asyncio.Event()

    @property
    def rate(self) -> int:
        """Of the output, Hz; 0 before it is known."""
        return 0 if self.ready is None else self.ready.sample_rate

    @property
    def request_id(self) -> str | None:
        """What the server calls the utterance."""
        return None if self.ready is None else self.ready.id

    def start(self) -> None:
        """An attempt begins: what one before it left is forgotten."""
        self._started = time.perf_counter()
        self.ready = self.failure = None
        self.position = self.spoken = 0
        self.timings.ready = None
        self._clear()

    def stop(self) -> None:
        """Hands nothing out any more, and takes what comes without keeping it."""
        self.stopped = True
        self._clear()
        self.tell()

    def tell(self) -> None:
        """Wakes whoever waits."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, seconds: float | None) -> None:
        """Waits until something changes.

        Raises:
            TimeoutError: nothing did.
        """
        async with asyncio.timeout(seconds):
            await self._news.wait()

    def pop(self) -> Event | None:
        """What came first; None where nothing waits."""
        if not self._events:
            return None
        event = self._events.popleft()
        self._size -= _size(event)
        self.tell()
        return event

    def sent(self) -> Sent:
        """Audio that came."""
        seconds = self._samples / self.rate if self.rate else 0.0
        return Sent(self._messages, self._bytes, self._samples, round(seconds, 3))

    def received(self, audio: bytes | None = None) -> Received:
        """What came, for an error."""
        sent, text = self.sent(), tuple(segment.text for segment in self.segments)
        return Received(sent.messages, sent.samples, sent.seconds, text, audio)

    def outcome(self) -> Cancelled:
        """What came of it in the end, as far as is known here."""
        if self.done is not None:
            done = self.done
            return Cancelled(done.id, done.frames, done.sent.seconds, done.sent, finished=True)
        if self.cancelled is not None:
            return self.cancelled
        sent = self.sent()
        begun = self.ready is not None
        return Cancelled(self.request_id, 0, sent.seconds, sent, acknowledged=not begun)

    def lost(self, error: ClientError) -> None:
        """The connection ended; see ``Listener``."""
        if self.failure is None:
            self.failure = error
        self._ended(False)
        self.tell()

    async def take(self, name: str | None, message: ServerMessage) -> None:
        """A message came; see ``Listener``."""
        if isinstance(message, Ready):
            self.ready = message
            self.timings.ready = time.perf_counter() - self._started
            self._keep(message)
        elif name is not None and self.ready is not None and name != self.ready.id:
            return  # of an utterance before
        elif isinstance(message, ServerError):
            self._take_error(message)
        elif isinstance(message, Cancelled):
            self.cancelled = message
            self._ended(True)
        elif isinstance(message, Done):
            self._take_done(message)
        elif isinstance(message, AudioChunk):
            self._take_audio(message)
        elif isinstance(message, Segment):
            self.segments.append(message)
            self.spoken += len(message.text)
            self._new_text = True
            self._keep(message)
        elif isinstance(message, Queued):
            self.position = message.position
            self._keep(message)
        self.tell()
        while self._size > self._most and not self.stopped:
            await self._news.wait()

    def _take_error(self, error: ServerError) -> None:
        if self.stopped:
            return  # the answer to the cancel comes all the same
        if error.request_id is None:
            error.request_id = self.request_id
        self.failure = error
        if error.scope == "utterance":
            self._ended(True)

    def _take_done(self, done: Done) -> None:
        self.timings.server = done.timings
        self.timings.total = time.perf_counter() - self._started
        if self.stopped:  # the answer to the cancel is still to come
            self.done = done
            return
        if self.failure is None:  # else a part of its text was refused: that is no good end
            self.done = done
            self._keep(done)
        self._ended(True)

    def _take_audio(self, chunk: AudioChunk) -> None:
        timings, since = self.timings, chunk.arrived - self._started
        self.begun = True
        self.position = 0
        self._messages += 1
        self._bytes += len(chunk)
        self._samples += chunk.samples
        if timings.first_byte is None:
            timings.first_byte = since
        if chunk.samples and self.rate:
            if timings.first_audio is None:
                timings.first_audio = since
            excused = self._new_text and self.patient
            timings.playback.play(chunk.arrived, chunk.samples / self.rate, excused)
            self._new_text = False
        self._keep(chunk)

    def _keep(self, event: Event) -> None:
        if not self.stopped:
            self._events.append(event)
            self._size += _size(event)

    def _clear(self) -> None:
        self._events.clear()
        self._size = 0


def _size(event: Event) -> int:
    return len(event) + EVENT_BYTES if isinstance(event, AudioChunk) else EVENT_BYTES
