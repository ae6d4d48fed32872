"""Tiles in parallel, written in order: any number of threads gives the same file."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from rt_drama3.checkpoint.gguf import Writer
from rt_drama3.checkpoint.prepare.errors import Squares
from rt_drama3.checkpoint.prepare.journal import Journal
from rt_drama3.checkpoint.prepare.tiles import Target, Tile
from rt_drama3.checkpoint.tensors import TensorReader

Progress = Callable[[int, int], None]

# Numbers in all tiles that are worked on or wait to be written; one takes some 16 bytes.
IN_FLIGHT = 1 << 26
SYNC_BYTES = 1 << 28  # written between two points from which another call can continue


def write_tensors(
    writer: Writer,
    targets: Sequence[Target],
    finished: list[Squares],
    journal: Journal,
    source: Path,
    *,
    threads: int,
    progress: Progress | None,
) -> None:
    """Writes the tensors of a package that are not finished, and notes each in the journal.

    Args:
        writer: that begins behind those that are finished.
        targets: all tensors.
        finished: errors of those that are finished; the others are added.
        journal: of the package.
        source: folder of the files that tiles are read from.
        threads: tiles that are quantised concurrently.
        progress: called with bytes done and bytes in all.

    Raises:
        CheckpointError: the source is damaged, or holds numbers that a type cannot.
        OSError: the package cannot be written.
    """
    left = targets[len(finished) :]
    total = sum(target.nbytes for target in targets)
    done = total - sum(target.nbytes for target in left)
    noted = len(finished)  # in the journal
    unsynced = 0
    with ExitStack() as stack:
        stack.callback(lambda: _note(writer, journal, finished[noted:]))
        made = stack.enter_context(_Workers(source, threads)).made(_all_tiles(left))
        for target in left:
            squares, missing = Squares(), target.nbytes
            while missing:
                data, error = next(made)
                writer.write(data)
                squares += error
                missing -= data.nbytes
                done += data.nbytes
                if progress is not None:
                    progress(done, total)
            finished.append(squares)
            unsynced += target.nbytes
            if unsynced >= SYNC_BYTES:
                _note(writer, journal, finished[noted:])
                noted, unsynced = len(finished), 0


def _note(writer: Writer, journal: Journal, finished: list[Squares]) -> None:
    """What the journal says must be on the disk, whatever happens to the machine."""
    if finished:
        writer.sync()
        journal.add(finished)


def _all_tiles(targets: Iterable[Target]) -> Iterator[Tile]:
    for target in targets:
        yield from target.tiles()


class _Workers:
    """Threads that make tiles: torch computes without Python's lock. A context manager."""

    def __init__(self, source: Path, threads: int) -> None:
        self._source, self._threads = source, threads
        self._own = threading.local()
        self._readers: list[TensorReader] = []

    def __enter__(self) -> _Workers:
        # Several threads in each operation would slow each other down, and change sums.
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(
            self._threads, "rt-drama3-prepare", initializer=torch.set_num_threads, initargs=(1,)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for reader in self._readers:
            reader.close()
        torch.set_num_threads(self._before)

    def made(self, tiles: Iterator[Tile]) -> Iterator[tuple[Tensor, Squares]]:
        """The tiles in order, some of them ahead of time, as far as memory allows."""
        ahead: deque[tuple[int, Future[tuple[Tensor, Squares]]]] = deque()
        weights = 0
        tile = next(tiles, None)
        while tile is not None or ahead:
            while tile is not None and (
                not ahead
                or (len(ahead) < 2 * self._threads and weights + tile.weights <= IN_FLIGHT)
            ):
                ahead.append((tile.weights, self._pool.submit(self._make, tile)))
                weights += tile.weights
                tile = next(tiles, None)
            size, future = ahead.popleft()
            weights -= size
            yield future.result()

    def _make(self, tile: Tile) -> tuple[Tensor, Squares]:
        reader: TensorReader | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = TensorReader(self._source)
            self._readers.append(reader)
        return tile.make(reader)
