"""Inputs of a request besides its text: references, earlier takes, guidance, in every form.

A reference is ``(text, audio or codes)`` or a map with ``text``, ``audio`` or ``vq_codes``, and
``speaker``. An earlier take is a ``PreviousTake``, anything with ``text`` and ``codes`` (such as a
``Take``), a pair, or a map like an artefact. No torch in this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rt_drama3.config import is_number
from rt_drama3.errors import RequestError
from rt_drama3.scenes.takes import MAX_TAKES, PreviousTake, check_marks
from rt_drama3.text.rules import SPEAKERS, check_text, reference_transcript, with_speaker_tag

MAX_GUIDANCE = 20.0
_REFERENCE_KEYS = ("text", "audio", "vq_codes", "codes", "speaker")


def check_guidance(strength: object) -> float:
    """Returns the strength of guidance as a number; None and 0 are off.

    Raises:
        RequestError: it is not a number within bounds.
    """
    if strength is None:
        return 0.0
    if not is_number(strength) or not 0 <= strength <= MAX_GUIDANCE:
        raise RequestError(
            f"guidance is {strength!r}; use 0 (off) to {MAX_GUIDANCE:g} (4 is strong)."
        )
    return float(strength)


def read_references(entries: object) -> list[tuple[str, Any]]:
    """Returns references as pairs (text, audio or codes); speakers become tags in the texts.

    Raises:
        RequestError: an entry is malformed, or its speaker is out of range.
    """
    return [_reference(entry, number) for number, entry in _numbered(entries, "references")]


def read_previous_takes(entries: object) -> list[PreviousTake]:
    """Returns earlier takes in order; their codes are not yet checked.

    Raises:
        RequestError: an entry is malformed or its text is not valid, or there are too many.
    """
    found = [_take(entry, number) for number, entry in _numbered(entries, "previous_takes")]
    if len(found) > MAX_TAKES:
        raise RequestError(f"{len(found)} previous takes are over the limit of {MAX_TAKES}.")
    return found


def _numbered(entries: object, name: str) -> list[tuple[int, Any]]:
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Sequence):
        raise RequestError(f"{name} is a {type(entries).__name__}; use a list.")
    return list(enumerate(entries, 1))


def _reference(entry: Any, number: int) -> tuple[str, Any]:
    what = f"entry {number} of references"
    if isinstance(entry, tuple | list) and len(entry) == 2:
        return entry[0], entry[1]
    if not isinstance(entry, Mapping):
        raise RequestError(
            f"{what} is a {type(entry).__name__}; use a pair (text, audio or codes) or a map with "
            "text, audio or vq_codes, and speaker."
        )
    unknown = sorted(str(name) for name in entry if name not in _REFERENCE_KEYS)
    if unknown:
        known = ", ".join(_REFERENCE_KEYS)
        raise RequestError(f"{what}: {unknown[0][:40]!r} is unknown; use {known}.")
    _, source = _source(entry, what)
    if source is None:
        raise RequestError(f"{what} has neither audio nor vq_codes; give one of them.")
    text = check_text(entry.get("text"), f"the text of {what}")
    speaker = entry.get("speaker")
    return text if speaker is None else _tagged(speaker, text, what), source


def _tagged(speaker: object, text: str, what: str) -> str:
    if isinstance(speaker, bool) or not isinstance(speaker, int | np.integer):
        raise RequestError(f"{what}: speaker is {speaker!r}; use a whole number.")
    if not 0 <= speaker < SPEAKERS:
        raise RequestError(f"{what}: speaker is {speaker}; use 0 to {SPEAKERS - 1}.")
    tag = f"<|speaker:{speaker}|>"
    if with_speaker_tag(text) != text:  # the text has no tag
        return f"{tag} {text}"
    if not reference_transcript(text).startswith(tag):
        raise RequestError(
            f"{what}: speaker is {speaker}, but its text starts with another speaker's tag; omit "
            "one of them."
        )
    return text


def _take(entry: Any, number: int) -> PreviousTake:
    what = f"entry {number} of previous_takes"
    if isinstance(entry, PreviousTake):
        take = entry
    elif isinstance(entry, Mapping):
        check_marks(entry, what)
        name, source = _source(entry, what)
        text = check_text(entry.get("text"), f"the text of {what}")
        take = PreviousTake(text, **{} if source is None else {name: source})
    elif isinstance(entry, tuple | list) and len(entry) == 2:
        text, source = entry
        grid = np.asarray(source) if isinstance(source, list | np.ndarray) else None
        if grid is not None and grid.ndim == 2 and grid.dtype.kind in "iu":
            take = PreviousTake(text, grid)
        else:
            take = PreviousTake(text, audio=source)
    elif isinstance(getattr(entry, "text", None), str) and hasattr(entry, "codes"):
        take = PreviousTake(entry.text, entry.codes)
    else:
        raise RequestError(
            f"{what} is a {type(entry).__name__}; use a take, a pair (text, codes or audio), or a "
            "map with text and codes or audio."
        )
    check_text(take.text, f"the text of {what}")
    if take.codes is not None and take.audio is not None:
        raise RequestError(f"{what} has codes and audio; give one of them.")
    return take


def _source(entry: Mapping[str, Any], what: str) -> tuple[str, Any]:
    """Returns ("audio" or "codes", value) of a map; the value is None if it has neither."""
    given = [name for name in ("audio", "vq_codes", "codes") if entry.get(name) is not None]
    if len(given) > 1:
        raise RequestError(f"{what} has {' and '.join(given)}; give one of them.")
    if not given:
        return "audio", None
    return "audio" if given[0] == "audio" else "codes", entry[given[0]]
