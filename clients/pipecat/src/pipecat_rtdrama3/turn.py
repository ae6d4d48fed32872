"""Turn: the text of one audio context, on its way to the server while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from rt_drama3_client import EarlyStart
from rt_drama3_client.sources import Piece
from rt_drama3_client.written import find_segment

AHEAD = 1_000  # pieces of text that may wait; then the pipeline does


class Turn:
    """What Pipecat speaks in one audio context: the answer of a language model, or one sentence.

    Args:
        context_id: of the audio context.
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
        self._waiting: asyncio.Queue[Piece | None] = asyncio.Queue(AHEAD)
        self._over = False
        self._written = ""  # and not heard yet

    async def write(self, text: str) -> None:
        """Adds text; waits while much of it is not sent yet. Nothing happens once it is over."""
        self._written += text
        for piece in self._early.split(text):
            if not self._over and not self.ended.is_set():
                await self._waiting.put(piece)

    def hear(self, text: str) -> str:
        """A segment of the server's as it was written, line breaks included."""
        found = find_segment(text, self._written)
        if found is None:  # the server speaks something else
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
        """It failed: what is written from now on goes nowhere, and nobody waits for room."""
        self._over = True
        while not self._waiting.empty():
            self._waiting.get_nowait()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The text, for the client."""
        while (piece := await self._waiting.get()) is not None:
            yield piece
