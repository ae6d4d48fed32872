"""Turn: the text of one audio context, sent to the server while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from rt_drama3_client import EarlyStart
from rt_drama3_client.sources import Part
from rt_drama3_client.written import find_segment

AHEAD = 1_000  # parts of text that may wait; then the pipeline blocks


class Turn:
    """The text of one audio context: the answer of a language model, or one sentence.

    Args:
        context_id: id of the audio context.
        early_words: see ``EarlyStart``.

    Attributes:
        context_id: of the audio context.
        ended: set when its text has ended.
        task: speaks it.
    """

    def __init__(self, context_id: str, early_words: int | None) -> None:
        self.context_id = context_id
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._early = EarlyStart(early_words)
        self._waiting: asyncio.Queue[Part | None] = asyncio.Queue(AHEAD)
        self._over = False
        self._written = ""  # written, but not heard yet

    async def write(self, text: str) -> None:
        """Adds text; blocks while too much of it is unsent. Does nothing after the end."""
        self._written += text
        for piece in self._early.split(text):
            if not self._over and not self.ended.is_set():
                await self._waiting.put(piece)

    def hear(self, text: str) -> str:
        """Returns a segment of the server as it was written, including line breaks."""
        found = find_segment(text, self._written)
        if found is None:  # not in the text
            return text
        self._written = self._written[found.end() :]
        return found[0]

    async def finish(self) -> None:
        """Ends the text; a second call does nothing."""
        if not self.ended.is_set():
            self.ended.set()
            if not self._over:
                await self._waiting.put(None)

    def drop(self) -> None:
        """Marks it as failed: later text is dropped, and writers are released."""
        self._over = True
        while not self._waiting.empty():
            self._waiting.get_nowait()

    async def parts(self) -> AsyncGenerator[Part, None]:
        """Yields the text for the client."""
        while (piece := await self._waiting.get()) is not None:
            yield piece
