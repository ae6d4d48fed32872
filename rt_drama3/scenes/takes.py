"""Takes as artefacts: a text with its codes, stored for continuing or editing a scene.

An artefact is UTF-8 JSON::

    {"family": "fish_drama3", "schema": "drama3_take_v1", "text": "..", "codes": [[..], ..]}

``codes`` has a list of numbers per codebook. Earlier takes of a scene may also be audio, or text
alone, which is then spoken first. File sizes are checked before parsing. No torch in this file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rt_drama3.config import ModelConfig
from rt_drama3.errors import RequestError
from rt_drama3.text.prompt import check_codes
from rt_drama3.text.rules import check_text

FAMILY, SCHEMA = "fish_drama3", "drama3_take_v1"
MAX_ARTEFACT = 16 << 20  # bytes; a minute of speech has about 60,000
MAX_TAKES = 64  # in one file or request

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PreviousTake:
    """An earlier take of a scene, which becomes a turn before the next one.

    Attributes:
        text: its text, including directions and speaker tags.
        codes: int64 ``[num_codebooks, frames]``.
        audio: instead of codes: a file, its bytes, or another form of reference that
            ``Drama3.generate`` accepts. Without either, the text is spoken first.
    """

    text: str
    codes: Codes | None = field(default=None, repr=False)
    audio: Any = field(default=None, repr=False)


def dump_take(text: str, codes: npt.ArrayLike, **facts: object) -> bytes:
    """Returns a take as an artefact.

    Args:
        text: the spoken text.
        codes: integers ``[num_codebooks, frames]``.
        facts: additional values, such as the seed; readers ignore them.

    Raises:
        RequestError: the codes are not a 2-D array of integers, or empty.
    """
    grid = np.asarray(codes)
    if grid.ndim != 2 or grid.dtype.kind not in "iu" or not grid.size:
        raise RequestError(
            f"the codes of a take have shape {grid.shape} and dtype {grid.dtype}; use integers "
            "[num_codebooks, frames] with at least one frame."
        )
    whole = {**facts, "family": FAMILY, "schema": SCHEMA, "text": text, "codes": grid.tolist()}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def write_take(path: str | os.PathLike[str], text: str, codes: npt.ArrayLike, **facts: Any) -> None:
    """Writes an artefact to a file; see ``dump_take``.

    Raises:
        RequestError: the codes are invalid, or the file cannot be written.
    """
    data = dump_take(text, codes, **facts)
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise RequestError(
            f"cannot write the take {os.fspath(path)}: {error.strerror}; choose another path."
        ) from error


def load_takes(
    data: bytes | str, config: ModelConfig, what: str = "the takes"
) -> list[PreviousTake]:
    """Reads earlier takes, in order: a JSON list, or a single object.

    An entry is an artefact, or an object with ``text`` and, instead of ``codes``, ``audio`` (the
    path of a file) or nothing.

    Raises:
        RequestError: they are too large, malformed, or do not fit the checkpoint.
    """
    value = _parse(data, what)
    entries = value if isinstance(value, list) else [value]
    if not entries or len(entries) > MAX_TAKES:
        raise RequestError(f"{what}: {len(entries)} takes were given; use 1 to {MAX_TAKES}.")
    names = [what] if value is not entries else [f"{what}[{n}]" for n in range(len(entries))]
    return [_previous(entry, config, name) for entry, name in zip(entries, names, strict=True)]


def read_takes(path: str | os.PathLike[str], config: ModelConfig) -> list[PreviousTake]:
    """Reads takes from a file, see ``load_takes``; audio paths are relative to that file.

    Raises:
        RequestError: the file or its contents cannot be read.
    """
    place = Path(path)
    try:
        with place.open("rb") as file:  # pipes have no size to check beforehand
            data = file.read(MAX_ARTEFACT + 1)
    except OSError as error:
        raise RequestError(
            f"cannot read the takes in {place}: {error.strerror}; check the path."
        ) from error
    found = load_takes(data, config, str(place))
    return [
        take if take.audio is None else PreviousTake(take.text, audio=place.parent / take.audio)
        for take in found
    ]


def _previous(entry: object, config: ModelConfig, what: str) -> PreviousTake:
    """Checks and converts one entry; ``family`` and ``schema`` may both be omitted."""
    if not isinstance(entry, Mapping):
        raise RequestError(f'{what} is a {_kind(entry)}; use an object with "text" and "codes".')
    check_marks(entry, what)
    text = check_text(entry.get("text"), f"the text of {what}")
    codes, audio = entry.get("codes"), entry.get("audio")
    if codes is not None and audio is not None:
        raise RequestError(f"{what} has codes and audio; use one of them.")
    if audio is not None:
        if not isinstance(audio, str):
            raise RequestError(f"{what}: audio is a {_kind(audio)}; use the path of a file.")
        return PreviousTake(text, audio=audio)
    if codes is None:
        return PreviousTake(text)
    return PreviousTake(text, _grid(codes, config, what))


def check_marks(entry: Mapping[str, object], what: str) -> None:
    """Checks the family and schema of an artefact, if it has either.

    Raises:
        RequestError: one of them differs from those of this module.
    """
    marks = {name: entry.get(name) for name in ("family", "schema")}
    for name, wanted in (("family", FAMILY), ("schema", SCHEMA)):
        if any(mark is not None for mark in marks.values()) and marks[name] != wanted:
            raise RequestError(
                f"{what}: {name} is {_shown(marks[name])}, but only {wanted!r} is supported; use a "
                "take made with this model family."
            )


def _grid(codes: object, config: ModelConfig, what: str) -> Codes:
    """Checks and converts a list of codes per codebook."""
    rows = config.num_codebooks
    if not isinstance(codes, list) or not all(isinstance(row, list) for row in codes):
        raise RequestError(
            f"{what}: codes is not a list of {rows} lists; use one list per codebook."
        )
    if len(codes) != rows:
        raise RequestError(
            f"{what}: codes has {len(codes)} rows, but this checkpoint has {rows} codebooks; use "
            "a take of this checkpoint."
        )
    lengths = sorted({len(row) for row in codes})
    if len(lengths) > 1 or lengths[0] == 0:
        raise RequestError(
            f"{what}: the rows of codes have {lengths[0]} to {lengths[-1]} frames; all need the "
            "same number, at least 1."
        )
    for number, row in enumerate(codes):
        for frame, code in enumerate(row):
            # True is an int in Python, and 10**30 does not fit into int64.
            if type(code) is not int or not -(1 << 62) < code < 1 << 62:
                raise RequestError(
                    f"{what}: the code of codebook {number}, frame {frame} is {_shown(code)}; "
                    "use a whole number."
                )
    return check_codes(np.array(codes, dtype=np.int64), config, what)


def _parse(data: bytes | str, what: str) -> object:
    if len(data) > MAX_ARTEFACT:
        raise RequestError(
            f"{what} is over the limit of {MAX_ARTEFACT >> 20} MiB; check that it is the right "
            "file, or use fewer takes."
        )
    try:
        return json.loads(data, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} is not UTF-8 (byte {error.start}); save it as UTF-8.") from None
    except RecursionError:
        raise RequestError(f"{what} is nested too deeply for a take.") from None
    except ValueError as error:  # JSONDecodeError, and numbers of thousands of digits
        raise RequestError(f"{what} is not valid JSON ({error}); use an unmodified take.") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _kind(value: object) -> str:
    names: Sequence[tuple[type, str]] = (
        (bool, "boolean"),
        (dict, "JSON object"),
        (list, "list"),
        (str, "string"),
        (type(None), "null"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
