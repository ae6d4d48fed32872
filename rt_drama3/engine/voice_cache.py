"""VoiceCache: prefilled system blocks, so that a warm request reads only its own text.

The system block of a prompt depends on the references alone (docs/model.md, 6). Its state is
read once per voice and restored from a snapshot afterwards; the least recently used go first when
the memory is used up.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rt_drama3.model import Snapshot


def voice_key(rows: npt.NDArray[np.int64]) -> str:
    """Identifies a system block by its rows ``[T, 1 + num_codebooks]``."""
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()


class VoiceCache:
    """Snapshots by voice, bounded in bytes. Used from one thread.

    Args:
        limit: bytes; a snapshot that is larger on its own is not kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._snapshots: OrderedDict[str, Snapshot] = OrderedDict()
        self.nbytes = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._snapshots)

    def __iter__(self) -> Iterator[str]:
        """The voices, least recently used first."""
        return iter(self._snapshots)

    def get(self, key: str) -> Snapshot | None:
        """The snapshot of a voice, now the most recently used."""
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            self.misses += 1
            return None
        self.hits += 1
        self._snapshots.move_to_end(key)
        return snapshot

    def put(self, key: str, snapshot: Snapshot) -> None:
        """Keeps a snapshot, dropping the least recently used beyond the limit."""
        self.drop(key)
        if snapshot.nbytes > self._limit:
            return
        self._snapshots[key] = snapshot
        self.nbytes += snapshot.nbytes
        while self.nbytes > self._limit:
            _, dropped = self._snapshots.popitem(last=False)
            self.nbytes -= dropped.nbytes

    def drop(self, key: str) -> None:
        """Forgets a voice."""
        old = self._snapshots.pop(key, None)
        if old is not None:
            self.nbytes -= old.nbytes
