"""Feed: what listeners with one rate and mode are sent; each stream is converted and packed once.

Messages are the same bytes for all of them. A listener keeps its own place in them and is its own
business; nothing here waits for one.
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

PATIENCE_SECONDS = 5.0  # that a stream in the queue may say nothing while others wait
REMEMBERED = 64  # streams that ended, but may still sound at a listener
Samples = npt.NDArray[np.float32]


class Ear(Protocol):
    """A listener, as a feed sees it."""

    def put(self, messages: Sequence[bytes]) -> None:
        """Sends messages, at once or when the line is free."""

    def stop(self) -> None:
        """Ends the connection: the server stops."""


class _Track:
    """One stream on its way through a feed."""

    def __init__(self, said: ListenStream, resampler: StreamResampler) -> None:
        self.said = said
        self.resampler = resampler
        self.held: deque[bytes] = deque()  # until it is its turn
        self.held_samples = 0
        self.told = False  # listeners know of it
        self.caption: bytes | None = None  # what is being said
        self.over = False  # nothing more comes
        self.full = False  # its rest is left out


class Feed:
    """Listeners that are sent the same.

    Args:
        options: rate and mode.
        seconds: of audio that may wait for its turn in the queue.
    """

    def __init__(self, options: ListenOptions, seconds: float) -> None:
        self.options = options
        self.ears: set[Ear] = set()
        self._most = round(seconds * options.sample_rate)
        self._tracks: dict[str, _Track] = {}  # in order of their turns
        self._ended: deque[str] = deque(maxlen=REMEMBERED)  # that may still sound somewhere
        self._patience: asyncio.TimerHandle | None = None

    def join(self, ear: Ear) -> None:
        """A listener comes, perhaps in the middle of something."""
        for track in self._tracks.values():
            if track.told:
                ear.put([track.said.begin(), *([track.caption] if track.caption else [])])
        self.ears.add(ear)

    def leave(self, ear: Ear) -> None:
        """A listener goes."""
        self.ears.discard(ear)
        if not self.ears:
            self._lose_patience()

    def begin(self, name: str, request_id: str, after: str | None, rate: int, place: int) -> None:
        """A stream begins, or this feed does while it is spoken.

        Args:
            name, request_id, after: see ``ListenStream``.
            rate: of its samples, Hz.
            place: samples of it that were spoken before.
        """
        wanted = self.options.sample_rate
        said = ListenStream(name, request_id, after, place * wanted // rate)
        track = self._tracks[name] = _Track(said, StreamResampler(rate, wanted))
        self._say(track, [said.begin()])

    def segment(self, name: str, text: str, place: int, rate: int) -> None:
        """From a sample at the stream's own rate on, a text is spoken."""
        track = self._tracks.get(name)
        if track is not None:
            first = place * self.options.sample_rate // rate
            track.caption = track.said.segment(text, first)
            self._say(track, [track.caption])

    def audio(self, name: str, pcm: Samples) -> None:
        """Samples at the stream's own rate."""
        track = self._tracks.get(name)
        if track is not None and not track.full:
            self._sound(track, track.resampler.push(pcm))

    def end(self, name: str) -> None:
        """All of it was spoken."""
        track = self._tracks.get(name)
        if track is None or track.over:
            return
        if not track.full:
            self._sound(track, track.resampler.flush())
        track.over = True
        self._say(track, [track.said.end(False)])
        self._next()

    def cancel(self, name: str) -> None:
        """What has not sounded of a stream is not to be heard, also of one that has ended."""
        track = self._tracks.pop(name, None)
        if track is not None and track.told:
            self._send([track.said.end(True)])
        elif track is None and name in self._ended:
            self._ended.remove(name)
            self._send([ListenStream(name, "", None).end(True)])
        self._next()

    def stop(self, fade_ms: float) -> None:
        """Everybody is quiet."""
        ends = [track.said.end(True) for track in self._tracks.values() if track.told]
        self._tracks.clear()
        self._ended.clear()
        self._lose_patience()
        self._send([stop_message(fade_ms), *ends])

    # Inside.

    def _has_turn(self, track: _Track) -> bool:
        return self.options.mode == "mix" or track is next(iter(self._tracks.values()), None)

    def _sound(self, track: _Track, samples: Samples) -> None:
        if not self._has_turn(track):
            waiting = sum(other.held_samples for other in self._tracks.values())
            if waiting + len(samples) > self._most:
                track.full = True
                fields = {"stream": track.said.name, "waiting_samples": waiting}
                log.warning("listeners' queue is full", extra={"fields": fields})
                return
            track.held_samples += len(samples)
        if len(samples):
            self._say(track, track.said.audio(float_to_s16le(samples)))

    def _say(self, track: _Track, messages: list[bytes]) -> None:
        if self._has_turn(track):
            track.told = True
            self._send(messages)
            self._lose_patience()
            if track.over:
                self._forget(track)
        else:
            track.held.extend(messages)
        self._be_patient()

    def _next(self) -> None:
        """Whose turn it is says what was held; who has said all leaves."""
        while self._tracks and self.options.mode == "queue":
            track = next(iter(self._tracks.values()))
            if track.held:
                track.told = True
                self._send(list(track.held))
                track.held.clear()
                track.held_samples = 0
            if not track.over:
                break
            self._forget(track)
        self._be_patient()

    def _forget(self, track: _Track) -> None:
        if self._tracks.pop(track.said.name, None) is not None:
            self._ended.append(track.said.name)

    def _be_patient(self) -> None:
        """Waits so long for the one whose turn it is; then another has it."""
        if self._patience is None and any(track.held for track in self._tracks.values()):
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(PATIENCE_SECONDS, self._pass_on)

    def _lose_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _pass_on(self) -> None:
        self._patience = None
        name = next(iter(self._tracks), None)
        if name is not None and any(track.held for track in self._tracks.values()):
            self._tracks[name] = self._tracks.pop(name)
            self._next()

    def _send(self, messages: list[bytes]) -> None:
        for ear in list(self.ears):
            ear.put(messages)
