"""Hub: what clients' streams speak, for others to hear: a local sink and listeners.

There is none unless the server is asked to let others listen. It takes what a client was just
given and never makes the client wait: everything here is bounded, and what cannot keep up drops
out. All of it belongs to one event loop.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

from rt_drama3.engine.speech import Audio
from rt_drama3.protocol import ListenOptions
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.monitor.feed import Ear, Feed
from rt_drama3.server.monitor.local_sink import FADE_MS, LocalSink, SinkLane
from rt_drama3.sinks import Sink, make_sink
from rt_drama3.sinks.mixer import MixMode
from rt_drama3.text.directions import spoken_words

MOST_SOUNDING = 64  # utterances of one client that were all sent and may still sound


class Segmented(Protocol):
    """A stream that tells its pieces of text: ``Speech`` and ``Chosen``."""

    @property
    def segments(self) -> tuple[tuple[str, int], ...]:
        """Texts, each with the frame it begins at."""


class Hub:
    """Everything that listens to a server.

    Args:
        sink: a local one, if there is one.
        captions: whether listeners are told what is spoken.
        seconds: of audio that may wait for listeners.
        clock: seconds, as ``time.monotonic``.
    """

    def __init__(
        self,
        sink: LocalSink | None,
        captions: bool,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sink = sink
        self.captions = captions
        self.seconds = seconds
        self.clock = clock
        self.feeds: dict[ListenOptions, Feed] = {}
        self.heard: dict[str, Heard] = {}  # utterances that are being spoken
        self.hushes = 0
        self._names = map(str, itertools.count(1))

    def lane(self) -> Lane:
        """A client's place; what it says there is heard one after the other."""
        return Lane(self)

    def new_name(self) -> str:
        """A name for a stream."""
        return next(self._names)

    def join(self, ear: Ear, options: ListenOptions) -> None:
        """A listener comes."""
        feed = self.feeds.get(options)
        if feed is None:
            feed = self.feeds[options] = Feed(options, self.seconds / 2)
            for heard in self.heard.values():
                heard.introduce(feed)
        feed.join(ear)

    def leave(self, ear: Ear, options: ListenOptions) -> None:
        """A listener goes."""
        feed = self.feeds.get(options)
        if feed is not None:
            feed.leave(ear)
            if not feed.ears:
                del self.feeds[options]

    @contextmanager
    def sink_open(self) -> Iterator[None]:
        """Holds the local sink open, if there is one; not on an event loop.

        Raises:
            SinkError: it cannot be opened.
        """
        if self.sink is not None:
            self.sink.open()
        try:
            yield
        finally:
            if self.sink is not None:
                self.sink.close()

    async def play_out(self, seconds: float) -> None:
        """Waits until the local sink has played everything, or so long."""
        if self.sink is not None:
            await self.sink.play_out(seconds)

    async def end(self) -> None:
        """The server stops: everything is quiet, and listeners are told."""
        await self.hush()
        for feed in list(self.feeds.values()):
            for ear in list(feed.ears):
                ear.stop()

    async def hush(self) -> None:
        """Be quiet now: what sounds is faded, and what is being spoken is not heard any more."""
        self.hushes += 1
        for heard in list(self.heard.values()):
            heard.stop_being_heard()
        for feed in self.feeds.values():
            feed.stop(FADE_MS)
        if self.sink is not None:
            await self.sink.stop()


def make_hub(config: ServerConfig, sink: Sink | None, on_cut: Callable[[], None]) -> Hub | None:
    """The hub that the settings ask for; None where nobody listens.

    Args:
        config: settings.
        sink: instead of the one that they name.
        on_cut: see ``LocalSink``.

    Raises:
        SinkError: this system has no sink of that kind.
    """
    if sink is None and config.sink:
        sink = make_sink(config.sink)
    if sink is None and not config.listen:
        return None
    local = None
    if sink is not None:
        mode = cast(MixMode, config.sink_mode)
        local = LocalSink(sink, mode, config.sink_seconds, on_cut)
    return Hub(local, config.captions, config.listen_seconds)


class Lane:
    """One client's utterances; made by ``Hub.lane``."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._sink = None if hub.sink is None else SinkLane(hub.sink)
        self._sounding: deque[tuple[str, float]] = deque(maxlen=MOST_SOUNDING)
        self._hushes = hub.hushes  # that what sounds came after
        self._running: Heard | None = None

    def begin(self, request_id: str) -> Heard:
        """An utterance; nothing is heard of it before its first audio."""
        if self._running is not None:
            self._running.cancel()
        self._running = Heard(self._hub, self, self._sink, request_id)
        return self._running

    def cancel(self) -> None:
        """What has not sounded yet of this client's utterances, all of them, is not to be heard."""
        running, self._running = self._running, None
        if running is not None:
            running.stop_being_heard()
        names = [name for name, _ in self._sounding]
        self._sounding.clear()
        for feed in self._hub.feeds.values():
            for name in names:
                feed.cancel(name)
        if self._sink is not None:
            self._sink.cancel()

    def last(self) -> str | None:
        """The utterance that the next one goes on from, while it may sound."""
        self._forget_hushed()
        if self._sounding and self._sounding[-1][1] > self._hub.clock():
            return self._sounding[-1][0]
        return None

    def sounds(self, name: str, seconds: float) -> None:
        """So much more of an utterance will sound, after what sounds already."""
        self._forget_hushed()
        now = self._hub.clock()
        until = self._sounding[-1][1] if self._sounding else now
        if self._sounding and self._sounding[-1][0] == name:
            self._sounding.pop()
        self._sounding.append((name, max(now, until) + seconds))

    def _forget_hushed(self) -> None:
        if self._hushes != self._hub.hushes:
            self._hushes = self._hub.hushes
            self._sounding.clear()

    def ended(self, heard: Heard) -> None:
        """An utterance is over."""
        if self._running is heard:
            self._running = None


class Heard:
    """One utterance as others hear it; made by ``Lane.begin``. Calls that come too late do nothing.

    Args:
        hub: of the server.
        lane: of the client.
        sink: the client's lane into the local sink.
        request_id: as the client and the logs know it.
    """

    def __init__(self, hub: Hub, lane: Lane, sink: SinkLane | None, request_id: str) -> None:
        self._hub, self._lane, self._sink = hub, lane, sink
        self._request_id = request_id
        self._name = ""  # until something is heard
        self._after: str | None = None
        self._rate = 0
        self._place = 0  # samples so far
        self._told = 0  # segments
        self._caption: tuple[str, int] | None = None
        self._over = False

    def take(self, chunk: Audio, speech: Segmented) -> None:
        """The client was given a chunk."""
        if self._over:
            return
        if not self._name:
            self._begin(chunk.sample_rate)
        if self._hub.captions:
            self._tell_segments(chunk, speech)
        pcm = chunk.pcm
        self._place += len(pcm)
        self._lane.sounds(self._name, chunk.seconds)
        if self._sink is not None:
            self._sink.push(pcm)
        for feed in self._hub.feeds.values():
            feed.audio(self._name, pcm)

    def end(self) -> None:
        """All of it was spoken; what has not sounded yet still will."""
        if not self._over:
            self._finish()
            if self._name and self._sink is not None:
                self._sink.end()
            for feed in self._hub.feeds.values() if self._name else ():
                feed.end(self._name)

    def cancel(self) -> None:
        """It was cut short: with everything else of this client it is faded out."""
        if not self._over:
            self._lane.cancel()

    def stop_being_heard(self) -> None:
        """Its rest, if any comes, is for the client alone."""
        self._finish()

    def introduce(self, feed: Feed) -> None:
        """Tells a new feed of what is being spoken."""
        if self._name:
            feed.begin(self._name, self._request_id, self._after, self._rate, self._place)
            if self._caption is not None:
                feed.segment(self._name, *self._caption, self._rate)

    def _begin(self, rate: int) -> None:
        self._rate, self._after = rate, self._lane.last()
        self._name = self._hub.new_name()
        self._hub.heard[self._name] = self
        if self._sink is not None:
            self._sink.begin(rate)
        for feed in self._hub.feeds.values():
            self.introduce(feed)

    def _tell_segments(self, chunk: Audio, speech: Segmented) -> None:
        frame_samples = len(chunk.pcm) // max(chunk.frames, 1)
        for text, frame in speech.segments[self._told : chunk.segment + 1]:
            self._told += 1
            self._caption = (spoken_words(text), frame * frame_samples)
            for feed in self._hub.feeds.values():
                feed.segment(self._name, *self._caption, self._rate)

    def _finish(self) -> None:
        self._over = True
        self._hub.heard.pop(self._name, None)
        self._lane.ended(self)
