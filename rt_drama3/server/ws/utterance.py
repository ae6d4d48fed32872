"""LiveUtterance: one utterance of a WebSocket, and the receiver of the stream that speaks it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rt_drama3.engine.events import Segment, Stamps
from rt_drama3.engine.speech import Speech
from rt_drama3.protocol import Finish, Flush, Padding, Session, Text, Utterance
from rt_drama3.server.metrics import Metrics
from rt_drama3.server.openings import Opened
from rt_drama3.server.ws.outbox import Outbox

MAX_NOTICES = 20  # of an utterance; a text may have any number of unknown tags


class LiveUtterance:
    """An utterance while it is opened and spoken; a ``Receiver``.

    Args:
        utterance: of the session.
        session, outbox: those of the connection.
        metrics: of the server.
        route: for metrics.
        on_idle: called when the stream begins to wait for text.
        before: the one before it on its connection, if that has not ended.

    Attributes:
        opened: None while its stream is being opened and its clips are fetched.
        opening, task: open its stream, and speak it.
        held: events that wait for the stream to open.
        stopped: why it was cut short; empty while it was not.
        answer: whether the client waits for a ``cancelled``.
        queued_up: whether its stream waits in the engine's queue.
        idle_since: when its stream began to wait for text; None while it has some.
        sent_at: when audio was last sent.
    """

    opening: asyncio.Task[Opened]
    task: asyncio.Task[None]

    def __init__(
        self,
        utterance: Utterance,
        session: Session[Any],
        outbox: Outbox,
        metrics: Metrics,
        route: str,
        on_idle: Callable[[], None],
        before: LiveUtterance | None,
    ) -> None:
        self.utterance = utterance
        self._session, self._outbox = session, outbox
        self._metrics, self._route, self._on_idle = metrics, route, on_idle
        self.before = before
        self.opened: Opened | None = None
        self.held: deque[Text | Flush | Finish] = deque()
        self.stopped = ""
        self.answer = False
        self.queued_up = False
        self.idle_since: float | None = None
        self.sent_at = 0.0
        self._noticed: set[str] = set()

    @property
    def speech(self) -> Speech | None:
        """Its stream, once there is one."""
        return None if self.opened is None else self.opened.speech

    async def others(self, *, spoken: bool = False) -> None:
        """Waits until those before it have ended; ``spoken``: those that were not cut short.

        Each waits for the one before it alone: a client may start hundreds in one burst.
        """
        one = self.before
        while one is not None:
            if not (spoken and one.stopped):
                await asyncio.wait({one.task})
            one = one.before

    def stop(self, reason: str, answer: bool) -> None:
        """Cuts it short."""
        self.stopped, self.answer = reason, answer
        if self.speech is not None:
            self.speech.cancel()
        elif self.opened is None:
            self.abandon()

    def abandon(self) -> None:
        """Cancels its stream, even one that has only just opened or still is being opened."""

        def cancel(opening: asyncio.Task[Opened]) -> None:
            if not opening.cancelled() and opening.exception() is None:
                opening.result().cancel()

        self.opening.cancel()
        self.opening.add_done_callback(cancel)

    def got_text(self, text: str) -> None:
        """More of its text arrived."""
        if text.strip():
            self.idle_since = None

    # Receiver.

    def queued(self, position: int) -> None:
        self.queued_up = True
        self.utterance.queued(position)
        self._flush()

    def segment(self, segment: Segment) -> None:
        self.queued_up, self.idle_since = False, None
        self._notice(segment.unspoken)
        self._notice(segment.text)
        self.utterance.segment(segment.index, segment.text, segment.first_frame)
        self.utterance.waiting(segment.waiting)
        self._flush()

    def unspoken(self, text: str) -> None:
        self._notice(text)
        self._flush()

    async def audio(self, data: bytes, samples: int, stamps: Stamps | None) -> None:
        await self._outbox.below(0)
        first = self.utterance.first_audio is None
        self.utterance.audio(data, samples, stamps)
        if self._flush():
            self._metrics.sent.labels(self._route).inc(len(data))
        self.sent_at = time.monotonic()
        if first and stamps is not None and self.utterance.first_audio is not None:
            self._metrics.first_audio.observe(self.utterance.first_audio)

    def idle(self) -> None:
        self.idle_since = time.monotonic()
        self._on_idle()

    def padding(self, ended: bool) -> Padding:
        return self.utterance.padding(ended)

    def _notice(self, text: str) -> None:
        """Reports once what of streamed text is not spoken; ``ready`` reported the first text's."""
        assert self.opened is not None
        notices_of = self.opened.notices_of
        if text and notices_of is not None and len(self._noticed) < MAX_NOTICES:
            new = set(notices_of(text)).difference(self.opened.order.notices, self._noticed)
            self._noticed |= new
            for notice in sorted(new):
                self.utterance.notice(notice)

    def _flush(self) -> bool:
        messages = self._session.data_to_send()
        self._outbox.put(messages)
        return bool(messages)
