"""Drain: a shutdown that lets running speech finish, and the operator's stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from rt_drama3.server.monitor.broadcaster import Broadcaster

log = logging.getLogger("rt_drama3.server")

AFTER_FADE = 0.5  # seconds for the last chunks to be faded out and sent


class Conversation(Protocol):
    """A client that is being served."""

    def cut(self) -> int:
        """Ends what is being spoken, for the operator; returns the number of utterances."""

    def drain(self) -> None:
        """Ends the conversation as soon as nothing is being spoken."""

    def stop(self) -> None:
        """Ends the conversation now and notifies the client."""


class Drain:
    """The conversations of a server, and how they end.

    Args:
        seconds: for running speech to finish.
        broadcaster: of the server, if others can listen.

    Attributes:
        draining: new speech is refused.
        fading: running speech is faded out with its next chunk.
        conversations: those that are being served.
    """

    def __init__(self, seconds: float, broadcaster: Broadcaster | None) -> None:
        self._seconds, self._broadcaster = seconds, broadcaster
        self.draining = False
        self.fading = False
        self.conversations: set[Conversation] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    @contextmanager
    def conversation(self, conversation: Conversation) -> Iterator[None]:
        """Includes a conversation while it lasts."""
        self.conversations.add(conversation)
        self._quiet.clear()
        if self.draining:  # it was admitted right before
            conversation.drain()
        try:
            yield
        finally:
            self.conversations.discard(conversation)
            if not self.conversations:
                self._quiet.set()

    def cut(self) -> int:
        """Ends all that is being spoken, with the error ``stopped``; returns their number."""
        return sum(conversation.cut() for conversation in list(self.conversations))

    async def drain(self) -> None:
        """Refuses new speech, lets the running finish, and fades what is left at the deadline."""
        self.draining = True
        log.info("draining", extra={"fields": {"conversations": len(self.conversations)}})
        deadline = time.monotonic() + self._seconds
        for conversation in list(self.conversations):
            conversation.drain()
        await self._until_quiet(self._seconds)
        if self._broadcaster is not None and not self.conversations:
            await self._broadcaster.play_out(deadline - time.monotonic())
        self.fading = True
        await self._until_quiet(AFTER_FADE)
        await self.end()

    async def end(self) -> None:
        """Ends every conversation now and notifies the clients."""
        if self._broadcaster is not None:
            await self._broadcaster.end()
        for conversation in list(self.conversations):
            conversation.stop()
        await self._until_quiet(AFTER_FADE)

    async def _until_quiet(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
