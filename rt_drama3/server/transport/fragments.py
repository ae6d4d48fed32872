"""Fragmenter: splits large WebSocket frames into small ones before the parser sees them.

The parser copies and unmasks a frame in one go; one of megabytes blocks the event loop for tens of
milliseconds. Split as it arrives, it costs a little each time, and the message is only joined in a
thread.
"""

from __future__ import annotations

from collections.abc import Iterator

PART = 1 << 16  # bytes of a fragment
_FIN, _RESERVED, _OPCODE, _MASKED = 0x80, 0x70, 0x0F, 0x80
_CONTINUATION, _BINARY = 0, 2


class Fragmenter:
    """Splits the large data frames of one client; everything else passes unchanged.

    Args:
        limit: bytes of a payload; a larger frame passes, and the parser refuses its header.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = bytearray()  # of a frame, until it is complete
        self._pass = 0  # bytes of a payload to pass unchanged
        self._cut = 0  # bytes of a payload yet to arrive and to be split
        self._part = bytearray()  # of that payload, until a fragment is full
        self._first = 0  # byte of the next fragment's header
        self._fin = False
        self._mask = b""

    @property
    def cutting(self) -> bool:
        """Whether the rest of a large frame has yet to arrive."""
        return self._cut > 0

    @property
    def inside(self) -> int:
        """Bytes of the current payload that have yet to arrive."""
        return self._pass + self._cut

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Takes received bytes; yields what the parser should see, in order."""
        view = memoryview(data)
        while view:
            if self._pass:
                yield bytes(view[: self._pass])
                rest = view[self._pass :]
                self._pass -= len(view) - len(rest)
            elif self._cut:
                room = min(self._cut, PART - len(self._part))
                self._part += view[:room]
                rest = view[room:]
                self._cut -= len(view) - len(rest)
                if len(self._part) == PART or not self._cut:
                    yield self._fragment()
            else:
                wanted = self._wanted() - len(self._head)
                self._head += view[:wanted]
                rest = view[wanted:]
                if len(self._head) == self._wanted():
                    yield from self._begin()
            view = rest

    def _wanted(self) -> int:
        """Length of the current header."""
        if len(self._head) < 2:
            return 2
        long = {126: 2, 127: 8}.get(self._head[1] & 0x7F, 0)
        return 2 + long + (4 if self._head[1] & _MASKED else 0)

    def _begin(self) -> Iterator[bytes]:
        """The header is complete."""
        head, self._head = bytes(self._head), bytearray()
        masked = bool(head[1] & _MASKED)
        size = head[1] & 0x7F
        if size >= 126:
            size = int.from_bytes(head[2 : len(head) - (4 if masked else 0)], "big")
        data_frame = head[0] & _OPCODE <= _BINARY and not head[0] & _RESERVED and masked
        if data_frame and PART < size <= self._limit:
            self._cut, self._mask = size, head[-4:]
            self._first, self._fin = head[0] & _OPCODE, bool(head[0] & _FIN)
        else:
            self._pass = size
            yield head

    def _fragment(self) -> bytes:
        """The gathered part as a frame; the mask continues where the previous part ended."""
        part, self._part = bytes(self._part), bytearray()
        last = _FIN if self._fin and not self._cut else 0
        head = bytes((self._first | last, _MASKED | 127)) + len(part).to_bytes(8, "big")
        mask, self._first = self._mask, _CONTINUATION
        turn = len(part) % 4
        self._mask = mask[turn:] + mask[:turn]
        return head + mask + part
