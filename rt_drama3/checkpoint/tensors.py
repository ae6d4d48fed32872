"""Official safetensors files, sharded or not: their headers, and their data in parts.

The format is a length, a JSON header and raw data, so the parts are read with plain file reads
into fresh memory rather than through a memory map: pages of a map count as memory of the process
until the system reclaims them, and truncating a mapped file kills the process instead of raising an
error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from rt_drama3.checkpoint.files import INDEX, SINGLE, read_json, require
from rt_drama3.errors import CheckpointError

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "U32": torch.int32,  # only its bits are used
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_AGAIN = "Download the checkpoint again."
# What reading a damaged header can raise; a number in it may be infinite, or have 5,000 digits.
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Entry:
    """One stored tensor: the location and type of its bytes.

    Attributes:
        name: name in the file.
        shard: file name.
        dtype: name of its type, such as ``BF16`` or ``Q4_K``.
        shape: as stored.
        start: byte offset in the file.
        nbytes: length in bytes.
    """

    name: str
    shard: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """Product of all dims but the last."""
        return math.prod(self.shape[:-1])


@dataclass
class Scan:
    """Everything that the headers of a checkpoint hold.

    Attributes:
        directory: the checkpoint folder.
        entries: tensor name -> its location, shard by shard in file order.
        metadata: metadata of the index, or of the only file.
        problems: what is wrong with the index or the files, one sentence each.
    """

    directory: Path
    entries: dict[str, Entry] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def require_sound(self) -> None:
        """Refuses files that are inconsistent.

        Raises:
            CheckpointError: naming the first problem and counting the others.
        """
        if self.problems:
            others = len(self.problems) - 1
            more = f" ({others} more problems; 'rt-drama3 model info' lists them)" if others else ""
            raise CheckpointError(f"{self.problems[0]}{more}")


def scan(directory: Path, files: Sequence[str] | None = None) -> Scan:
    """Reads the index and every header, no data. Problems are collected, not raised.

    Args:
        directory: the folder.
        files: the safetensors files in it; None reads those of the index, or the only one.
    """
    found = Scan(directory)
    try:
        weight_map = None if files else _weight_map(found)
    except CheckpointError as error:
        found.problems.append(str(error))
        return found
    shards = files or ([SINGLE] if weight_map is None else sorted(set(weight_map.values())))
    broken = set()
    for shard in shards:
        try:
            entries, metadata = _header(directory, shard)
        except CheckpointError as error:
            found.problems.append(str(error))
            broken.add(shard)
            continue
        if weight_map is None:
            found.metadata = metadata
        for entry in entries:
            _add(found, entry, weight_map)
    for name, shard in (weight_map or {}).items():
        if name not in found.entries and shard not in broken:
            found.problems.append(
                f"{directory / INDEX} puts {name} into {shard}, but it is not there. {_AGAIN}"
            )
    return found


def _weight_map(found: Scan) -> dict[str, str] | None:
    """The index's tensor -> shard map; None for a single file without an index."""
    path = found.directory / INDEX
    if not path.is_file():
        if not (found.directory / SINGLE).is_file():
            raise CheckpointError(
                f"{found.directory} has neither {INDEX} nor {SINGLE}. Both the index and the "
                "shards that it names are needed."
            )
        return None
    index = read_json(path)
    if not isinstance(index, dict):
        index = {}
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map. {_AGAIN}")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_file_name(shard):
            raise CheckpointError(
                f"{path} puts {name} into {shard!r}, which is not a file name in the same folder."
            )
    metadata = index.get("metadata")
    found.metadata = metadata if isinstance(metadata, dict) else {}
    return weight_map


def _is_file_name(text: str) -> bool:
    """Whether ``text`` is a plain file name on every system."""
    names = (PurePosixPath(text).name, PureWindowsPath(text).name)
    return text not in ("", "..") and names == (text, text)


def _add(found: Scan, entry: Entry, weight_map: Mapping[str, str] | None) -> None:
    earlier = found.entries.get(entry.name)
    if earlier is not None:
        found.problems.append(
            f"{entry.name} is in {earlier.shard} and again in {entry.shard}. {_AGAIN}"
        )
        return
    found.entries[entry.name] = entry
    if weight_map is not None and weight_map.get(entry.name) != entry.shard:
        listed = weight_map.get(entry.name)
        where = f"puts it into {listed}" if listed else "does not list it"
        found.problems.append(f"{entry.name} is in {entry.shard}, but {INDEX} {where}. {_AGAIN}")


def _header(directory: Path, shard: str) -> tuple[list[Entry], Mapping[str, Any]]:
    """Entries of one file in the order of their data, and the file's metadata."""
    path = require(directory, shard)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER):
            raise CheckpointError(f"{path} is truncated or not a safetensors file. {_AGAIN}")
        text = file.read(length)
    try:
        header = json.loads(text)
        metadata = header.pop("__metadata__", None) or {}
        entries = [
            Entry(
                name,
                shard,
                str(values["dtype"]),
                tuple(int(n) for n in values["shape"]),
                8 + length + int(values["data_offsets"][0]),
                int(values["data_offsets"][1]) - int(values["data_offsets"][0]),
            )
            for name, values in header.items()
        ]
    except _DAMAGED as error:
        raise CheckpointError(f"{path} has a damaged header ({error}). {_AGAIN}") from error
    entries.sort(key=lambda entry: entry.start)
    end = 8 + length
    for entry in entries:
        kind = TORCH_DTYPES.get(entry.dtype)
        wanted = entry.nbytes if kind is None else entry.elements * kind.itemsize
        if entry.start != end or entry.nbytes != wanted or entry.nbytes < 0:
            raise CheckpointError(
                f"{path}: the header has a wrong offset or size for {entry.name}. {_AGAIN}"
            )
        end += entry.nbytes
    if end != size:
        fault = "truncated" if end > size else "too long"
        raise CheckpointError(f"{path} is {fault}: {size:,} bytes instead of {end:,}. {_AGAIN}")
    return entries, metadata


class TensorReader:
    """Reads the tensors of a valid scan. A context manager; one file is open at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._shard: str | None = None
        self._file: FileIO | None = None

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the open file, if any."""
        if self._file is not None:
            self._file.close()
        self._file = self._shard = None

    def read(self, entry: Entry, rows: slice | None = None, into: Tensor | None = None) -> Tensor:
        """Reads rows as they are stored, of any type.

        Args:
            entry: from a scan of the same folder.
            rows: ``slice(start, stop)``, counted over all dims but the last; None reads all.
            into: contiguous memory of the host for just these bytes; None allocates some.

        Returns:
            uint8 ``[rows, bytes of a row]``.

        Raises:
            CheckpointError: the file cannot be read or ends early.
        """
        rows = rows or slice(0, entry.rows)
        row_bytes = entry.nbytes // max(1, entry.rows)
        count = rows.stop - rows.start
        if into is None:
            data = torch.empty(count, row_bytes, dtype=torch.uint8)
        else:
            data = into.view(-1).view(torch.uint8).view(count, row_bytes)
        start = entry.start + rows.start * row_bytes
        try:
            self._fill(entry.shard, start, data.flatten().numpy().data)
        except OSError as error:
            path = self._directory / entry.shard
            raise CheckpointError(
                f"{path} cannot be read at {entry.name}: {error.strerror or error}."
            ) from error
        return data

    def _fill(self, shard: str, start: int, into: memoryview) -> None:
        if self._shard != shard or self._file is None:
            self.close()
            self._file = (self._directory / shard).open("rb", buffering=0)
            self._shard = shard
        self._file.seek(start)
        done = 0
        while done < len(into):  # one read returns up to 2 GiB
            count = self._file.readinto(into[done:])
            if not count:
                raise CheckpointError(f"{self._directory / shard} ends early. {_AGAIN}")
            done += count
