"""What a GGUF file holds: tensors with their logical names and shapes, and embedded files.

audio.cpp's files add to the format: a tensor whose name is too long for ggml is stored under an
alias, shapes are also given as they were before (ggml's have four dims and lose leading ones), and
small files such as ``config.json`` are embedded. docs/model.md, 12.3, lists the keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath, PureWindowsPath

from rt_drama3.checkpoint.formats import by_ggml_id
from rt_drama3.checkpoint.gguf.header import Header, Region, TensorInfo, read_header
from rt_drama3.checkpoint.tensors import Entry, Scan
from rt_drama3.errors import CheckpointError

ARCHITECTURE = "general.architecture"
NAMES, RANKS, SHAPES = (f"audiocpp.tensor_{part}" for part in ("names", "ranks", "shapes"))
FILES = "audiocpp.embedded_files"
SPLIT = "split.count"
# Numbers that are not weights: ggml's id -> safetensors' name and bytes.
INTEGERS = {24: ("I8", 1), 25: ("I16", 2), 26: ("I32", 4), 27: ("I64", 8), 28: ("F64", 8)}
# Types of ggml, by name, that messages may have to speak of.
_OTHERS = {
    **{3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS"},
    **{19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 29: "IQ1_M", 34: "TQ1_0"},
    **{35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"},
}
_AGAIN = "Download it again."


@dataclass
class GgufScan(Scan):
    """What the header of a GGUF file holds.

    Attributes:
        architecture: of the model, as the file names it.
        header: None if it is damaged.
        embedded: relative path -> where the file is.
    """

    architecture: str | None = None
    header: Header | None = None
    embedded: dict[str, Region] = field(default_factory=dict)


def scan_gguf(path: Path) -> GgufScan:
    """Reads the header of a GGUF file, no data. Problems are collected, not raised."""
    found = GgufScan(path.parent)
    try:
        header = found.header = read_header(path)
        found.architecture = header.string(ARCHITECTURE)
        _require_whole(header)
        names, shapes = _logical(header)
        for info, name, shape in zip(header.tensors, names, shapes, strict=True):
            entry = _entry(found, header, info, name, shape)
            if entry.name in found.entries:
                raise _fault(header, name, "two tensors have this name")
            found.entries[entry.name] = entry
        found.entries = _in_order(header, found.entries)
        found.embedded = _embedded(header)
    except CheckpointError as error:
        found.problems.append(str(error))
    return found


def read_embedded(found: GgufScan, name: str) -> bytes:
    """The contents of an embedded file.

    Raises:
        CheckpointError: it is too long, or cannot be read.
    """
    assert found.header is not None  # or else nothing is known to be embedded
    return found.header.read(f"the embedded file {name}", found.embedded[name])


def _fault(header: Header, what: str, why: str) -> CheckpointError:
    return CheckpointError(f"{header.path} is damaged at {what}: {why}. {_AGAIN}")


def _require_whole(header: Header) -> None:
    parts = header.integer(SPLIT) or 1
    if parts > 1:
        raise CheckpointError(
            f"{header.path} is one of {parts} parts. Merge them into one file first (llama.cpp's "
            "'llama-gguf-split --merge')."
        )


def _logical(header: Header) -> tuple[Sequence[str], Sequence[tuple[int, ...]]]:
    """The logical name and shape of every tensor."""
    infos = header.tensors
    names = header.strings(NAMES)
    if names is None:
        names = [info.name for info in infos]
    elif len(names) != len(infos):
        raise _fault(header, NAMES, f"{len(names)} names for {len(infos)} tensors")
    ranks, sizes = header.numbers(RANKS), header.numbers(SHAPES)
    if (ranks is None) != (sizes is None):
        raise _fault(header, RANKS, f"{RANKS} and {SHAPES} must come together")
    if ranks is None or sizes is None:
        return names, [tuple(reversed(info.dims)) for info in infos]
    if ranks.dtype.kind not in "iu" or sizes.dtype.kind not in "iu":
        raise _fault(header, RANKS, "integers are needed")
    counts: list[int] = ranks.tolist() if len(ranks) == len(infos) else []
    if len(counts) != len(infos) or min(counts, default=0) < 0 or sum(counts) != len(sizes):
        raise _fault(header, RANKS, f"they do not describe {len(infos)} tensors")
    shapes, start, flat = [], 0, sizes.tolist()
    for name, info, rank in zip(names, infos, counts, strict=True):
        shape = tuple(flat[start : start + rank])
        start += rank
        if min(shape, default=1) < 1 or math.prod(shape) != info.elements:
            raise _fault(
                header, name, f"its shape {list(shape)} does not hold {info.elements} elements"
            )
        shapes.append(shape)
    return names, shapes


def _entry(
    found: GgufScan, header: Header, info: TensorInfo, name: str, shape: tuple[int, ...]
) -> Entry:
    if info.offset % header.alignment:
        raise _fault(
            header, name, f"its offset {info.offset} is not a multiple of {header.alignment}"
        )
    dtype, nbytes = _stored(found, header, info, name, shape)
    start = header.data_start + info.offset
    if start + nbytes > header.size:
        raise CheckpointError(
            f"{header.path} is truncated: {name} ends at byte {start + nbytes:,}, the file at "
            f"{header.size:,}. {_AGAIN}"
        )
    return Entry(name, header.path.name, dtype, shape, start, nbytes)


def _stored(
    found: GgufScan, header: Header, info: TensorInfo, name: str, shape: tuple[int, ...]
) -> tuple[str, int]:
    """Name of a tensor's type, and its bytes; 0 of a type of unknown size."""
    if info.type_id in INTEGERS:
        dtype, size = INTEGERS[info.type_id]
        return dtype, info.elements * size
    format = by_ggml_id(info.type_id)
    if format is None:
        found.problems.append(_unreadable(header, info, name))
        return _OTHERS.get(info.type_id, f"type {info.type_id}"), 0
    columns = shape[-1] if shape else 1
    for size in (info.dims[0], columns):
        if size % format.elements:
            raise _fault(
                header,
                name,
                f"rows of {size} cannot be {format.name.upper()}, which has blocks of "
                f"{format.elements}",
            )
    return format.name.upper(), info.elements // columns * format.row_bytes(columns)


def _unreadable(header: Header, info: TensorInfo, name: str) -> str:
    known = _OTHERS.get(info.type_id)
    if known is None:
        return (
            f"{header.path}: {name} has the type {info.type_id}, which ggml does not have. A fork "
            "wrote the file (such as that for ROCmFPX), and only that can read it. Use a file with "
            "ggml's own types, such as Q4_K."
        )
    return (
        f"{header.path}: {name} has the type {known}, which this version cannot read. Use a file "
        "with another type, such as Q4_K."
    )


def _in_order(header: Header, entries: dict[str, Entry]) -> dict[str, Entry]:
    """The tensors in the order of their data; refuses those that overlap."""
    ordered = sorted(entries.values(), key=lambda entry: entry.start)
    for before, entry in pairwise(ordered):
        if before.start + before.nbytes > entry.start:
            raise _fault(header, entry.name, f"it overlaps {before.name}")
    return {entry.name: entry for entry in ordered}


def _embedded(header: Header) -> dict[str, Region]:
    names = header.strings(f"{FILES}.names")
    if names is None:
        return {}
    contents = header.string_regions(f"{FILES}.contents")
    if contents is None:
        contents = _cut(header, len(names))
    if len(contents) != len(names) or len(set(names)) != len(names):
        raise _fault(header, FILES, f"{len(names)} names for {len(contents)} files")
    for name in names:
        if not _is_relative(name):
            raise _fault(header, FILES, f"{name!r} is not a relative path inside the model")
    return dict(zip(names, contents, strict=True))


def _cut(header: Header, count: int) -> list[Region]:
    """The files of one array of bytes, cut at its offsets."""
    offsets, data = header.numbers(f"{FILES}.offsets"), header.values.get(f"{FILES}.data")
    if offsets is None or offsets.dtype.kind not in "iu" or data is None or data.kind not in (0, 1):
        raise _fault(header, FILES, "it needs contents, or integers offsets and bytes data")
    ends: list[int] = offsets.tolist() if len(offsets) == count + 1 else []
    if not ends or ends != sorted(ends) or ends[0] < 0 or ends[-1] > data.region.nbytes:
        raise _fault(header, FILES, f"its offsets do not divide its data into {count} files")
    start = data.region.start
    return [Region(start + a, b - a) for a, b in pairwise(ends)]


def _is_relative(name: str) -> bool:
    """Whether a name stays inside a folder, on every system."""
    windows = PureWindowsPath(name)
    return not (
        not name
        or "\0" in name
        or PurePosixPath(name).is_absolute()
        or windows.drive
        or windows.root
        or ".." in windows.parts
    )
