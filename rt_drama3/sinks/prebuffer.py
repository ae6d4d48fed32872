"""How much audio to buffer before playback starts: as little as the arrivals allow."""

from __future__ import annotations

from collections import deque


class Prebuffer:
    """Chooses the prebuffer from how late audio has arrived. Needs no clock and no device.

    Audio that arrives exactly on time needs none. A chunk that arrives 60 ms later than playback
    would need it, counted from the first chunk, needs 60 ms buffered before the start. The choice
    is the worst of the last ``memory`` chunks plus a margin, within bounds. A delay above
    ``most_ms`` is not jitter but a pause (an LLM thinks, a user types): counting restarts there, as
    it does with every take.

    Args:
        least_ms, most_ms: bounds.
        first_ms: used before anything was measured.
        margin_ms: added to the worst lateness, for the device's own block.
        memory: number of chunks remembered, across takes.
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
        self._began: float | None = None  # when the first chunk of this take arrived
        self._given = 0.0  # seconds of audio in the take before the next chunk

    @property
    def target_ms(self) -> float:
        """Milliseconds to buffer before the next start."""
        if not self._lateness:
            return self.first_ms
        return min(self.most_ms, max(self.least_ms, max(self._lateness) + self.margin_ms))

    def arrived(self, now: float, seconds: float) -> None:
        """Records the arrival of a chunk.

        Args:
            now: time of arrival, in seconds of any monotonic clock.
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
        """Ends a take: the next chunk is the first of another one."""
        self._began = None
