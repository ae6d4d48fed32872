"""Takes as artefacts: a text and the codes it was spoken with, to be kept and spoken on from.

An artefact is UTF-8 JSON::

    {"family": "fish_drama3", "schema": "drama3_take_v1", "text": "..", "codes": [[..], ..]}

``codes`` has a row of numbers per codebook. Earlier takes of a scene may also be given as audio, or
as text alone, which is then spoken first. What comes from a file is bounded before it is parsed. No
torch in this file.
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
LARGEST_ARTEFACT = 16 << 20  # bytes; a minute of speech has about 60,000
MOST_TAKES = 64  # in one file

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PreviousTake:
    """An earlier take of a scene, as a turn that the next one follows.

    Attributes:
        text: what was said; directions and speaker tags belong to it.
        codes: int64 ``[num_codebooks, frames]``.
        audio: instead of codes: a file, its bytes, or what else ``Drama3.generate`` takes for a
            reference. Without either, the text is spoken first.
    """

    text: str
    codes: Codes | None = field(default=None, repr=False)
    audio: Any = field(default=None, repr=False)


def dump_take(text: str, codes: npt.ArrayLike, **facts: object) -> bytes:
    """A take as an artefact.

    Args:
        text: what was said.
        codes: integers ``[num_codebooks, frames]``.
        facts: what else is worth keeping, such as the seed; readers pass over it.

    Raises:
        RequestError: the codes are no grid of integers, or empty.
    """
    grid = np.asarray(codes)
    if grid.ndim != 2 or grid.dtype.kind not in "iu" or not grid.size:
        raise RequestError(
            f"the codes of a take have shape {grid.shape} and are {grid.dtype}; integers "
            "[num_codebooks, frames] are needed, at least one frame."
        )
    whole = {**facts, "family": FAMILY, "schema": SCHEMA, "text": text, "codes": grid.tolist()}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def write_take(path: str | os.PathLike[str], text: str, codes: npt.ArrayLike, **facts: Any) -> None:
    """Writes an artefact to a file; see ``dump_take``.

    Raises:
        RequestError: the codes are no grid of integers, or the file cannot be written.
    """
    data = dump_take(text, codes, **facts)
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise RequestError(
            f"cannot write the take {os.fspath(path)}: {error.strerror}; choose another place."
        ) from error


def load_take(data: bytes | str, config: ModelConfig, what: str = "take") -> PreviousTake:
    """Reads one artefact.

    Args:
        data: its JSON.
        config: of the checkpoint that is to go on from it.
        what: its name in messages.

    Raises:
        RequestError: it is too large, no artefact, or does not fit the checkpoint.
    """
    value = _parse(data, what)
    if not isinstance(value, dict):
        raise RequestError(f"{what} is a {_kind(value)}; one take, a JSON object, is needed.")
    take = read_previous(value, config, what)
    if take.codes is None:
        raise RequestError(f"{what} has no codes; give what was written as an artefact.")
    return take


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
    if not entries or len(entries) > MOST_TAKES:
        raise RequestError(f"{what}: {len(entries)} takes were given; 1 to {MOST_TAKES} may be.")
    names = [what] if value is not entries else [f"{what}[{n}]" for n in range(len(entries))]
    return [read_previous(entry, config, name) for entry, name in zip(entries, names, strict=True)]


def read_takes(path: str | os.PathLike[str], config: ModelConfig) -> list[PreviousTake]:
    """Reads ``load_takes`` from a file; paths of audio in it are relative to it.

    Raises:
        RequestError: the file cannot be read, or its contents not used.
    """
    place = Path(path)
    try:
        with place.open("rb") as file:  # the size that a file claims need not be true of a pipe
            data = file.read(LARGEST_ARTEFACT + 1)
    except OSError as error:
        raise RequestError(
            f"cannot read the takes in {place}: {error.strerror}; check the path."
        ) from error
    found = load_takes(data, config, str(place))
    return [
        take if take.audio is None else PreviousTake(take.text, audio=place.parent / take.audio)
        for take in found
    ]


def read_previous(entry: object, config: ModelConfig, what: str = "take") -> PreviousTake:
    """An earlier take from an object.

    Args:
        entry: see ``load_takes``; ``family`` and ``schema`` may be left out, both or none.
        config: of the checkpoint.
        what: its name in messages.

    Raises:
        RequestError: a part is missing, unknown to this version or does not fit the checkpoint.
    """
    if not isinstance(entry, Mapping):
        raise RequestError(
            f'{what} is a {_kind(entry)}; an object with "text" and "codes" is needed.'
        )
    check_marks(entry, what)
    text = entry.get("text")
    check_text(text, f"the text of {what}")
    assert isinstance(text, str)
    codes, audio = entry.get("codes"), entry.get("audio")
    if codes is not None and audio is not None:
        raise RequestError(f"{what} has codes and audio; give one of them.")
    if audio is not None:
        if not isinstance(audio, str):
            raise RequestError(f"{what}: audio is a {_kind(audio)}; the path of a file is needed.")
        return PreviousTake(text, audio=audio)
    if codes is None:
        return PreviousTake(text)
    return PreviousTake(text, _grid(codes, config, what))


def check_marks(entry: Mapping[str, object], what: str) -> None:
    """Refuses what says of itself that it is something else.

    Raises:
        RequestError: there is a family or a schema, and not both are those of this module.
    """
    marks = {name: entry.get(name) for name in ("family", "schema")}
    for name, wanted in (("family", FAMILY), ("schema", SCHEMA)):
        if any(mark is not None for mark in marks.values()) and marks[name] != wanted:
            raise RequestError(
                f"{what}: {name} is {_shown(marks[name])}, but only {wanted!r} can be read. Use a "
                "take made with this model family, or convert it."
            )


def _grid(codes: object, config: ModelConfig, what: str) -> Codes:
    """Codes as lists of numbers, every one a whole number of its codebook."""
    rows = config.num_codebooks
    if not isinstance(codes, list) or not all(isinstance(row, list) for row in codes):
        raise RequestError(f"{what}: codes is no list of {rows} lists; give one per codebook.")
    if len(codes) != rows:
        raise RequestError(
            f"{what}: codes has {len(codes)} rows, but this checkpoint has {rows} codebooks. "
            "Use a take of this checkpoint."
        )
    lengths = sorted({len(row) for row in codes})
    if len(lengths) > 1 or lengths[0] == 0:
        raise RequestError(
            f"{what}: the rows of codes have {lengths[0]} to {lengths[-1]} frames; all must have "
            "the same number, at least 1."
        )
    for number, row in enumerate(codes):
        for frame, code in enumerate(row):
            # True is an int to Python, and 10**30 none to numpy.
            if type(code) is not int or not -(1 << 62) < code < 1 << 62:
                raise RequestError(
                    f"{what}: the code of codebook {number}, frame {frame} is {_shown(code)}; "
                    "a whole number is needed."
                )
    return check_codes(np.array(codes, dtype=np.int64), config, what)


def _parse(data: bytes | str, what: str) -> object:
    if len(data) > LARGEST_ARTEFACT:
        raise RequestError(
            f"{what} has more than {LARGEST_ARTEFACT >> 20} MiB, which no take has; check that it "
            "is the right file, or give fewer takes."
        )
    try:
        return json.loads(data, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} is not UTF-8 (byte {error.start}); save it as UTF-8.") from None
    except RecursionError:
        raise RequestError(f"{what} is nested too deeply to be a take.") from None
    except ValueError as error:  # JSONDecodeError among them, and numbers of thousands of digits
        raise RequestError(
            f"{what} is no valid JSON ({error}); give a take as it was written."
        ) from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _kind(value: object) -> str:
    names: Sequence[tuple[type, str]] = (
        (bool, "truth value"),
        (dict, "JSON object"),
        (list, "list"),
        (str, "string"),
        (type(None), "null"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
