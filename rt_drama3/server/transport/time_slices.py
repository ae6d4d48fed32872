"""TimeSliced: parses the bytes of one connection in short slices of the event loop's time."""

from __future__ import annotations

import asyncio
import time

CHUNK = 2_048  # bytes parsed between readings of the clock; a frame may have 6
SLICE_SECONDS = 0.001  # of parsing for one connection before the others get their turn


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
        end = time.perf_counter() + SLICE_SECONDS
        while position < len(data) and not self.finished():
            self.feed(data[position : position + CHUNK])
            position += CHUNK
            if time.perf_counter() > end:
                break
        self._unparsed = b"" if self.finished() else data[position:]
        if self._unparsed:
            self.transport.pause_reading()
            self._next = self.loop.call_soon(self._parse)
        elif resumed and self.wants_more():
            self.transport.resume_reading()
