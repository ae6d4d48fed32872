"""Inbox: a bounded buffer of the server's messages about one utterance."""

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
    Notice,
    Queued,
    Ready,
    Segment,
    Sent,
    ServerMessage,
)
from rt_drama3_client.timings import Timings

MAX_SEGMENTS: Final = 1_000  # remembered
MAX_NOTICES: Final = 100  # remembered
EVENT_BYTES: Final = 256  # size of an event without audio in the buffer


class Inbox:
    """The receiving side of an utterance.

    Args:
        limit: bytes that may be buffered; beyond it the connection is not read.
        ended: called when the utterance has ended and its connection is free, with whether that can
            be reused.

    Attributes:
        ready, done, cancelled: these messages, once received.
        segments: the latest segments.
        position: position in the queue; 0 when its turn has come.
        failure: the error that ended it early, or ended this attempt.
        stopped: whether it was cancelled locally; no more events are returned.
        begun: whether audio was received.
        spoken: characters of the text whose audio has begun.
        timings: its timings.
    """

    def __init__(self, limit: int, ended: Callable[[bool], None]) -> None:
        self.ready: Ready | None = None
        self.done: Done | None = None
        self.cancelled: Cancelled | None = None
        self.segments: deque[Segment] = deque(maxlen=MAX_SEGMENTS)
        self.notices: deque[str] = deque(maxlen=MAX_NOTICES)
        self.position = 0
        self.failure: ClientError | None = None
        self.stopped = False
        self.begun = False
        self.spoken = 0
        self.timings = Timings()
        self.patient = False  # underruns before a new segment do not count: its text was late
        self._started = 0.0
        self._events: deque[Event] = deque()
        self._size = 0
        self._limit = limit
        self._ended = ended
        self._messages = self._bytes = self._samples = 0
        self._new_text = False
        self._changed = asyncio.Event()

    @property
    def rate(self) -> int:
        """Output rate in Hz; 0 before it is known."""
        return 0 if self.ready is None else self.ready.sample_rate

    @property
    def request_id(self) -> str | None:
        """The utterance's id at the server."""
        return None if self.ready is None else self.ready.id

    def start(self) -> None:
        """Starts an attempt and discards what the previous one left."""
        self._started = time.perf_counter()
        self.ready = self.failure = None
        self.position = self.spoken = 0
        self.timings.ready = None
        self._clear()

    def stop(self) -> None:
        """Stops returning events, and discards incoming ones."""
        self.stopped = True
        self._clear()
        self.notify()

    def notify(self) -> None:
        """Wakes all waiters."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float | None) -> None:
        """Waits until something changes.

        Raises:
            TimeoutError: nothing changed in time.
        """
        async with asyncio.timeout(seconds):
            await self._changed.wait()

    def pop(self) -> Event | None:
        """Removes and returns the oldest event, or None."""
        if not self._events:
            return None
        event = self._events.popleft()
        self._size -= _size(event)
        self.notify()
        return event

    def sent(self) -> Sent:
        """Returns totals of the audio received."""
        seconds = self._samples / self.rate if self.rate else 0.0
        return Sent(self._messages, self._bytes, self._samples, round(seconds, 3))

    def received(self, audio: bytes | None = None) -> Received:
        """Returns what was received, for an error."""
        sent, text = self.sent(), tuple(segment.text for segment in self.segments)
        return Received(sent.messages, sent.samples, sent.seconds, text, audio)

    def outcome(self) -> Cancelled:
        """Returns the result of a cancel, as far as it is known."""
        if self.done is not None:
            done = self.done
            return Cancelled(done.id, done.frames, done.sent.seconds, done.sent, finished=True)
        if self.cancelled is not None:
            return self.cancelled
        sent = self.sent()
        begun = self.ready is not None
        return Cancelled(self.request_id, 0, sent.seconds, sent, acknowledged=not begun)

    def lost(self, error: ClientError) -> None:
        """Handles the end of the connection."""
        if self.failure is None:
            self.failure = error
        self._ended(False)
        self.notify()

    async def take(self, name: str | None, message: ServerMessage) -> None:
        """Handles a message about the utterance with that id; blocks while there is no room."""
        if isinstance(message, Ready):
            self.ready = message
            self.notices.extend(message.notices)
            self.timings.ready = time.perf_counter() - self._started
            self._keep(message)
        elif name is not None and self.ready is not None and name != self.ready.id:
            return  # of an earlier utterance
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
        elif isinstance(message, Notice):
            self.notices.append(message.text)
            self._keep(message)
        elif isinstance(message, Queued):
            self.position = message.position
            self._keep(message)
        self.notify()
        while self._size > self._limit and not self.stopped:
            await self._changed.wait()

    def _take_error(self, error: ServerError) -> None:
        if self.stopped:
            return  # the response to the cancel is still to come
        if error.request_id is None:
            error.request_id = self.request_id
        self.failure = error
        if error.scope == "utterance":
            self._ended(True)

    def _take_done(self, done: Done) -> None:
        self.timings.server = done.timings
        self.timings.total = time.perf_counter() - self._started
        if self.stopped:  # the response to the cancel is still to come
            self.done = done
            return
        if self.failure is None:  # otherwise part of its text was refused: not a success
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
