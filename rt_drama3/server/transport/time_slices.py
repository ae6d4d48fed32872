"""TimeSliced: parses the bytes of one connection in short slices of the event loop's time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

CHUNK = 2_048  # bytes parsed between readings of the clock
SLICE_SECONDS = 0.001  # of work for one connection before the others get their turn


class TimeSlice:
    """Time that work for one connection may hold the event loop.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._ends = clock() + SLICE_SECONDS

    @property
    def over(self) -> bool:
        """Whether others should have their turn."""
        return self._clock() > self._ends

    async def rest(self) -> None:
        """Lets others have their turn if the slice is over, and begins the next one."""
        if self.over:
            await asyncio.sleep(0)
            self._ends = self._clock() + SLICE_SECONDS


class TimeSliced:
    """A protocol whose parser is fed chunk by chunk; a mix-in for ``asyncio.Protocol``.

    The event loop reads up to 32 times 256 KiB from one connection before it serves another, and a
    megabyte of tiny frames would hold up all other audio. So reading pauses while received bytes
    wait to be parsed.
    """

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _unparsed = b""
    _next: asyncio.Handle | None = None

    def feed(self, data: bytes) -> None:
        """Parses the next bytes."""
        raise NotImplementedError

    def chunk(self) -> int:
        """How many bytes to parse before the clock is read again."""
        return CHUNK

    def finished(self) -> bool:
        """Whether further bytes are ignored."""
        raise NotImplementedError

    def wants_more(self) -> bool:
        """Whether the protocol itself has not paused reading."""
        raise NotImplementedError

    def take(self, data: bytes) -> None:
        """Parses received bytes now, or after those that wait."""
        self._unparsed += data
        if self._next is None:
            self._parse()
        else:
            self.transport.pause_reading()

    def keep_paused(self) -> None:
        """Pauses reading again if it was resumed while bytes wait to be parsed."""
        if self._next is not None:
            self.transport.pause_reading()

    def discard(self) -> None:
        """Drops unparsed bytes: the connection has ended."""
        self._unparsed = b""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _parse(self) -> None:
        resumed, self._next = self._next is not None, None
        data, position = self._unparsed, 0
        slice_ = TimeSlice()
        while position < len(data) and not self.finished():
            size = self.chunk()
            self.feed(data[position : position + size])
            position += size
            if slice_.over:
                break
        self._unparsed = b"" if self.finished() else data[position:]
        if self._unparsed:
            self.transport.pause_reading()
            self._next = self.loop.call_soon(self._parse)
        elif resumed and self.wants_more():
            self.transport.resume_reading()
