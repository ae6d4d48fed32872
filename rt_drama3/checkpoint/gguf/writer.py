"""Writes GGUF files tensor by tensor: the header first, since every size is known before.

What is written opens in ggml: tensors follow each other in the order of the header, each padded to
the alignment, and names have fewer than 64 bytes.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from rt_drama3.checkpoint.formats import FORMATS
from rt_drama3.checkpoint.gguf.contents import FILES, INTEGERS, NAMES, RANKS, SHAPES
from rt_drama3.checkpoint.gguf.header import (
    ALIGNMENT_KEY,
    ARRAY,
    BOOL,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    NUMBERS,
    STRING,
    aligned,
)

SHORT_NAME = 63  # bytes of the longest name that ggml takes
_IDS = {name: (number, size) for number, (name, size) in INTEGERS.items()}
_KINDS = {np.dtype(code): kind for kind, code in NUMBERS.items() if kind != BOOL}


@dataclass(frozen=True)
class Planned:
    """A tensor that will be written.

    Attributes:
        name: physical name.
        shape: row-major; beyond ggml's four dims the leading ones are stored as one.
        dtype: name of its type, such as ``Q4_K`` or ``F32``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def dims(self) -> tuple[int, ...]:
        """As ggml has them: the contiguous dim first."""
        lead, rest = self.shape[: 1 - MAX_DIMS], self.shape[1 - MAX_DIMS :]
        kept = (math.prod(lead), *rest) if len(self.shape) > MAX_DIMS else self.shape
        return tuple(reversed(kept or (1,)))

    @property
    def type_id(self) -> int:
        """Ggml's number of the type."""
        if self.dtype in _IDS:
            return _IDS[self.dtype][0]
        return FORMATS[self.dtype.lower()].ggml_id

    @property
    def nbytes(self) -> int:
        """Bytes of its data.

        Raises:
            ValueError: its rows are not whole blocks of the type.
        """
        columns = self.dims[0]
        if self.dtype in _IDS:
            return math.prod(self.dims) * _IDS[self.dtype][1]
        return math.prod(self.dims) // columns * FORMATS[self.dtype.lower()].row_bytes(columns)


def part_of(path: Path) -> Path:
    """What a file is called until it is complete."""
    return path.with_name(f"{path.name}.part")


def logical_names(
    names: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> tuple[list[str], dict[str, Any]]:
    """Physical names, and the values that give names and shapes back as audio.cpp stores them."""
    physical: list[str] = []
    used: set[str] = set()
    for index, name in enumerate(names):
        fits = len(name.encode()) <= SHORT_NAME and name not in used
        physical.append(name if fits else f"_audiocpp.{index}")
        used.add(physical[-1])
    flat = [size for shape in shapes for size in shape]
    return physical, {
        NAMES: list(names),
        RANKS: np.array([len(shape) for shape in shapes], dtype=np.int32),
        SHAPES: np.array(flat, dtype=np.int64),
    }


def embedded_files(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The values that embed small files."""
    ends = np.cumsum([0, *map(len, files.values())], dtype=np.uint64)
    return {
        f"{FILES}.names": list(files),
        f"{FILES}.offsets": ends,
        f"{FILES}.data": np.frombuffer(b"".join(files.values()), dtype=np.uint8),
    }


def embedded_texts(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The same for files of text, as strings: some readers make an object of every byte of data.

    Raises:
        UnicodeDecodeError: one is not UTF-8.
    """
    texts = [data.decode("utf-8") for data in files.values()]
    return {f"{FILES}.names": list(files), f"{FILES}.contents": texts}


class Writer:
    """Writes one file. A context manager: the file appears when it is complete.

    Args:
        path: of the file.
        values: of the header: strings, bools, ints (the smallest of uint32, int64 and uint64 that
            holds them), floats (float32), lists of strings, and numpy's numbers and arrays.
        tensors: in the order in which they will be written.
        alignment: of tensors, in bytes.
        resume: tensors that an earlier writer of the same file has written; None starts from
            scratch, and leaves nothing behind where the file is not completed.
    """

    def __init__(
        self,
        path: Path,
        values: Mapping[str, Any],
        tensors: Sequence[Planned],
        alignment: int = DEFAULT_ALIGNMENT,
        resume: int | None = None,
    ) -> None:
        self._path, self._part = path, part_of(path)
        self._resume = resume
        self._values = dict(values)
        if alignment != DEFAULT_ALIGNMENT:
            self._values[ALIGNMENT_KEY] = alignment
        self._tensors, self._alignment = list(tensors), alignment
        self._next = self._done = 0
        self._file: BinaryIO | None = None

    @cached_property
    def header(self) -> bytes:
        """Everything before the data."""
        return self._header()

    @cached_property
    def starts(self) -> list[int]:
        """Where each tensor begins in the file, and where the file ends."""
        starts = [aligned(len(self.header), self._alignment)]
        for tensor in self._tensors:
            starts.append(aligned(starts[-1] + tensor.nbytes, self._alignment))
        return starts

    def __enter__(self) -> Writer:
        if self._resume:
            self._file = self._part.open("r+b")
            self._file.truncate(self.starts[self._resume])
            self._file.seek(0, os.SEEK_END)
            self._next = self._resume
            return self
        self._file = self._part.open("wb")
        try:
            self._file.write(self.header)
            self._pad()
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        complete = self._next == len(self._tensors)
        if kind is not None or not complete:
            self._abandon()
        if kind is not None:
            return
        if not complete:
            raise ValueError(f"{self._tensors[self._next].name} was not written whole")
        self.sync()
        assert self._file is not None
        self._file.close()
        os.replace(self._part, self._path)

    def sync(self) -> None:
        """Returns when what is written so far is on the disk."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())

    def write(self, data: Tensor | bytes) -> None:
        """Writes the next bytes of the tensor in turn; tensors may come in several parts.

        Args:
            data: the bytes as stored, or a tensor of any dtype that holds them.

        Raises:
            ValueError: there are more bytes than the tensor has.
        """
        assert self._file is not None
        stored = data if isinstance(data, bytes) else _bytes(data)
        wanted = self._tensors[self._next].nbytes if self._next < len(self._tensors) else 0
        self._done += len(stored)
        if self._done > wanted:
            raise ValueError(f"tensor {self._next} has {wanted} bytes, but {self._done} came")
        self._file.write(stored)
        if self._done == wanted:
            self._pad()
            self._next, self._done = self._next + 1, 0

    def _header(self) -> bytes:
        parts = [MAGIC, struct.pack("<IQQ", 3, len(self._tensors), len(self._values))]
        for key, value in self._values.items():
            parts += [_string(key), *_value(value)]
        offset = 0
        for tensor in self._tensors:
            if len(tensor.name.encode()) > SHORT_NAME:
                raise ValueError(f"{tensor.name!r} is too long; see logical_names")
            parts.append(_string(tensor.name))
            parts.append(struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims))
            parts.append(struct.pack("<IQ", tensor.type_id, offset))
            offset = aligned(offset + tensor.nbytes, self._alignment)
        return b"".join(parts)

    def _pad(self) -> None:
        assert self._file is not None
        position = self._file.tell()
        self._file.write(bytes(aligned(position, self._alignment) - position))

    def _abandon(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._resume is None:
            self._part.unlink(missing_ok=True)


def _bytes(data: Tensor) -> memoryview:
    flat = data.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> list[bytes]:
    """A value with its type."""
    if isinstance(value, str):
        return [struct.pack("<I", STRING), _string(value)]
    if isinstance(value, bool | np.bool_):
        return [struct.pack("<IB", BOOL, value)]
    if isinstance(value, list):
        return [struct.pack("<IIQ", ARRAY, STRING, len(value)), *map(_string, value)]
    if isinstance(value, int):
        value = _smallest(value)
    if isinstance(value, float):
        value = np.float32(value)
    data = np.asarray(value)
    kind = _KINDS[data.dtype.newbyteorder("<")]
    if data.ndim == 0:
        return [struct.pack("<I", kind), data.tobytes()]
    return [struct.pack("<IIQ", ARRAY, kind, data.size), data.tobytes()]


def _smallest(number: int) -> np.integer[Any]:
    if 0 <= number < 1 << 32:
        return np.uint32(number)
    return np.int64(number) if number < 1 << 63 else np.uint64(number)
