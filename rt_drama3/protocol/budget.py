"""Budget: rate limits for a client's messages and errors."""

from __future__ import annotations

from collections.abc import Callable

from rt_drama3.protocol.limits import ProtocolLimits


class Budget:
    """The budget of one connection.

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
        """Counts one message; false if there were too many."""
        now = self._clock()
        more = (now - self._filled) * self._limits.messages_per_second
        self._tokens = min(float(self._limits.message_burst), self._tokens + more)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def take_error(self) -> bool:
        """Counts one refused message; false if there were too many."""
        self._errors += 1
        return self._errors <= self._limits.errors

    def forgive(self) -> None:
        """Forgets earlier errors, after an accepted start."""
        self._errors = 0
