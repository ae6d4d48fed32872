"""Pace and Playback: what a client that plays while it reads has left to play.

Such a client is never too slow, however large the buffers on the way to it are and in whatever
steps they empty: what it has taken it is playing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

RECOVERY = 0.05  # seconds by which a second of audio catches up: clocks differ, networks pause
UNSENT_SECONDS = 2.0  # of audio that may wait in the system, and again above it
LEAST_UNSENT = 4_096  # bytes


class Line(Protocol):
    """The way to a client."""

    @property
    def handed(self) -> int:
        """Bytes handed over so far to be sent."""

    def held(self) -> int:
        """Bytes of them that the client has not acknowledged, as far as the system reports them."""

    def limit_unsent(self, size: int) -> None:
        """Bounds the bytes that wait to be sent."""


class Pace:
    """How far behind realtime a client is that keeps the server waiting.

    It is behind by the time since it has played all that it had acknowledged, counting only time
    between ``begin`` and ``sent``: otherwise it waits for the server. Reading faster than it plays,
    it catches up.

    Args:
        allowed: seconds.
        line: to the client.
        clock: seconds.

    Attributes:
        line: as given.
    """

    def __init__(self, allowed: float, line: Line, clock: Callable[[], float]) -> None:
        self._allowed, self.line, self._clock = allowed, line, clock
        self._held: deque[tuple[int, float]] = deque()  # where audio ends in the line, its seconds
        self._played_at = self._sent_at = clock()

    @property
    def heard_at(self) -> float:
        """When all audio handed over so far is played, by the clock."""
        return self._played_at + sum(seconds for _, seconds in self._held)

    def begin(self) -> None:
        """Starts waiting for the client."""
        self._look()
        behind = max(0.0, self._sent_at - self._played_at)
        self._played_at = max(self._played_at, self._clock() - behind)

    def patience(self) -> float:
        """Seconds after which the client is too slow, unless it acknowledges more until then."""
        self._look()
        return self._played_at + self._allowed - self._clock()

    def sent(self, seconds: float) -> None:
        """Ends waiting: that much audio was handed over."""
        self._look()
        self._sent_at = self._clock()
        self._held.append((self.line.handed, seconds))

    def _look(self) -> None:
        """Counts what the client has acknowledged since the last look as what it plays."""
        acknowledged = self.line.handed - self.line.held()
        while self._held and self._held[0][0] <= acknowledged:
            _, seconds = self._held.popleft()
            self._played_at += seconds
            behind = max(0.0, self._clock() - self._played_at)
            self._played_at += min(behind, RECOVERY * seconds)


def unsent_bytes(bytes_per_second: float, most: int) -> int:
    """The bound of a line for audio of that rate, which is one in seconds."""
    return max(LEAST_UNSENT, min(most, round(UNSENT_SECONDS * bytes_per_second)))


class Playback:
    """The playout buffer of a listener that plays immediately: finds underruns.

    Args:
        clock: seconds, as ``time.monotonic``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: float | None = None

    def play(self, audio_seconds: float, new_text: bool) -> bool:
        """Adds audio; returns whether the buffer ran dry before it and not for lack of text."""
        now = self._clock()
        dry = self._ends is not None and now > self._ends
        start = now if self._ends is None or dry else self._ends
        self._ends = start + audio_seconds
        return dry and not new_text
