"""Telling: what a client of a live connection is sent while one of its utterances is spoken."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rt_drama3.engine.speech import Audio, Speech
from rt_drama3.protocol import Finish, Flush, State, Text, Utterance
from rt_drama3.server.monitor.hub import Heard, Lane
from rt_drama3.server.outgoing import Pace, Playback
from rt_drama3.server.service import Opened, Service
from rt_drama3.server.ws.outbox import Outbox
from rt_drama3.server.ws.resting import send_held

QUEUE_SECONDS = 0.1  # between looks at the place in the queue


@dataclass(eq=False)
class Talk:
    """An utterance of a connection, and what speaks it."""

    opened: Opened | None = None  # none while its stream is being opened, clips fetched for it
    task: asyncio.Task[None] | None = None
    opening: asyncio.Task[Opened] | None = None
    held: deque[Text | Flush | Finish] = field(default_factory=deque)  # until it is open
    taken: int = 0  # characters of text that the engine was given, or will be
    spoken: int = 0  # and of those that were begun
    told: int = 0  # segments that the client knows of
    stopped: str = ""  # why it was cut short
    sending: bool = False  # a chunk of it is on its way
    heard: Heard | None = None  # it, as others hear it

    @property
    def speech(self) -> Speech | None:
        return None if self.opened is None else self.opened.speech


class Teller:
    """Takes chunks from the engine and puts their messages into a connection's outbox.

    Args:
        service: of the server.
        outbox: of the connection.
        lane: where others hear what it speaks, if they do.
        route: for metrics.
        stop: ends the connection.

    Attributes:
        sent: when audio last went out.
    """

    def __init__(
        self,
        service: Service,
        outbox: Outbox,
        lane: Lane | None,
        route: str,
        stop: Callable[[], None],
    ) -> None:
        self._service, self._outbox, self._lane = service, outbox, lane
        self._route, self._stop = route, stop
        self.sent = 0.0

    async def tell(self, utterance: Utterance, talk: Talk, opened: Opened) -> None:
        """Sends all there is of an utterance, from its first chunk to its last word.

        Raises:
            TimeoutError: the client does not take its audio.
            RtDrama3Error: the engine ended the stream.
        """
        queue = asyncio.create_task(self._tell_queue(utterance, talk))
        beside = [queue]
        if opened.speech is not None and utterance.rests:

            def wanted() -> bool:
                return utterance.state is State.OPEN and not (talk.sending or talk.stopped)

            def send(data: bytes, samples: int) -> None:
                self._send_audio(utterance, data, samples, None)

            def owed() -> bool:
                return utterance.owes_silence

            held = send_held(opened.speech, opened.outgoing, wanted, owed, send)
            beside.append(asyncio.create_task(held))
        try:
            await self._tell_all(utterance, talk, opened, queue)
        finally:
            for task in beside:
                task.cancel()

    async def _tell_all(
        self, utterance: Utterance, talk: Talk, opened: Opened, queue: asyncio.Task[None]
    ) -> None:
        speech, outgoing = opened.speech, opened.outgoing
        pace, playback = Pace(self._service.config.slow_seconds), Playback()
        talk.heard = None if self._lane is None else self._lane.begin(utterance.id)
        fading = False
        if speech is not None:
            async for chunk in speech:
                talk.sending = True
                queue.cancel()
                await self._outbox.below(0, pace.begin())
                pace.end(chunk.seconds)
                new_text = self._tell_segments(utterance, talk, chunk)
                fading = self._service.fading
                data, samples = outgoing.push(chunk.pcm, fade=fading)
                self._send_audio(utterance, data, samples, chunk)
                if talk.heard is not None:
                    talk.heard.take(chunk, speech)
                if playback.play(chunk.seconds, new_text) and not talk.stopped:
                    self._service.metrics.underruns.inc()
                talk.sending = False
                if fading:
                    break
        if fading:
            self._stop()
            return
        summary = None if speech is None else await speech.summary()
        outcome = self._service.outcome(summary, opened.order)
        if talk.stopped:
            self._outbox.put(utterance.cancelled(outcome.frames))
            return
        if utterance.owes_silence:
            self._send_audio(utterance, *outgoing.breath(), None)
        data, samples = outgoing.end()
        await self._outbox.below(0, pace.begin())
        self._send_audio(utterance, data, samples, None)
        self._outbox.put(utterance.done(outcome))

    def _tell_segments(self, utterance: Utterance, talk: Talk, chunk: Audio) -> bool:
        """Tells of the pieces that begin with this chunk; returns whether any does."""
        assert talk.speech is not None
        begun = talk.speech.segments
        first = talk.told
        for index in range(first, min(chunk.segment + 1, len(begun))):
            text, frame = begun[index]
            self._outbox.put(utterance.segment(index, text, frame))
            talk.spoken += len(text)
            talk.told = index + 1
        if talk.told >= talk.speech.pieces:  # the counts differ by white space: begin anew
            talk.taken = talk.spoken = 0
        utterance.waiting(max(0, talk.taken - talk.spoken))
        return talk.told > first

    def _send_audio(
        self, utterance: Utterance, data: bytes, samples: int, chunk: Audio | None
    ) -> None:
        first = utterance.first_audio is None
        messages = utterance.audio(data, samples, chunk.stamps if chunk else None)
        self._outbox.put(messages)
        now = self.sent = time.monotonic()
        metrics = self._service.metrics
        metrics.sent.labels(self._route).inc(len(data) if messages else 0)
        if chunk is not None:
            metrics.added.observe(now - chunk.stamps.decoded)
        if first and chunk is not None and utterance.first_audio is not None:
            metrics.first_audio.observe(utterance.first_audio)

    async def _tell_queue(self, utterance: Utterance, talk: Talk) -> None:
        told = None
        while talk.speech is not None and not talk.speech.ended:
            position = talk.speech.queue_position
            if position is not None and position != told:
                told = position
                self._outbox.put(utterance.queued(position))
            await asyncio.sleep(QUEUE_SECONDS)
