"""The header of a GGUF file: its values are located, its tensors described; no data is read.

A header can be large (vocabularies, embedded files), and a damaged or hostile one can claim to be:
so arrays are passed over by their size, strings by their lengths, and every number is compared with
the size of the file before anything is read or allocated. Values are read when they are asked for.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from rt_drama3.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # the same layout
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
BOOL, STRING, ARRAY = 7, 8, 9
# Value type -> numpy's type string; BOOL is one byte of 0 or 1.
NUMBERS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4"},
    **{6: "<f4", BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8"},
}
MAX_DIMS = 4
_MOST_VALUES, _MOST_TENSORS = 1 << 16, 1 << 20
_MOST_STRINGS = 1 << 23  # of all arrays together; they are the only thing that takes time to pass
_LONGEST_NAME = 1 << 16  # bytes; the format's own limit for keys
_MOST_ALIGNMENT = 1 << 20
MOST_READ = 256 << 20  # bytes of a value that are read into memory
_AGAIN = "Download it again."


class Region(NamedTuple):
    """A part of a file, in bytes."""

    start: int
    nbytes: int


@dataclass(frozen=True)
class Value:
    """One value of the header.

    Attributes:
        kind: its value type; of an array that of its elements.
        count: elements of an array; None for a single value.
        region: its bytes. Strings of an array include their lengths.
    """

    kind: int
    count: int | None
    region: Region


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the header describes it.

    Attributes:
        name: physical name.
        dims: sizes, that of the contiguous dim first.
        type_id: ggml's number of its type.
        offset: in bytes, from the start of the data.
    """

    name: str
    dims: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def elements(self) -> int:
        product = 1
        for size in self.dims:
            product *= size
        return product


@dataclass
class Header:
    """What a GGUF file says about itself.

    Attributes:
        path: the file.
        size: of the file, in bytes.
        values: key -> where its value is.
        tensors: in the order of the header.
        alignment: of tensors, in bytes.
        data_start: where offsets of tensors count from.
    """

    path: Path
    size: int
    values: dict[str, Value] = field(default_factory=dict)
    tensors: list[TensorInfo] = field(default_factory=list)
    alignment: int = DEFAULT_ALIGNMENT
    data_start: int = 0

    def string(self, key: str) -> str | None:
        """A string; None without that key.

        Raises:
            CheckpointError: it is another type of value, too long, or not UTF-8.
        """
        value = self._value(key, lambda v: v.kind == STRING and v.count is None, "a string")
        return None if value is None else self._text(self.read(key, value.region), key)

    def integer(self, key: str) -> int | None:
        """An integer; None without that key.

        Raises:
            CheckpointError: it is another type of value.
        """
        whole = {kind for kind, code in NUMBERS.items() if code[1] in "iu" and kind != BOOL}
        value = self._value(key, lambda v: v.kind in whole and v.count is None, "an integer")
        return None if value is None else int(self._numbers(key, value)[0])

    def numbers(self, key: str) -> npt.NDArray[Any] | None:
        """An array of numbers; None without that key.

        Raises:
            CheckpointError: it is another type of value, or too long.
        """
        value = self._value(
            key, lambda v: v.kind in NUMBERS and v.count is not None, "an array of numbers"
        )
        return None if value is None else self._numbers(key, value)

    def strings(self, key: str) -> list[str] | None:
        """An array of strings; None without that key.

        Raises:
            CheckpointError: it is another type of value, too long, or not UTF-8.
        """
        parts = self.string_regions(key)
        if parts is None:
            return None
        region = self.values[key].region
        data = self.read(key, region)
        begins = (part.start - region.start for part in parts)
        return [
            self._text(data[begin : begin + part.nbytes], key)
            for begin, part in zip(begins, parts, strict=True)
        ]

    def string_regions(self, key: str) -> list[Region] | None:
        """Where the strings of an array are; None without that key.

        Raises:
            CheckpointError: it is another type of value.
        """
        value = self._value(
            key, lambda v: v.kind == STRING and v.count is not None, "an array of strings"
        )
        if value is None:
            return None
        parts = []
        with opened(self.path) as file:
            cursor = _Cursor(self.path, file, self.size, value.region.start)
            for _ in range(value.count or 0):
                length = cursor.integer("<Q", key)
                parts.append(Region(cursor.position, length))
                cursor.skip(length, key)
        return parts

    def read(self, key: str, region: Region) -> bytes:
        """The bytes of a value or of a part of it.

        Raises:
            CheckpointError: it is too long, or the file cannot be read.
        """
        if region.nbytes > MOST_READ:
            raise CheckpointError(
                f"{self.path}: {key} has {region.nbytes:,} bytes, and at most {MOST_READ:,} are "
                "read. The file is damaged or of a kind that this version does not support."
            )
        with opened(self.path) as file:
            return _Cursor(self.path, file, self.size, region.start).take(region.nbytes, key)

    def _value(self, key: str, fits: Callable[[Value], bool], wanted: str) -> Value | None:
        value = self.values.get(key)
        if value is not None and not fits(value):
            array = "an array of " if value.count is not None else ""
            raise CheckpointError(
                f"{self.path}: {key} is {array}type {value.kind}, but {wanted} is needed. {_AGAIN}"
            )
        return value

    def _numbers(self, key: str, value: Value) -> npt.NDArray[Any]:
        return np.frombuffer(self.read(key, value.region), dtype=NUMBERS[value.kind])

    def _text(self, data: bytes, key: str) -> str:
        return _utf8(data, self.path, key)


def read_header(path: Path) -> Header:
    """Reads the header of a GGUF file.

    Raises:
        CheckpointError: naming the file and the field that is damaged or not supported.
    """
    with opened(path) as file:
        size = file.seek(0, 2)
        cursor = _Cursor(path, file, size, 0)
        tensors, values = _preamble(cursor)
        header = Header(path, size)
        budget = _MOST_STRINGS
        for number in range(values):
            key = cursor.string(f"the key of value {number}")
            if not key or key in header.values:
                cursor.fail(f"value {number}", f"its key {key!r} is empty or used before")
            value = header.values[key] = _value(cursor, key, budget)
            budget -= (value.count or 0) if value.kind == STRING else 0
        names: set[str] = set()
        for number in range(tensors):
            info = _tensor(cursor, number)
            if info.name in names:
                cursor.fail(f"tensor {number}", f"its name {info.name!r} is used before")
            names.add(info.name)
            header.tensors.append(info)
        end = cursor.position
    header.alignment = _alignment(header)
    header.data_start = aligned(end, header.alignment)
    return header


def aligned(position: int, alignment: int) -> int:
    """The next multiple of ``alignment``."""
    return -(-position // alignment) * alignment


def opened(path: Path) -> BinaryIO:
    """Opens a file for reading.

    Raises:
        CheckpointError: it cannot be opened.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    """Checks magic and version; returns the numbers of tensors and of values."""
    magic = cursor.take(4, "its first bytes")
    if magic != MAGIC:
        raise CheckpointError(f"{cursor.path} is not a GGUF file: it begins with {magic!r}.")
    version = cursor.integer("<I", "the version")
    if version not in VERSIONS:
        if version and not version & 0xFFFF:
            raise CheckpointError(
                f"{cursor.path} is a big-endian GGUF file, which is not supported."
            )
        raise CheckpointError(
            f"{cursor.path} is GGUF version {version}; versions 2 and 3 are supported. Convert the "
            "model again with a current tool."
        )
    tensors = cursor.integer("<Q", "the number of tensors")
    values = cursor.integer("<Q", "the number of values")
    left = cursor.size - cursor.position
    # The smallest tensor takes 24 bytes: length and rank, one byte of name, type and offset.
    if tensors > min(_MOST_TENSORS, left // 24):
        cursor.fail("the number of tensors", f"{tensors:,} do not fit into the file")
    if values > min(_MOST_VALUES, left // 13):
        cursor.fail("the number of values", f"{values:,} do not fit into the file")
    return tensors, values


def _value(cursor: _Cursor, key: str, budget: int) -> Value:
    kind = cursor.integer("<I", key)
    if kind != ARRAY:
        return Value(kind, None, _skip(cursor, key, kind, 1, inside=False))
    kind, count = cursor.integer("<I", key), cursor.integer("<Q", key)
    if kind == ARRAY:
        cursor.fail(key, "arrays of arrays are not supported")
    if kind == STRING and count > budget:
        cursor.fail(key, f"{count:,} strings are too many")
    return Value(kind, count, _skip(cursor, key, kind, count, inside=True))


def _skip(cursor: _Cursor, key: str, kind: int, count: int, *, inside: bool) -> Region:
    """Passes over a value; returns where it is, a single string without its length."""
    start = cursor.position
    if kind in NUMBERS:
        nbytes = count * np.dtype(NUMBERS[kind]).itemsize
        cursor.skip(nbytes, key)
        return Region(start, nbytes)
    if kind != STRING:
        cursor.fail(key, f"its type {kind} does not exist")
    if not inside:
        length = cursor.integer("<Q", key)
        cursor.skip(length, key)
        return Region(start + 8, length)
    for _ in range(count):
        cursor.skip(cursor.integer("<Q", key), key)
    return Region(start, cursor.position - start)


def _tensor(cursor: _Cursor, number: int) -> TensorInfo:
    name = cursor.string(f"the name of tensor {number}")
    what = f"tensor {name!r}"
    rank = cursor.integer("<I", what)
    if not name or not 1 <= rank <= MAX_DIMS:
        cursor.fail(what, f"it has {rank} dims; 1 to {MAX_DIMS}, and a name, are needed")
    dims = tuple(cursor.integer("<Q", what) for _ in range(rank))
    info = TensorInfo(name, dims, cursor.integer("<I", what), cursor.integer("<Q", what))
    if not 0 < info.elements < 1 << 63:
        cursor.fail(what, f"its shape {list(reversed(dims))} is not possible")
    return info


def _alignment(header: Header) -> int:
    alignment = header.integer(ALIGNMENT_KEY)
    if alignment is None:
        return DEFAULT_ALIGNMENT
    if not 0 < alignment <= _MOST_ALIGNMENT or alignment & (alignment - 1):
        raise CheckpointError(
            f"{header.path}: {ALIGNMENT_KEY} is {alignment}; a power of two up to "
            f"{_MOST_ALIGNMENT:,} is needed. {_AGAIN}"
        )
    return alignment


def _utf8(data: bytes, path: Path, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: {what} is not UTF-8 text ({error}). {_AGAIN}") from error


class _Cursor:
    """Reads forward through a file; every step is compared with the file's size first."""

    def __init__(self, path: Path, file: BinaryIO, size: int, position: int) -> None:
        self.path, self.size, self.position = path, size, position
        self._file = file
        file.seek(position)

    def fail(self, what: str, why: str) -> NoReturn:
        raise CheckpointError(f"{self.path} is damaged at {what}: {why}. {_AGAIN}")

    def take(self, count: int, what: str) -> bytes:
        self._require(count, what)
        try:
            data = self._file.read(count)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be read at {what}: {error.strerror or error}."
            ) from error
        if len(data) != count:
            self.fail(what, "the file ends early")
        self.position += count
        return data

    def skip(self, count: int, what: str) -> None:
        self._require(count, what)
        self._file.seek(count, 1)  # stays in the buffer where it can
        self.position += count

    def integer(self, code: str, what: str) -> int:
        number: int = struct.unpack(code, self.take(struct.calcsize(code), what))[0]
        return number

    def string(self, what: str) -> str:
        length = self.integer("<Q", what)
        if length > _LONGEST_NAME:
            self.fail(what, f"it has {length:,} bytes, and at most {_LONGEST_NAME:,} are allowed")
        return _utf8(self.take(length, what), self.path, what)

    def _require(self, count: int, what: str) -> None:
        if count > self.size - self.position:
            self.fail(what, f"it needs {count:,} bytes, but the file ends before")
