"""A bounded buffer between one thread that writes and one that reads, without locks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.int16]  # [frames, channels]


class Ring:
    """Holds 16-bit frames in order.

    Positions count frames since the beginning and only grow. The writer alone changes ``written``
    and the reader alone ``read``, each after the samples are in place; since an interpreter's
    assignment is atomic, neither needs a lock, and an audio callback never waits for a writer.

    Args:
        capacity: in frames.
        channels: samples of a frame.
    """

    def __init__(self, capacity: int, channels: int) -> None:
        self.capacity = capacity
        self.written = 0
        self.read = 0
        self._frames = np.zeros((capacity, channels), np.int16)

    @property
    def available(self) -> int:
        """Frames that can be read."""
        return self.written - self.read

    @property
    def room(self) -> int:
        """Frames that can be written."""
        return self.capacity - (self.written - self.read)

    def put(self, frames: Block) -> int:
        """Appends as many frames as there is room for, and returns how many. Writer only."""
        count = min(len(frames), self.room)
        at = self.written % self.capacity
        first = min(count, self.capacity - at)
        self._frames[at : at + first] = frames[:first]
        self._frames[: count - first] = frames[first:count]
        self.written += count
        return count

    def take(self, out: Block) -> int:
        """Moves as many frames as there are into ``out``, and returns how many. Reader only."""
        count = min(len(out), self.available)
        at = self.read % self.capacity
        first = min(count, self.capacity - at)
        out[:first] = self._frames[at : at + first]
        out[first:count] = self._frames[: count - first]
        self.read += count
        return count

    def skip_to(self, position: int) -> None:
        """Drops what lies before a position; nothing if it was read already. Reader only."""
        self.read = max(self.read, min(position, self.written))
