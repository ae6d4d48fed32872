"""Official tensors as views of what a checkpoint stores: what loading and reports work with.

Whatever the container, its names and its layouts: behind a view stands a tensor of docs/model.md,
2, whose rows can be read as numbers. Nothing is read before that, and never more than one view.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rt_drama3.checkpoint.stored import Keeping, Stored, plain
from rt_drama3.checkpoint.tensors import TORCH_DTYPES, Entry, TensorReader
from rt_drama3.errors import CheckpointError

# Undoes what a container did to a tensor: its rows as stored -> the official tensor.
Undo = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class RowOrder:
    """Rows in another order, which a matrix that stays as it is stored can have, too.

    Attributes:
        order: int64 ``[rows]``: the number that each row has so far.
    """

    order: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """``[N, ...]``, or a vector ``[1, N]``, in that order."""
        if rows.shape[0] == 1 and rows.shape[1] == self.order.numel():
            rows = rows.t()
        return rows[self.order.to(rows.device)]


@dataclass(frozen=True, eq=False)
class ColumnOrder:
    """Columns in another order, in groups; a stored matrix can follow if it has whole groups.

    Attributes:
        order: int64 ``[groups]``.
    """

    order: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """``[N, columns]``, or a plane of such a matrix, in that order."""
        groups = rows.unflatten(1, (self.order.numel(), -1))
        ordered: Tensor = groups[:, self.order.to(rows.device)].flatten(1)
        return ordered


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

    def planes(
        self, reader: TensorReader, device: torch.device | str, mapped: bool
    ) -> list[Tensor | None]:
        """See ``Stored.planes``."""
        if self.stored.divides(self.rows):
            return self.stored.narrowed(self.rows).planes(reader, device, mapped)
        assert self.stored.kept is not None
        planes = self.stored.planes(reader, device, mapped)
        return _some(planes, self.stored.kept, self.rows)


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

    def nbytes_of(self, rows: slice | None, columns: slice | None) -> float:
        """Stored bytes of some of its rows and columns; None is all."""
        shape = list(self.shape)
        for dim, part in enumerate((rows, columns)):
            if part is not None:
                shape[dim] = part.stop - part.start
        return math.prod(shape) * (self.nbytes / self.elements)

    @property
    def kept(self) -> Keeping | None:
        """How it can stay as it is stored; None if it cannot."""
        kept = self.pieces[0].stored.kept
        if kept is None or self.shape != (self.shape[0], self.pieces[0].stored.columns):
            return None
        per = math.lcm(*kept.format.per)
        for piece in self.pieces:
            other = piece.stored.kept
            if other is None or other.layout != kept.layout:
                return None
            if piece.rows.start % per or piece.rows.stop % per:
                return None
        if isinstance(self.undo, ColumnOrder):
            group = self.shape[1] // self.undo.order.numel()
            return kept if group % kept.format.unit == 0 else None
        if isinstance(self.undo, RowOrder):
            return kept if per == 1 else None
        return kept if self.undo is None else None

    def planes(
        self,
        reader: TensorReader,
        rows: slice | None = None,
        device: torch.device | str = "cpu",
        mapped: bool = False,
    ) -> list[Tensor | None]:
        """Reads the planes of a tensor that can be kept, or of some of its rows.

        Args:
            reader: of the files.
            rows: whole rows of every plane; None is all.
            device: of the result.
            mapped: the first plane is not needed; it is None.

        Raises:
            CheckpointError: the file cannot be read.
        """
        kept = self.kept
        assert kept is not None
        pieces: Iterable[Piece] = self.pieces
        divided = rows is not None and self.undo is None
        if rows is not None and divided:
            pieces = cut(self.pieces, rows)
        parts = [piece.planes(reader, device, mapped) for piece in pieces]
        planes = [_joined(same) for same in zip(*parts, strict=True)]
        if self.undo is not None:
            planes = [plane if plane is None else self.undo(plane) for plane in planes]
        return planes if divided or rows is None else _some(planes, kept, rows)

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

    def read_into(self, reader: TensorReader, rows: slice, region: Tensor) -> bool:
        """Reads rows of it, or of its first plane, as they are stored, if the region has that form.

        Saves a copy. Returns False, and reads nothing, if they would have to be changed.

        Args:
            reader: of the files.
            rows: of the tensor.
            region: what to fill.
        """
        piece = self.pieces[0]
        data = piece.stored.parts[0]
        dtype = TORCH_DTYPES.get(data.entry.dtype, torch.uint8)
        alike = len(self.pieces) == 1 and self.undo is None and len(self.shape) == 2
        if not alike or data.per != 1 or piece.stored.unit is None:
            return False
        if region.device.type != "cpu" or region.dtype != dtype or not region.is_contiguous():
            return False
        part = data.narrowed(slice(piece.rows.start + rows.start, piece.rows.start + rows.stop))
        reader.read(part.entry, part.rows, region)
        return True

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


def _joined(planes: Sequence[Tensor | None]) -> Tensor | None:
    found = [plane for plane in planes if plane is not None]
    return (found[0] if len(found) == 1 else torch.cat(found)) if found else None


def _some(planes: Sequence[Tensor | None], kept: Keeping, rows: slice) -> list[Tensor | None]:
    """What some rows of a matrix need of its planes."""
    pairs = zip(planes, kept.format.per, strict=True)
    return [p if p is None else p[rows.start // per : -(-rows.stop // per)] for p, per in pairs]


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
