"""Matrices as files hold them: which tensors belong together, and how their rows become numbers.

A quantised matrix is one tensor of blocks (GGUF), or packed codes with their scales in tensors next
to it (elsewhere). Which it is follows from names, dtypes and shapes, matrix by matrix, so that
one file may mix them; ``config.json`` only adds what tensors do not show, such as GPTQ's ``sym``.
docs/model.md, 11, describes the layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rt_drama3.checkpoint.tensors import TORCH_DTYPES, Entry, TensorReader
from rt_drama3.model.weights import Format

# (the parts, in their stored dtype) -> the matrix
Decode = Callable[..., Tensor]
# (rows, the parts in their stored dtype; None of the first, if only the others are needed) -> the
# planes of a weight
Repack = Callable[..., Sequence[Tensor | None]]


@dataclass(frozen=True)
class Keeping:
    """How a matrix stays as it is stored: the planes of a ``model.weights.Weight``.

    Attributes:
        format: what the planes stand for.
        widths: numbers in a row of each plane.
        dtypes: of the planes.
        repack: brings the parts there, by moving bits; None: they are the planes.
        mappable: whether the first plane is the first part, byte by byte.
        halves: bytes of a block, and where half-precision numbers begin in it.
    """

    format: Format
    widths: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    repack: Repack | None = None
    mappable: bool = True
    halves: tuple[int, tuple[int, ...]] = (1, ())

    @property
    def layout(self) -> tuple[object, ...]:
        """Matrices of one layout can lie below each other in one weight."""
        return self.format, self.widths, self.dtypes

    def cut(self, columns: slice, total: int) -> Keeping | None:
        """That of some of the columns; None if bytes would have to be divided."""
        if columns.start % self.format.unit or columns.stop % self.format.unit:
            return None
        part = columns.stop - columns.start
        return replace(self, widths=tuple(width * part // total for width in self.widths))

    def nbytes(self, rows: int) -> int:
        """Bytes of the planes for some rows."""
        pairs = zip(self.widths, self.dtypes, self.format.per, strict=True)
        return sum(-(-rows // per) * width * dtype.itemsize for width, dtype, per in pairs)


@dataclass(frozen=True)
class Part:
    """A stored tensor, or the rows of it that a matrix needs.

    Attributes:
        entry: the tensor.
        rows: its rows, counted over all dims but the last; None is all of it.
        per: rows of the matrix that share one of its rows; None: it serves the whole matrix.
    """

    entry: Entry
    rows: slice | None = None
    per: int | None = 1

    def narrowed(self, rows: slice) -> Part:
        """What rows of the matrix need of it."""
        if self.per is None:
            return self
        first: int = self.rows.start if self.rows else 0
        start, stop = rows.start // self.per, -(-rows.stop // self.per)
        return replace(self, rows=slice(first + start, first + stop))

    def read(self, reader: TensorReader, device: torch.device | str) -> Tensor:
        """``[rows, numbers of a row]`` in its own dtype; bytes, if torch has none like it."""
        data = reader.read(self.entry, self.rows).to(device)
        kind = TORCH_DTYPES.get(self.entry.dtype)
        return data if kind is None else data.view(kind)

    @property
    def nbytes(self) -> int:
        if self.rows is None:
            return self.entry.nbytes
        count: int = self.rows.stop - self.rows.start
        return self.entry.nbytes // self.entry.rows * count


@dataclass(frozen=True)
class Stored:
    """A matrix, or a stack of them, as it is stored.

    Attributes:
        dtype: what it is stored as, for reports: ``BF16``, ``Q4_K``, ``INT4``, ``NVFP4``.
        shape: row-major, as the numbers have it; leading dims are a stack.
        parts: the tensors that hold it, its codes first.
        decode: makes float32 rows of the parts; None if the numbers are stored as they are.
        unit: rows that can only be read together; None: all of them.
        kept: how it can stay as it is; None: it cannot, or its numbers are plain.
    """

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    decode: Decode | None = None
    unit: int | None = 1
    kept: Keeping | None = None

    @property
    def rows(self) -> int:
        """Product of all dims but the last."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def nbytes(self) -> int:
        """Bytes that reading it takes."""
        return sum(part.nbytes for part in self.parts)

    def narrowed(self, rows: slice, shape: tuple[int, ...] | None = None) -> Stored:
        """Some of its rows.

        Args:
            rows: counted over all dims but the last; whole units, if they are not all.
            shape: of the result; None is ``[rows, columns]``.
        """
        whole = (rows.start, rows.stop) == (0, self.rows)
        parts = self.parts if whole else tuple(part.narrowed(rows) for part in self.parts)
        return replace(self, shape=shape or (rows.stop - rows.start, self.columns), parts=parts)

    def divides(self, rows: slice) -> bool:
        """Whether some of its rows can be read without the others."""
        if (rows.start, rows.stop) == (0, self.rows):
            return True
        if self.unit is None:
            return False
        return not rows.start % self.unit and (not rows.stop % self.unit or rows.stop == self.rows)

    def read(self, reader: TensorReader, device: torch.device | str = "cpu") -> Tensor:
        """Reads it: ``[rows, columns]``, float32 or its own dtype if that holds plain numbers.

        Raises:
            ValueError: it is of a type that is not known, or its parts do not fit together.
        """
        tensors = [part.read(reader, device) for part in self.parts]
        if self.decode is None:
            if TORCH_DTYPES.get(self.parts[0].entry.dtype) is None:
                raise ValueError(f"its type {self.dtype} cannot be read")
            return tensors[0].view(self.rows, self.columns)
        return self.decode(*tensors).view(self.rows, self.columns)

    def planes(
        self, reader: TensorReader, device: torch.device | str, mapped: bool = False
    ) -> list[Tensor | None]:
        """Reads the planes of a matrix that can be kept; with ``mapped`` all but the first."""
        assert self.kept is not None
        first = None if mapped else self.parts[0].read(reader, device)
        tensors = [first, *(part.read(reader, device) for part in self.parts[1:])]
        return list(self.kept.repack(self.rows, *tensors) if self.kept.repack else tensors)


def plain(entry: Entry) -> Stored:
    """A tensor of numbers, or of anything that is not known."""
    return Stored(entry.dtype, entry.shape, (Part(entry),))
