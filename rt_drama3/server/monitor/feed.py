"""Feed: messages for listeners with one rate and mode; each stream is converted and packed once.

All of them get the same bytes; nothing here waits for a listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rt_drama3.audio import StreamResampler, float_to_s16le
from rt_drama3.protocol import ListenOptions, ListenStream, stop_message

log = logging.getLogger("rt_drama3.server")

TURN_SECONDS = 5.0  # for which a stream may pause in its turn while others wait
REMEMBERED = 64  # streams that ended, but may still be playing at a listener
Samples = npt.NDArray[np.float32]


class Subscriber(Protocol):
    """A listener of a feed."""

    def put(self, messages: Sequence[bytes]) -> None:
        """Sends messages, or queues them while the line is busy."""

    def stop(self) -> None:
        """Closes the connection: the server stops."""


class _Track:
    """One stream on its way through a feed."""

    def __init__(self, messages: ListenStream, resampler: StreamResampler) -> None:
        self.messages = messages
        self.resampler = resampler
        self.held: deque[bytes] = deque()  # until its turn
        self.held_samples = 0
        self.announced = False  # to listeners
        self.caption: bytes | None = None  # the latest
        self.over = False
        self.full = False  # the rest of it is dropped


class Feed:
    """Listeners that get the same messages.

    Args:
        options: rate and mode.
        seconds: of audio that may wait for its turn in ``queue`` mode.
    """

    def __init__(self, options: ListenOptions, seconds: float) -> None:
        self.options = options
        self.subscribers: set[Subscriber] = set()
        self._max_samples = round(seconds * options.sample_rate)
        self._tracks: dict[str, _Track] = {}  # in order of their turns
        self._ended: deque[str] = deque(maxlen=REMEMBERED)
        self._timer: asyncio.TimerHandle | None = None

    def join(self, subscriber: Subscriber) -> None:
        """Adds a listener, perhaps in the middle of a stream."""
        for track in self._tracks.values():
            if track.announced:
                subscriber.put(
                    [track.messages.begin(), *([track.caption] if track.caption else [])]
                )
        self.subscribers.add(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        """Removes a listener."""
        self.subscribers.discard(subscriber)
        if not self.subscribers:
            self._cancel_timer()

    def begin(
        self, name: str, request_id: str, after: str | None, rate: int, position: int
    ) -> None:
        """A stream begins, or this feed is created while it is spoken.

        Args:
            name, request_id, after: see ``ListenStream``.
            rate: its sample rate, Hz.
            position: its samples so far.
        """
        wanted = self.options.sample_rate
        messages = ListenStream(name, request_id, after, position * wanted // rate)
        track = self._tracks[name] = _Track(messages, StreamResampler(rate, wanted))
        self._send_in_turn(track, [messages.begin()])

    def segment(self, name: str, text: str, position: int, rate: int) -> None:
        """A text is spoken from this sample (at the stream's own rate) on."""
        track = self._tracks.get(name)
        if track is not None:
            first = position * self.options.sample_rate // rate
            track.caption = track.messages.segment(text, first)
            self._send_in_turn(track, [track.caption])

    def audio(self, name: str, pcm: Samples) -> None:
        """Adds samples at the stream's own rate."""
        track = self._tracks.get(name)
        if track is not None and not track.full:
            self._send_audio(track, track.resampler.push(pcm))

    def end(self, name: str) -> None:
        """All of it was spoken."""
        track = self._tracks.get(name)
        if track is None or track.over:
            return
        if not track.full:
            self._send_audio(track, track.resampler.flush())
        track.over = True
        self._send_in_turn(track, [track.messages.end(False)])
        self._next()

    def cancel(self, name: str) -> None:
        """Drops what was not played yet of a stream, even of one that has ended."""
        track = self._tracks.pop(name, None)
        if track is not None and track.announced:
            self._send([track.messages.end(True)])
        elif track is None and name in self._ended:
            self._ended.remove(name)
            self._send([ListenStream(name, "", None).end(True)])
        self._next()

    def stop(self, fade_ms: float) -> None:
        """Asks all listeners to fade out."""
        ends = [track.messages.end(True) for track in self._tracks.values() if track.announced]
        self._tracks.clear()
        self._ended.clear()
        self._cancel_timer()
        self._send([stop_message(fade_ms), *ends])

    # Inside.

    def _has_turn(self, track: _Track) -> bool:
        return self.options.mode == "mix" or track is next(iter(self._tracks.values()), None)

    def _send_audio(self, track: _Track, samples: Samples) -> None:
        if not self._has_turn(track):
            waiting = sum(other.held_samples for other in self._tracks.values())
            if waiting + len(samples) > self._max_samples:
                track.full = True
                fields = {"stream": track.messages.name, "waiting_samples": waiting}
                log.warning("listeners' queue is full", extra={"fields": fields})
                return
            track.held_samples += len(samples)
        if len(samples):
            self._send_in_turn(track, track.messages.audio(float_to_s16le(samples)))

    def _send_in_turn(self, track: _Track, messages: list[bytes]) -> None:
        if self._has_turn(track):
            track.announced = True
            self._send(messages)
            self._cancel_timer()
            if track.over:
                self._forget(track)
        else:
            track.held.extend(messages)
        self._limit_turn()

    def _next(self) -> None:
        """Sends what the stream whose turn it is holds; passes the turn on when it is over."""
        while self._tracks and self.options.mode == "queue":
            track = next(iter(self._tracks.values()))
            if track.held:
                track.announced = True
                self._send(list(track.held))
                track.held.clear()
                track.held_samples = 0
            if not track.over:
                break
            self._forget(track)
        self._limit_turn()

    def _forget(self, track: _Track) -> None:
        if self._tracks.pop(track.messages.name, None) is not None:
            self._ended.append(track.messages.name)

    def _limit_turn(self) -> None:
        """Passes the turn on if the stream that has it pauses for too long."""
        if self._timer is None and any(track.held for track in self._tracks.values()):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(TURN_SECONDS, self._pass_on)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pass_on(self) -> None:
        self._timer = None
        name = next(iter(self._tracks), None)
        if name is not None and any(track.held for track in self._tracks.values()):
            self._tracks[name] = self._tracks.pop(name)
            self._next()

    def _send(self, messages: list[bytes]) -> None:
        for subscriber in list(self.subscribers):
            subscriber.put(messages)
