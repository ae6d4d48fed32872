"""The takes that best-of chooses from, and the chosen one as a stream."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rt_drama3.engine.events import Audio, Done, Durations, Event, Segment, SpeechSummary, Stamps
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.scenes.best_of import RankedTake

if TYPE_CHECKING:
    from rt_drama3.engine.engine import Engine

CHUNK_FRAMES = 21  # about a second


class Takes:
    """Generates takes of one request concurrently, as codes only.

    Take k has the seed of the request plus k.

    Args:
        engine: generates them.
        request: what to say.
        count: number of takes.
        concurrent: the limit of streams that are open at a time, which leaves room for others.
    """

    def __init__(self, engine: Engine, request: SpeechRequest, count: int, concurrent: int) -> None:
        self._engine, self._count, self._concurrent = engine, count, concurrent
        self._request = engine.normalize_guidance(request)  # logs its notice once
        self._lock = threading.Lock()
        self._opened: list[Speech] = []
        self._cancelled = False

    def run(self) -> list[SpeechSummary]:
        """Generates them; blocks.

        Raises:
            RtDrama3Error: one of them failed; the others are cancelled.
        """
        seed = secrets.randbits(32) if self._request.seed is None else self._request.seed
        try:
            for number in range(self._count):
                if number >= self._concurrent:
                    self._opened[number - self._concurrent].result()
                if self._cancelled:
                    break
                self._add(
                    self._engine.open(replace(self._request, seed=seed + number, audio=False))
                )
            return [speech.result() for speech in self._opened]
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Cancels all of them; thread-safe. ``run`` returns soon, and its result is incomplete."""
        with self._lock:
            self._cancelled, opened = True, list(self._opened)
        for speech in opened:
            speech.cancel()

    def _add(self, speech: Speech) -> None:
        with self._lock:
            self._opened.append(speech)
        if self._cancelled:
            speech.cancel()


class FinishedTake:
    """A finished take that is consumed like a ``Speech``, in chunks of a second.

    Args:
        take: the take.
        durations: of the stages that made it.
        accepted: when it was asked for, in seconds of ``time.monotonic``.
    """

    ended = True

    def __init__(self, take: RankedTake, durations: Durations, accepted: float) -> None:
        self._take, self._durations, self._accepted = take, durations, accepted
        self.known_segments = int(bool(len(take.audio)))

    async def events(self) -> AsyncIterator[Event]:
        """See ``Speech.events``."""
        if self.known_segments:
            yield Segment(0, self._take.text, 0, 0, 1)
        for chunk in self:
            yield chunk
        yield Done(self.result())

    def __iter__(self) -> Iterator[Audio]:
        """The audio, if there is any."""
        take, now = self._take, time.monotonic()
        stamps = Stamps(self._accepted, now, (now, now), now)
        frames = take.codes.shape[1]
        samples = len(take.audio) // max(frames, 1)
        for first in range(0, frames, CHUNK_FRAMES):
            count = min(CHUNK_FRAMES, frames - first)
            pcm = take.audio[first * samples : (first + count) * samples]
            yield Audio(pcm, first, count, take.sample_rate, 0, stamps)

    def cancel(self) -> None:
        """Does nothing: it is finished."""

    def result(self) -> SpeechSummary:
        """The summary of the stream that made it."""
        take = self._take
        return SpeechSummary(
            segments=((take.text, 0),) * self.known_segments,
            codes=take.codes,
            sample_rate=take.sample_rate,
            seed=take.seed,
            complete=take.complete,
            cancelled=False,
            delivered=take.codes.shape[1],
            durations=self._durations,
            text=take.text,
        )
