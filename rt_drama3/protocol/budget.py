"""Budget: how many messages a client may send, and how many of them may be wrong."""

from __future__ import annotations

from collections.abc import Callable

from rt_drama3.protocol.limits import ProtocolLimits


class Budget:
    """What one connection has left.

    Args:
        limits: rates and counts.
        clock: seconds.
    """

    def __init__(self, limits: ProtocolLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._tokens = float(limits.message_burst)
        self._filled = clock()
        self._errors = 0

    def take_message(self) -> bool:
        """Counts one message; false when there were too many."""
        now = self._clock()
        more = (now - self._filled) * self._limits.messages_per_second
        self._tokens = min(float(self._limits.message_burst), self._tokens + more)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def take_error(self) -> bool:
        """Counts one refused message; false when there were too many."""
        self._errors += 1
        return self._errors <= self._limits.errors

    def forgive(self) -> None:
        """An accepted start: earlier errors no longer count."""
        self._errors = 0
