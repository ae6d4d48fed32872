"""``--tensor-map``: where official tensors are in files whose names are unknown.

A JSON object; keys are official names, values say where the tensor is::

    {
      "model.language_model.layers.{L}.mlp.experts.{E}.gate_proj.weight": "blocks.{L}.gates",
      "model.language_model.layers.{L}.mlp.gate.weight": {"name": "routers.{L}", "transpose": true},
      "model.language_model.norm.weight": {"name": "last_norm", "offset": 1},
      "lm_head.weight": [{"name": "head", "rows": [1, 4097]}, {"name": "head", "rows": [0, 1]}]
    }

``{L}`` and ``{E}`` stand for numbers. A stack of experts is named without ``{E}``. ``rows`` takes
a part of the stored rows, a list puts parts below each other, ``transpose`` swaps the dims of a
matrix that is stored ``[in, out]``, and ``offset`` is what was added to the stored numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from rt_drama3.checkpoint.files import read_json
from rt_drama3.checkpoint.names import Claim
from rt_drama3.checkpoint.stored import Stored
from rt_drama3.checkpoint.views import Piece
from rt_drama3.errors import CheckpointError

_KEYS = {"name", "rows", "transpose", "offset"}


@dataclass(frozen=True)
class Part:
    """A stored tensor, or rows of it."""

    name: str
    rows: tuple[int, int] | None = None
    transpose: bool = False
    offset: float = 0.0


def read_tensor_map(path: Path) -> dict[str, list[Part]]:
    """Reads the file: official name -> parts from top to bottom.

    Raises:
        CheckpointError: it is not JSON, or says something that is not known.
    """
    values = read_json(path)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must be a JSON object of official names.")
    found = {}
    for official, value in values.items():
        parts = value if isinstance(value, list) else [value]
        found[official] = [_part(path, official, part) for part in parts]
        if not parts:
            raise CheckpointError(f"{path}: {official} has no part.")
        if (
            len({(p.transpose, p.offset) for p in found[official]} | {(False, 0.0)})
            > 1
            < len(parts)
        ):
            raise CheckpointError(
                f"{path}: {official} has parts, so it takes names and rows alone."
            )
    return found


def _part(path: Path, official: str, value: object) -> Part:
    if isinstance(value, str):
        return Part(value)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise CheckpointError(
            f"{path}: {official} is {value!r}; a name, or an object with a name, is needed."
        )
    if unknown := set(value) - _KEYS:
        raise CheckpointError(
            f"{path}: {official} has the unknown key {sorted(unknown)[0]!r}; the known keys are "
            f"{', '.join(sorted(_KEYS))}."
        )
    rows, offset = value.get("rows"), value.get("offset", 0)
    whole = isinstance(rows, list) and len(rows) == 2 and all(type(n) is int for n in rows)
    if rows is not None and not (whole and 0 <= rows[0] < rows[1]):
        raise CheckpointError(f"{path}: rows of {official} is {rows!r}; [first, end] is needed.")
    if isinstance(offset, bool) or not isinstance(offset, int | float):
        raise CheckpointError(f"{path}: offset of {official} is {offset!r}; a number is needed.")
    transpose = value.get("transpose", False)
    if not isinstance(transpose, bool):
        raise CheckpointError(
            f"{path}: transpose of {official} is {transpose!r}; true or false is needed."
        )
    return Part(value["name"], tuple(rows) if rows else None, transpose, float(offset))


def mapped(
    rules: Mapping[str, list[Part]], stored: Mapping[str, Stored], path: Path
) -> Iterator[tuple[str, Claim]]:
    """The stored name and the claim of everything that a map names.

    Raises:
        CheckpointError: it names a tensor that is not there, or more rows than it has.
    """
    for official, parts in rules.items():
        start = 0
        for part in parts:
            found = list(_matches(official, part, stored))
            if not found:
                raise CheckpointError(f"{path}: there is no tensor {part.name} for {official}.")
            for name, target, rows, shape in found:
                if not 0 <= rows.start < rows.stop <= stored[name].rows:
                    raise CheckpointError(
                        f"{path}: {official} needs rows {rows.start} to {rows.stop} of {name}, "
                        f"which has {stored[name].rows}."
                    )
                undo = None
                if part.transpose or part.offset:
                    undo = partial(_undone, transpose=part.transpose, offset=part.offset)
                if part.transpose:
                    shape = (stored[name].columns, rows.stop - rows.start)
                first = start if len(parts) > 1 else None
                yield name, Claim(target, Piece(stored[name], rows), first, shape, undo)
            start += rows.stop - rows.start


def _matches(
    official: str, part: Part, stored: Mapping[str, Stored]
) -> Iterator[tuple[str, str, slice, tuple[int, ...] | None]]:
    """Stored name, official name, rows, and shape if it is not that of the rows."""
    pattern = re.compile(
        re.escape(part.name).replace(r"\{L\}", r"(?P<L>\d+)", 1).replace(r"\{E\}", r"(?P<E>\d+)", 1)
    )
    for name, matrix in stored.items():
        match = pattern.fullmatch(name)
        if match is None:
            continue
        target = official
        for key, number in match.groupdict().items():
            target = target.replace(f"{{{key}}}", number)
        if "{E}" in target and len(matrix.shape) == 3:
            height = matrix.shape[1]
            first, end = part.rows or (0, height)
            for expert in range(matrix.shape[0]):
                rows = slice(expert * height + first, expert * height + end)
                yield name, target.replace("{E}", str(expert)), rows, None
        elif part.rows is not None:
            yield name, target, slice(*part.rows), None
        else:
            yield name, target, slice(0, matrix.rows), matrix.shape


def _undone(rows: Tensor, transpose: bool, offset: float) -> Tensor:
    values = rows.double() - offset if offset else rows
    return values.t() if transpose else values
