"""What a package is made of: its tensors, in tiles that are quantised one by one.

A tile is some rows, read, quantised and compared with what is read back. No more than a tile of
a tensor is in memory, unless its rows can only be read together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats import Format, dequantize, quantize
from rt_drama3.checkpoint.formats.bits import chunks, require_finite
from rt_drama3.checkpoint.prepare.errors import Squares
from rt_drama3.checkpoint.prepare.recipe import copied
from rt_drama3.checkpoint.tensors import TensorReader
from rt_drama3.checkpoint.views import View, cut
from rt_drama3.errors import CheckpointError

TILE = 1 << 20  # weights that are read at a time

Read = Callable[[TensorReader], Tensor]


@dataclass(frozen=True)
class Tile:
    """Rows of a tensor.

    Attributes:
        name: of the tensor, for messages.
        weights: numbers that are in memory while it is worked on.
        read: gives the rows, ``[rows, columns]``, or their blocks as bytes.
        format: of the package.
        importance: ``[columns]``, or None.
        blocks: whether what is read are blocks of the format already.
    """

    name: str
    weights: int
    read: Read
    format: Format
    importance: Tensor | None = None
    blocks: bool = False

    def make(self, reader: TensorReader) -> tuple[Tensor, Squares]:
        """Reads and quantises it.

        Returns:
            uint8 ``[rows, row_bytes]`` and the error; that of blocks that are copied is 0.

        Raises:
            CheckpointError: the source is damaged, or holds numbers that the format cannot.
        """
        rows = self.read(reader)
        if self.blocks:
            return rows, Squares()
        data = torch.empty(rows.shape[0], self.format.row_bytes(rows.shape[1]), dtype=torch.uint8)
        total = Squares()
        for part in chunks(*rows.shape):  # so few that they stay in the cache
            x = rows[part].float()
            try:
                require_finite(x)
                data[part] = quantize(x, self.format, self.importance)
            except ValueError as error:
                raise CheckpointError(f"{self.name}: {error}") from error
            total += _squares(x, dequantize(data[part], self.format), self.importance)
        return data, total


def _squares(x: Tensor, read: Tensor, importance: Tensor | None) -> Squares:
    off, own = (read - x).square_(), x.square()
    error, weight = (float(each.sum(dtype=torch.float64)) for each in (off, own))
    if importance is None:
        return Squares(error, weight)
    counted = (float(each.sum(0).double() @ importance.double()) for each in (off, own))
    return Squares(error, weight, *counted)


@dataclass(frozen=True)
class Target:
    """A tensor of a package.

    Attributes:
        name: in the package, without the part before the ``/``.
        space: that part.
        group: see ``ErrorOfTensor``.
        source: type in the source.
        format: type in the package.
        shape: its shape.
        tiles: gives its tiles, in order.
    """

    name: str
    space: str
    group: str
    source: str
    format: Format
    shape: tuple[int, ...]
    tiles: Callable[[], Iterator[Tile]]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        columns = self.shape[-1] if self.shape else 1
        return self.elements // columns * self.format.row_bytes(columns)


def view_tiles(view: View, format: Format, importance: Tensor | None) -> Iterator[Tile]:
    """The tiles of a tensor of the language model."""
    columns = view.shape[-1] if view.shape else 1
    rows = view.elements // columns
    if copied(view, format.name):
        for part in _ranges(rows, columns):
            weights = (part.stop - part.start) * columns
            yield Tile(view.name, weights, partial(_blocks, view, part), format, blocks=True)
        return
    if not view.divisible:
        # Its rows can only be read together.
        whole = partial(_rows, view, None, columns)
        yield Tile(view.name, view.elements, whole, format, importance)
        return
    for part in _ranges(rows, columns):
        weights = (part.stop - part.start) * columns
        yield Tile(view.name, weights, partial(_rows, view, part, columns), format, importance)


def tensor_tile(name: str, format: Format, read: Callable[[], Tensor], size: int) -> Iterator[Tile]:
    """The only tile of a tensor that is not read from the language model."""

    def rows(reader: TensorReader) -> Tensor:
        tensor = read()
        return tensor.reshape(-1, tensor.shape[-1] if tensor.ndim else 1)

    yield Tile(name, size, rows, format)


def _ranges(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, TILE // columns)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _rows(view: View, rows: slice | None, columns: int, reader: TensorReader) -> Tensor:
    return view.read(reader, rows).reshape(-1, columns)


def _blocks(view: View, rows: slice, reader: TensorReader) -> Tensor:
    parts = []
    for piece in cut(view.pieces, rows):
        (part,) = piece.stored.narrowed(piece.rows).parts
        parts.append(reader.read(part.entry, part.rows))
    return torch.cat(parts) if len(parts) > 1 else parts[0]
