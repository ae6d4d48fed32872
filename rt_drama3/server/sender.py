"""SpeechSender: sends one stream to a client, paced; WebSocket and HTTP share it.

It consumes the stream's events. Audio is resampled and encoded on the event loop (about 0.2 ms a
chunk) and sent within the same turn of the loop while the client's line is free.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from rt_drama3.engine.events import Audio, Done, Event, Idle, Queued, Segment, SpeechSummary, Stamps
from rt_drama3.protocol import Outcome, Padding
from rt_drama3.server.monitor.broadcaster import BroadcastStream
from rt_drama3.server.openings import Opened
from rt_drama3.server.pace import Pace, Playback, unsent_bytes
from rt_drama3.server.service import Service

MAX_SILENCES = 100  # of 10 ms, until an encoder gives the first bytes of them


class Receiver(Protocol):
    """The client of a sender."""

    def queued(self, position: int) -> None:
        """The stream waits in the queue behind ``position`` others."""

    def segment(self, segment: Segment) -> None:
        """A segment of the text begins."""

    def unspoken(self, text: str) -> None:
        """Of this text, the last that came, nothing is spoken."""

    async def audio(self, data: bytes, samples: int, stamps: Stamps | None) -> None:
        """Sends audio once the line is free.

        Args:
            data: encoded bytes, perhaps none.
            samples: at the output rate.
            stamps: of the chunk; None for padding.
        """

    def idle(self) -> None:
        """The stream waits for text, and no sentence has begun."""

    def padding(self, ended: bool) -> Padding:
        """What to send now that the stream is idle, or has ended."""


class Source(Protocol):
    """What speaks: the engine's ``Speech``, or a finished take."""

    def events(self) -> AsyncIterable[Event]:
        """What happens to the stream."""


class SpeechSender:
    """Sends the audio of one stream.

    Args:
        receiver: the client.
        opened: the stream.
        service: of the server.
        broadcast: the stream for others that listen, if they can.
        pace: of the client; it may still have audio of earlier streams.

    Attributes:
        waited: what the stream had to wait for, empty if it had not.
    """

    def __init__(
        self,
        receiver: Receiver,
        opened: Opened,
        service: Service,
        broadcast: BroadcastStream | None,
        pace: Pace,
    ) -> None:
        self._receiver, self._opened, self._converter = receiver, opened, opened.converter
        self._service, self._broadcast = service, broadcast
        self._pace, self._playback = pace, Playback()
        self._new_text = False
        self._begun = False
        self.waited = ""

    async def run(self) -> Outcome | None:
        """Sends everything up to the last chunk.

        Returns:
            The result; None if the server stops: the stream was faded out, or had not begun.

        Raises:
            TimeoutError: the client does not read its audio.
            RtDrama3Error: the engine ended the stream.
        """
        source = self._opened.take or self._opened.speech
        rate, most = self._converter.bytes_per_second, self._service.config.send_buffer
        self._pace.line.limit_unsent(unsent_bytes(rate, most))
        if source is None:  # nothing to speak; the client gets a seed all the same
            seed = self._opened.order.sampling.seed
            return Outcome(seed=secrets.randbits(32) if seed is None else seed)
        try:
            summary = await self._consume(source)
        finally:
            if self.waited:
                self._service.metrics.waits.labels(self.waited).inc()
        return None if summary is None else self._outcome(summary)

    async def finish(self) -> None:
        """Sends what the resampler and the encoder hold back; nothing can follow.

        Raises:
            TimeoutError: the client does not read its audio.
        """
        data, samples = b"", 0
        if self._receiver.padding(ended=True) is Padding.SILENCE:
            data, samples = self._converter.silence()
        rest, more = self._converter.end()
        await self._send(data + rest, samples + more)

    async def _consume(self, source: Source) -> SpeechSummary | None:
        async for event in source.events():
            match event:
                case Audio():
                    fade = self._service.drain.fading
                    if self._begun or not fade:
                        await self._audio(event, fade)
                    if fade:
                        break
                case Segment():
                    self._new_text = True
                    self._receiver.segment(event)
                    if self._broadcast is not None:
                        self._broadcast.segment(event.text, event.first_frame)
                case Queued():
                    self.waited = event.reason
                    self._receiver.queued(event.position)
                case Idle():
                    await self._idle(event)
                case Done():
                    self._receiver.unspoken(event.summary.unspoken)
                    return event.summary
        return None

    async def _audio(self, chunk: Audio, fade: bool) -> None:
        self._begun = True
        data, samples = self._converter.push(chunk.pcm, fade=fade)
        await self._send(data, samples, chunk)
        self._service.metrics.added.observe(time.monotonic() - chunk.stamps.decoded)
        if self._broadcast is not None:
            self._broadcast.audio(chunk)
        if self._playback.play(chunk.seconds, self._new_text):
            self._service.metrics.underruns.inc()
        self._new_text = False

    async def _idle(self, event: Idle) -> None:
        padding = self._receiver.padding(ended=False)
        for _ in range(MAX_SILENCES):
            if padding is not Padding.SILENCE:
                break
            await self._send(*self._converter.silence())
            padding = self._receiver.padding(ended=False)
        if padding is not Padding.NONE:
            data, samples = self._converter.flush_tail()
            if samples:
                await self._send(data, samples)
        if not event.begun:
            self._receiver.idle()

    def _outcome(self, summary: SpeechSummary) -> Outcome:
        """The result of a stream; counts it as well."""
        metrics, frames = self._service.metrics, summary.codes.shape[1]
        metrics.frames.inc(frames)
        if frames:
            metrics.frame.observe(summary.durations.frames / frames, frames)
        seconds = frames * self._service.facts.frame_seconds
        return Outcome(
            frames=frames,
            seed=summary.seed,
            complete=summary.complete,
            segments=len(summary.segments),
            timings=summary.durations.figures(frames, seconds),
            codes=summary.codes,
            text=summary.text,
        )

    async def _send(self, data: bytes, samples: int, chunk: Audio | None = None) -> None:
        self._pace.begin()
        async with patient(self._pace):
            await self._receiver.audio(data, samples, chunk.stamps if chunk else None)
        self._pace.sent(chunk.seconds if chunk else 0.0)


@asynccontextmanager
async def patient(pace: Pace) -> AsyncIterator[None]:
    """Waits for a client until it is too slow.

    Raises:
        TimeoutError: it is.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None
    async with asyncio.timeout(None) as limit:

        def look() -> None:
            nonlocal timer
            left = pace.patience()
            if left > 0:
                timer = loop.call_later(left, look)
            else:
                limit.reschedule(loop.time())

        look()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
