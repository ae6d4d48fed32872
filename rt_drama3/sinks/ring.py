"""A lock-free ring buffer between one writing and one reading thread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.int16]  # [frames, channels]


class Ring:
    """A bounded FIFO of 16-bit frames.

    Positions count frames since the beginning and only grow. Only the writer changes ``written``
    and only the reader changes ``read``, each after the samples are in place; since assignments are
    atomic in CPython, neither needs a lock, and an audio callback never waits for a writer.

    Args:
        capacity: frames.
        channels: samples per frame.
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
        """Appends as many frames as there is room for, and returns their number. Writer only."""
        count = min(len(frames), self.room)
        at = self.written % self.capacity
        first = min(count, self.capacity - at)
        self._frames[at : at + first] = frames[:first]
        self._frames[: count - first] = frames[first:count]
        self.written += count
        return count

    def take(self, out: Block) -> int:
        """Moves available frames into ``out`` and returns their number. Reader only."""
        count = min(len(out), self.available)
        at = self.read % self.capacity
        first = min(count, self.capacity - at)
        out[:first] = self._frames[at : at + first]
        out[first:count] = self._frames[: count - first]
        self.read += count
        return count

    def skip_to(self, position: int) -> None:
        """Drops everything before a position, unless it was read already. Reader only."""
        self.read = max(self.read, min(position, self.written))
