"""What a program sees of one stream: the request, the handle, and the events that come out of it.

The engine puts events into a ``Speech`` from its own threads; one consumer takes them, in a plain
loop or in asyncio. No torch in this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import numpy.typing as npt

from rt_drama3.engine.events import (
    Audio,
    Done,
    Event,
    Idle,
    Queued,
    Segment,
    SpeechSummary,
)
from rt_drama3.errors import DeviceError, RtDrama3Error


class SpeechSettings(TypedDict, total=False):
    """How to speak a text; every setting may be left out.

    Attributes:
        references: ``(transcript, audio)`` pairs, in order. Audio is a file (path, bytes, open
            file), ``(samples, sample_rate)``, float samples at this model's rate, or integer codes
            ``[num_codebooks, frames]``. Or maps with ``text``, ``audio`` or ``vq_codes``, and
            ``speaker`` (0 to 15).
        history: ``(text, codes)`` of earlier takes of the same scene, in order.
        previous_takes: further earlier takes, after those: ``Take``s, artefacts
            (``takes.read_takes``), ``(text, codes or audio)`` pairs or maps. A text alone,
            ``(text, None)``, is spoken first.
        guidance: how strongly directions are followed, 0 to 20; None and 0 are off. Takes a second
            row of the batch wherever the text has directions. A voice that was trained on none
            ignores it with a warning.
        steering: (name, path or ``Steering``; strength) pairs, see ``steering``.
        seed: None draws one; it is in the summary and the take.
        temperature, top_p, top_k: None takes the checkpoint's default; temperature 0 is greedy.
            ``top_k`` also limits the codebook heads, to 30 at most.
        head_temperature: of the codebook heads; None follows ``temperature`` when that is given,
            else the checkpoint's default.
        repetition_aware: redraw a semantic code that just occurred.
        normalize: read numbers, signs and markup as words (``rt_drama3.text.normalize``): "on",
            "off", or "auto", which asks the checkpoint (nano wants it, Drama 3 does not).
        max_frames: ends the take after this many frames; None sets a generous limit from the length
            of the text, so that a take cannot run away.
    """

    references: Sequence[Any]
    history: Sequence[tuple[str, npt.ArrayLike]]
    previous_takes: Sequence[Any]
    guidance: float | None
    steering: Sequence[tuple[Any, float]]
    seed: int | None
    temperature: float | None
    head_temperature: float | None
    top_p: float | None
    top_k: int | None
    repetition_aware: bool
    max_frames: int | None
    normalize: str


@dataclass(frozen=True)
class SpeechRequest:
    """What to say and how; for the other settings see ``SpeechSettings``.

    Attributes:
        text: what is known of the text.
        final: whether that is all of it; otherwise more comes by ``Speech.push_text``.
        audio: False generates codes alone, without ``Audio`` events: no listener is needed.
        patient: wait for a listener that takes no audio beyond ``lead_timeout``; the caller cancels
            the stream when that takes too long.
    """

    text: str = ""
    final: bool = True
    references: Sequence[Any] = ()
    history: Sequence[tuple[str, npt.ArrayLike]] = ()
    seed: int | None = None
    temperature: float | None = None
    head_temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_aware: bool = True
    max_frames: int | None = None
    normalize: str = "auto"
    guidance: float | None = None
    steering: Sequence[tuple[Any, float]] = ()
    previous_takes: Sequence[Any] = ()
    audio: bool = True
    patient: bool = False

    @property
    def waits_for_text(self) -> bool:
        """Whether there is no text yet, and some may come."""
        return not (self.final or self.text)


def check_process(owner: int) -> None:
    """Refuses in a process that was forked from the one whose id is given.

    Raises:
        DeviceError: this is such a process; what it waits for would never come.
    """
    if os.getpid() != owner:
        raise DeviceError(
            f"this engine belongs to process {owner}, and its threads did not come along when "
            f"process {os.getpid()} was forked from it. Load the checkpoint in the child, or start "
            'the child with multiprocessing\'s "spawn" method.'
        )


class SpeechOwner(Protocol):
    """The engine, as a ``Speech`` calls it; every method returns immediately."""

    def push(self, speech: Speech, text: str) -> None:
        """Adds text."""

    def flush(self, speech: Speech) -> None:
        """Speaks what was pushed."""

    def finish(self, speech: Speech) -> None:
        """No more text comes."""

    def cancel(self, speech: Speech) -> None:
        """Stops."""

    def consumed(self) -> None:
        """A listener took audio; a paused stream may continue."""


class Speech:
    """One stream, as its client holds it. Every method is thread-safe and returns immediately.

    ``events`` gives all that happens to it. Iterating the ``Speech`` itself (``for`` or ``async
    for``) gives the audio alone and ends after the last chunk, or immediately after ``cancel``.
    Either raises the error that ended the stream. There must be one consumer.

    Args:
        owner: the engine.
        request: text and settings.
        keep: an object that lives as long as the stream: an engine ends when it is dropped.

    Attributes:
        waited_for: the reason of the latest ``Queued``, empty if it never had to wait.
        known_segments: segments known when the latest one began.
    """

    def __init__(self, owner: SpeechOwner, request: SpeechRequest, keep: object = None) -> None:
        self.request = request
        self._owner, self._keep = owner, keep
        self._pid = os.getpid()
        self._changed = threading.Condition()
        # Bounded: audio by the engine, which pauses a stream that is not read; the rest coalesces.
        self._events: deque[Queued | Segment | Audio | Idle] = deque()
        self._unread = 0.0  # seconds
        self._summary: SpeechSummary | None = None
        self._error: RtDrama3Error | None = None
        self._ended = False
        self._cancelled = False
        self.waited_for = ""
        self.known_segments = 0
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    # What the client calls.

    def push_text(self, text: str) -> None:
        """Adds text; whole sentences are spoken as they complete.

        Raises:
            RequestError: the text was already finished, or cannot be spoken.
            Overloaded: the stream had been silent, and too many others speak or wait to by now;
                nothing of the text was taken.
        """
        check_process(self._pid)
        self._owner.push(self, text)

    def flush(self) -> None:
        """Speaks what was pushed so far without waiting for the end of its sentence."""
        self._owner.flush(self)

    def finish(self) -> None:
        """No more text comes: the stream ends once everything is spoken."""
        self._owner.finish(self)

    def cancel(self) -> None:
        """Stops the stream (barge-in): nothing more is delivered, at most one frame is made."""
        with self._changed:
            self._cancelled = True
            self._events.clear()
            self._unread = 0.0
            self._notify()
        self._owner.cancel(self)

    @property
    def ended(self) -> bool:
        """Whether the engine is done with it; chunks may still wait to be taken."""
        return self._ended

    @property
    def pending(self) -> int:
        """Events that can be taken without waiting, ``Done`` not counted."""
        return len(self._events)

    @property
    def unread_seconds(self) -> float:
        """Audio delivered but not taken."""
        return self._unread

    def events(self) -> Events:
        """Everything that happens to the stream, for ``for`` or ``async for``.

        After ``cancel`` only ``Done`` comes.
        """
        return Events(self)

    def __iter__(self) -> Iterator[Audio]:
        """Takes audio as it comes, blocking in between."""
        return (event for event in self._take_each(False) if isinstance(event, Audio))

    def __aiter__(self) -> AsyncIterator[Audio]:
        """Takes audio as it comes, without blocking the event loop."""
        return (event async for event in self._take_each_async(False) if isinstance(event, Audio))

    def result(self, timeout: float | None = None) -> SpeechSummary:
        """Waits for the end and returns the summary.

        The audio must be taken meanwhile: a stream whose audio is not taken pauses.

        Raises:
            RtDrama3Error: what ended it, if that was an error.
            TimeoutError: it did not end in time.
        """
        check_process(self._pid)
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, timeout):
                raise TimeoutError(f"the stream did not end within {timeout} s")
            if self._error is not None:
                raise self._error
            assert self._summary is not None
            return self._summary

    async def summary(self) -> SpeechSummary:
        """``result`` for asyncio; call it after the iteration.

        Raises:
            RtDrama3Error: what ended the stream, if that was an error.
        """
        check_process(self._pid)
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._ended:
                    break
                waiter = loop.create_future()
                self._waiter = (loop, waiter)
            await waiter
        return self.result(0)

    # What the engine calls.

    def put(self, event: Queued | Segment | Audio | Idle) -> bool:
        """Adds an event; false when the stream was cancelled or has ended."""
        with self._changed:
            if self._cancelled or self._ended:
                return False
            latest = self._events[-1] if self._events else None
            if isinstance(event, Queued | Idle) and type(latest) is type(event):
                self._events.pop()  # it was not read in time; the new one replaces it
            if isinstance(event, Queued):
                self.waited_for = event.reason
            elif isinstance(event, Segment):
                self.known_segments = event.known
            elif isinstance(event, Audio):
                self._unread += event.seconds
            self._events.append(event)
            self._notify()
            return True

    def admitted(self) -> None:
        """The wait is over; a ``Queued`` that was not read yet is withdrawn."""
        with self._changed:
            if self._events and isinstance(self._events[-1], Queued):
                self._events.pop()

    def end(self, summary: SpeechSummary | None, error: RtDrama3Error | None = None) -> None:
        """Marks the end; only the first call counts."""
        with self._changed:
            if self._ended:
                return
            self._summary, self._error, self._ended = summary, error, True
            self._notify()

    # Taking events.

    def _take_each(self, to_end: bool) -> Iterator[Event]:
        """Events as they come; with ``to_end`` a cancelled stream still gives its ``Done``."""
        while True:
            check_process(self._pid)
            with self._changed:
                self._changed.wait_for(lambda: self._ready(to_end))
                event = self._take()
            if event is None:
                return
            if isinstance(event, Audio):
                self._owner.consumed()
            yield event
            if isinstance(event, Done):
                return

    async def _take_each_async(self, to_end: bool) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        while True:
            check_process(self._pid)
            with self._changed:
                ready = self._ready(to_end)
                event = self._take() if ready else None
                waiter = loop.create_future()
                self._waiter = None if ready else (loop, waiter)
            if not ready:
                await waiter
                continue
            if event is None:
                return
            if isinstance(event, Audio):
                self._owner.consumed()
            yield event
            if isinstance(event, Done):
                return

    def _ready(self, to_end: bool) -> bool:
        return bool(self._events) or self._ended or (self._cancelled and not to_end)

    def _take(self) -> Event | None:
        """The next event, or None after a cancel; raises the error that ended the stream."""
        if self._events:
            event = self._events.popleft()
            if isinstance(event, Audio):
                more = any(isinstance(other, Audio) for other in self._events)
                self._unread = max(0.0, self._unread - event.seconds) if more else 0.0
            return event
        if self._error is not None and not self._cancelled:
            raise self._error
        return None if self._summary is None else Done(self._summary)

    def _notify(self) -> None:
        self._changed.notify_all()
        if self._waiter is not None:
            loop, future = self._waiter
            self._waiter = None
            with contextlib.suppress(RuntimeError):  # the loop was closed; no consumer waits
                loop.call_soon_threadsafe(_resolve, future)


class Events:
    """The events of one stream, see ``Speech.events``."""

    def __init__(self, speech: Speech) -> None:
        self._speech = speech

    def __iter__(self) -> Iterator[Event]:
        """Takes events as they come, blocking in between."""
        return self._speech._take_each(True)

    def __aiter__(self) -> AsyncIterator[Event]:
        """Takes events as they come, without blocking the event loop."""
        return self._speech._take_each_async(True)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
