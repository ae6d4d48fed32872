"""How much sound to collect before playing starts: as little as the arrivals allow."""

from __future__ import annotations

from collections import deque


class Prebuffer:
    """Chooses the prebuffer from how late sound has arrived; knows no clock and no device.

    Sound that arrives exactly in time needs none. A piece that arrives 60 ms later than playing
    would need it, counted from the first piece, needs 60 ms collected before the start. The choice
    is the worst of the last ``memory`` pieces plus a margin, within bounds. Silence longer than
    ``most_ms`` is not jitter but a pause (someone thinks, or types): counting starts again there,
    as it does with every take.

    Args:
        least_ms, most_ms: bounds of the choice.
        first_ms: the choice before anything was measured.
        margin_ms: added to the worst lateness, for the device's own block.
        memory: pieces remembered, over all takes.
    """

    def __init__(
        self,
        least_ms: float = 20.0,
        most_ms: float = 400.0,
        first_ms: float = 40.0,
        margin_ms: float = 15.0,
        memory: int = 64,
    ) -> None:
        self.least_ms, self.most_ms, self.first_ms = least_ms, most_ms, first_ms
        self.margin_ms = margin_ms
        self._lateness: deque[float] = deque(maxlen=memory)  # milliseconds
        self._began: float | None = None  # when the first piece of this take came
        self._given = 0.0  # seconds of sound in the take before the next piece

    @property
    def target_ms(self) -> float:
        """What to collect before the next start, in milliseconds."""
        if not self._lateness:
            return self.first_ms
        return min(self.most_ms, max(self.least_ms, max(self._lateness) + self.margin_ms))

    def arrived(self, now: float, seconds: float) -> None:
        """Notes a piece.

        Args:
            now: when it came, in seconds of any steady clock.
            seconds: its length.
        """
        if self._began is None:
            self._began, self._given = now, seconds
            return
        late = 1e3 * (now - self._began - self._given)
        if late > self.most_ms:
            self._began, self._given = now, seconds
            return
        self._lateness.append(max(0.0, late))
        self._given += seconds

    def ended(self) -> None:
        """Notes the end of a take: the next piece is the first of another."""
        self._began = None
