"""Broadcaster: lets others hear what clients' streams speak, by a local sink and by listeners.

It exists only where the operator allows listening. It takes what a client was just sent and never
delays the client: everything here is bounded, and what cannot keep up drops out. All of it belongs
to one event loop.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from rt_drama3.engine.events import Audio
from rt_drama3.protocol import ListenOptions
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.monitor.feed import Feed, Subscriber
from rt_drama3.server.monitor.local_sink import FADE_MS, LocalSink, SinkChannel
from rt_drama3.sinks import Sink, make_sink
from rt_drama3.sinks.mixer import MixMode
from rt_drama3.text.directions import spoken_words

MAX_SOUNDING = 64  # utterances of one client that were sent completely and may still be playing


class Broadcaster:
    """Everything that listens to a server.

    Args:
        sink: a local one, if there is one.
        captions: whether listeners get the text.
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
        self.streams: dict[str, BroadcastStream] = {}  # by name; those that are audible
        self.mutes = 0  # calls of ``mute``
        self._names = map(str, itertools.count(1))

    def channel(self) -> Channel:
        """A client's channel; its utterances are heard one after the other."""
        return Channel(self)

    def new_name(self) -> str:
        """A name for a stream."""
        return next(self._names)

    def join(self, subscriber: Subscriber, options: ListenOptions) -> None:
        """Adds a listener."""
        feed = self.feeds.get(options)
        if feed is None:
            feed = self.feeds[options] = Feed(options, self.seconds / 2)
            for stream in self.streams.values():
                stream.introduce(feed)
        feed.join(subscriber)

    def leave(self, subscriber: Subscriber, options: ListenOptions) -> None:
        """Removes a listener."""
        feed = self.feeds.get(options)
        if feed is not None:
            feed.leave(subscriber)
            if not feed.subscribers:
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
        """Waits until the local sink has played everything, or for ``seconds``."""
        if self.sink is not None:
            await self.sink.play_out(seconds)

    async def end(self) -> None:
        """Mutes everything and disconnects the listeners: the server stops."""
        await self.mute()
        for feed in list(self.feeds.values()):
            for subscriber in list(feed.subscribers):
                subscriber.stop()

    async def mute(self) -> None:
        """Fades what is playing; the rest of running utterances goes to their clients only."""
        self.mutes += 1
        for stream in list(self.streams.values()):
            stream.mute()
        for feed in self.feeds.values():
            feed.stop(FADE_MS)
        if self.sink is not None:
            await self.sink.stop()


def make_broadcaster(
    config: ServerConfig, sink: Sink | None, on_cut: Callable[[], None]
) -> Broadcaster | None:
    """The broadcaster that the settings ask for; None where listening is disabled.

    Args:
        config: settings.
        sink: used in place of the one that they name.
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
    return Broadcaster(local, config.captions, config.listen_seconds)


class Channel:
    """One client's utterances; made by ``Broadcaster.channel``."""

    def __init__(self, broadcaster: Broadcaster) -> None:
        self._broadcaster = broadcaster
        self._sink = None if broadcaster.sink is None else SinkChannel(broadcaster.sink)
        self._sounding: deque[tuple[str, float]] = deque(maxlen=MAX_SOUNDING)
        self._mutes = broadcaster.mutes  # before what is in ``_sounding``
        self._running: BroadcastStream | None = None

    def begin(self, request_id: str) -> BroadcastStream:
        """Starts an utterance, which is inaudible until its first audio."""
        if self._running is not None:
            self._running.cancel()
        self._running = BroadcastStream(self._broadcaster, self, self._sink, request_id)
        return self._running

    def cancel(self) -> None:
        """Drops everything of this client's utterances that was not played yet."""
        running, self._running = self._running, None
        if running is not None:
            running.mute()
        names = [name for name, _ in self._sounding]
        self._sounding.clear()
        for feed in self._broadcaster.feeds.values():
            for name in names:
                feed.cancel(name)
        if self._sink is not None:
            self._sink.cancel()

    def last(self) -> str | None:
        """The utterance that the next one continues, while it may be playing."""
        self._forget_muted()
        if self._sounding and self._sounding[-1][1] > self._broadcaster.clock():
            return self._sounding[-1][0]
        return None

    def sounds(self, name: str, seconds: float) -> None:
        """Adds to what will play of an utterance, after what plays already."""
        self._forget_muted()
        now = self._broadcaster.clock()
        until = self._sounding[-1][1] if self._sounding else now
        if self._sounding and self._sounding[-1][0] == name:
            self._sounding.pop()
        self._sounding.append((name, max(now, until) + seconds))

    def _forget_muted(self) -> None:
        if self._mutes != self._broadcaster.mutes:
            self._mutes = self._broadcaster.mutes
            self._sounding.clear()

    def ended(self, stream: BroadcastStream) -> None:
        """An utterance has ended."""
        if self._running is stream:
            self._running = None


class BroadcastStream:
    """One utterance as others hear it; made by ``Channel.begin``. Late calls are ignored.

    Args:
        broadcaster: of the server.
        channel: of the client.
        sink: the client's channel into the local sink.
        request_id: the id that the client and the logs have.
    """

    def __init__(
        self, broadcaster: Broadcaster, channel: Channel, sink: SinkChannel | None, request_id: str
    ) -> None:
        self._broadcaster, self._channel, self._sink = broadcaster, channel, sink
        self._request_id = request_id
        self._name = ""  # until it is audible
        self._after: str | None = None
        self._rate = 0
        self._samples = 0  # so far
        self._segments: list[tuple[str, int]] = []  # with first frames; begin with the next audio
        self._caption: tuple[str, int] | None = None  # with its first sample
        self._over = False

    def segment(self, text: str, first_frame: int) -> None:
        """A segment begins with the next audio."""
        if self._broadcaster.captions and not self._over:
            self._segments.append((text, first_frame))

    def audio(self, chunk: Audio) -> None:
        """The client was sent a chunk."""
        if self._over:
            return
        if not self._name:
            self._begin(chunk.sample_rate)
        self._send_segments(len(chunk.pcm) // max(chunk.frames, 1))
        pcm = chunk.pcm
        self._samples += len(pcm)
        self._channel.sounds(self._name, chunk.seconds)
        if self._sink is not None:
            self._sink.push(pcm)
        for feed in self._broadcaster.feeds.values():
            feed.audio(self._name, pcm)

    def end(self) -> None:
        """All of it was spoken; what was not played yet still will be."""
        if not self._over:
            self.mute()
            if self._name and self._sink is not None:
                self._sink.end()
            for feed in self._broadcaster.feeds.values() if self._name else ():
                feed.end(self._name)

    def cancel(self) -> None:
        """It was cut short: fades out, with everything else of this client."""
        if not self._over:
            self._channel.cancel()

    def mute(self) -> None:
        """Its rest, if any, goes to the client only."""
        self._over = True
        self._broadcaster.streams.pop(self._name, None)
        self._channel.ended(self)

    def introduce(self, feed: Feed) -> None:
        """Announces it to a new feed while it is being spoken."""
        if self._name:
            feed.begin(self._name, self._request_id, self._after, self._rate, self._samples)
            if self._caption is not None:
                feed.segment(self._name, *self._caption, self._rate)

    def _begin(self, rate: int) -> None:
        self._rate, self._after = rate, self._channel.last()
        self._name = self._broadcaster.new_name()
        self._broadcaster.streams[self._name] = self
        if self._sink is not None:
            self._sink.begin(rate)
        for feed in self._broadcaster.feeds.values():
            self.introduce(feed)

    def _send_segments(self, frame_samples: int) -> None:
        for text, first_frame in self._segments:
            self._caption = (spoken_words(text), first_frame * frame_samples)
            for feed in self._broadcaster.feeds.values():
                feed.segment(self._name, *self._caption, self._rate)
        self._segments.clear()
