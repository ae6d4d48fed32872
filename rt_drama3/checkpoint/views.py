"""Official tensors as views of what a checkpoint stores: what loading and reports work with.

Whatever the container, its names and its layouts: behind a view stands a tensor of docs/model.md,
2, whose rows can be read as numbers. Nothing is read before that, and never more than one view.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rt_drama3.checkpoint.stored import Stored, plain
from rt_drama3.checkpoint.tensors import Entry, TensorReader
from rt_drama3.errors import CheckpointError

# Undoes what a container did to a tensor: its rows as stored -> the official tensor.
Undo = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Piece:
    """Rows of a stored matrix."""

    stored: Stored
    rows: slice

    @property
    def count(self) -> int:
        count: int = self.rows.stop - self.rows.start
        return count

    def cut(self, start: int, stop: int) -> Piece:
        """Some of its rows, counted from its first."""
        return Piece(self.stored, slice(self.rows.start + start, self.rows.start + stop))

    def read(self, reader: TensorReader, device: torch.device | str) -> Tensor:
        """``[rows, columns]``."""
        if self.stored.divides(self.rows):
            return self.stored.narrowed(self.rows).read(reader, device)
        return self.stored.read(reader, device)[self.rows]


@dataclass(frozen=True)
class View:
    """An official tensor.

    Attributes:
        name: its official name.
        shape: its official shape.
        pieces: the rows that it is made of, from the first to the last.
        undo: what has to be undone after reading; None if the rows are the tensor.
    """

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    undo: Undo | None = None

    @property
    def dtype(self) -> str:
        """What it is stored as."""
        return self.pieces[0].stored.dtype

    @property
    def quantised(self) -> bool:
        """Whether its numbers are computed from what is stored."""
        return any(piece.stored.decode is not None for piece in self.pieces)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the files."""
        return sum(
            piece.stored.nbytes * piece.count // max(1, piece.stored.rows) for piece in self.pieces
        )

    @property
    def place(self) -> tuple[str, int]:
        """Where its data begins: file and byte. Reading in that order is fastest."""
        piece = self.pieces[0]
        part = piece.stored.parts[0]
        row_bytes = part.nbytes // max(1, piece.stored.rows)
        first = 0 if part.rows is None else part.rows.start * row_bytes
        return part.entry.shard, part.entry.start + first + piece.rows.start * row_bytes

    @property
    def entries(self) -> Iterator[Entry]:
        """The stored tensors behind it."""
        for piece in self.pieces:
            for part in piece.stored.parts:
                yield part.entry

    @property
    def divisible(self) -> bool:
        """Whether its rows can be read a few at a time."""
        return (
            self.undo is None
            and len(self.shape) == 2
            and all(piece.stored.unit == 1 for piece in self.pieces)
        )

    def read(
        self,
        reader: TensorReader,
        rows: slice | None = None,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Reads it, or rows of its first dim.

        Raises:
            CheckpointError: the file cannot be read, or does not hold what its header says.
        """
        pieces: Iterable[Piece] = self.pieces
        divided = rows is not None and self.divisible
        if rows is not None and divided:
            pieces = cut(self.pieces, rows)
        try:
            parts = [piece.read(reader, device) for piece in pieces]
        except ValueError as error:
            raise CheckpointError(f"{self.name} is damaged: {error}") from error
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        if divided:
            return whole
        if self.undo is not None:
            whole = self.undo(whole)
        whole = whole.reshape(self.shape)
        return whole if rows is None else whole[rows]

    def taken(self, rows: Iterable[int]) -> View:
        """Some of its rows, in any order; of a view of rows."""
        pieces: list[Piece] = []
        for row in rows:
            (piece,) = cut(self.pieces, slice(row, row + 1))
            last = pieces[-1] if pieces else None
            if last and last.stored is piece.stored and last.rows.stop == piece.rows.start:
                pieces[-1] = Piece(piece.stored, slice(last.rows.start, piece.rows.stop))
            else:
                pieces.append(piece)
        count = sum(piece.count for piece in pieces)
        return replace(self, shape=(count, *self.shape[1:]), pieces=tuple(pieces))


def cut(pieces: Iterable[Piece], rows: slice) -> Iterator[Piece]:
    """The rows from ``start`` to ``stop`` of pieces that lie below each other."""
    first = 0
    for piece in pieces:
        start, stop = max(rows.start - first, 0), min(rows.stop - first, piece.count)
        if start < stop:
            yield piece.cut(start, stop)
        first += piece.count


def view(name: str, stored: Stored, undo: Undo | None = None) -> View:
    """A view of a whole stored matrix."""
    return View(name, stored.shape, (Piece(stored, slice(0, stored.rows)),), undo)


def entry_view(entry: Entry) -> View:
    """A view of a tensor that is stored as it is."""
    return view(entry.name, plain(entry))
