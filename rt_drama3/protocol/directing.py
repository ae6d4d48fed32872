"""Guidance, steering, earlier takes and code grids, as clients send them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rt_drama3.errors import RequestError
from rt_drama3.protocol.clips import from_base64, read_clip
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.order import Directing, Reference, as_speaker, checked_text, transcript
from rt_drama3.protocol.refusals import Refused, show
from rt_drama3.scenes.inputs import MAX_GUIDANCE
from rt_drama3.scenes.takes import check_marks
from rt_drama3.text.rules import SPEAKERS

MAX_VECTORS = 16
MAX_STEERING = 100.0
_LONGEST_NAME = 64
_LARGEST_CODE = (1 << 16) - 1


def read_directing(
    fields: Fields, facts: ModelFacts, limits: ProtocolLimits, *, base64_too: bool
) -> Directing:
    """``guidance``, ``steering`` and ``previous_takes`` of a request.

    Args:
        fields: the request.
        facts, limits: those of the server.
        base64_too: whether text is decoded as base64, for JSON.

    Raises:
        Refused: ``bad_field``, ``bad_text`` or ``bad_reference``.
    """
    return Directing(
        guidance=fields.number("guidance", 0, MAX_GUIDANCE),
        steering=tuple(_steering(entry) for entry in fields.maps("steering", MAX_VECTORS)),
        previous_takes=tuple(
            _take(entry, f"previous_takes[{number}]", facts, limits, base64_too)
            for number, entry in enumerate(fields.maps("previous_takes", limits.references))
        ),
    )


def read_reference(
    entry: Fields, facts: ModelFacts, limits: ProtocolLimits, *, base64_too: bool
) -> Reference:
    """A voice to follow: ``text``, ``audio`` or ``vq_codes``, and perhaps its ``speaker``.

    Raises:
        Refused: ``bad_field`` or ``bad_reference``.
    """
    text = transcript(entry, limits)
    speaker = entry.integer("speaker", 0, SPEAKERS - 1)
    if speaker is not None:
        text = as_speaker(text, speaker)
    if entry.value("vq_codes") is None:
        return read_clip(entry, text, limits, base64_too=base64_too)
    if entry.value("audio") is not None:
        raise Refused(
            "bad_reference",
            f"{entry.path('audio')} and vq_codes were both sent; send one of them.",
        )
    return Reference(text, codes=read_grid(entry, "vq_codes", facts, limits, base64_too))


def read_grid(
    entry: Fields, name: str, facts: ModelFacts, limits: ProtocolLimits, base64_too: bool
) -> npt.NDArray[np.int64]:
    """Codes ``[num_codebooks, frames]``, not yet checked against the codebooks' sizes.

    They are uint16 little-endian, row by row, as bytes or base64, or a list with a list of numbers
    for every codebook.

    Raises:
        Refused: ``bad_reference``.
    """
    value, books = entry.value(name), facts.num_codebooks
    if isinstance(value, list):
        codes = _from_lists(value, entry.path(name), books)
    else:
        if isinstance(value, str | memoryview) and base64_too:
            value = from_base64(value, entry.path(name))
        if not isinstance(value, bytes):
            how = "base64" if base64_too else "bin"
            raise entry.refuse(name, f"{how} is needed, or lists of numbers", "bad_reference")
        frames, rest = divmod(len(value), 2 * books)
        if rest or not frames:
            raise Refused(
                "bad_reference",
                f"{entry.path(name)} has {len(value)} bytes; {books} codes of 2 bytes per frame "
                "are needed.",
            )
        codes = np.frombuffer(value, "<u2").reshape(books, frames).astype(np.int64)
    seconds = codes.shape[1] * facts.frame_seconds
    if seconds > limits.reference_seconds:
        raise Refused(
            "bad_reference",
            f"{entry.path(name)} lasts {seconds:.1f} s; the limit is "
            f"{limits.reference_seconds:g} s.",
        )
    return codes


def _from_lists(value: list[object], name: str, books: int) -> npt.NDArray[np.int64]:
    rows = [row for row in value if isinstance(row, list) and row]
    if len(rows) != books or len(value) != books or len({len(row) for row in rows}) != 1:
        raise Refused("bad_reference", f"{name} is not {books} lists of codes of the same length.")
    for row in rows:
        for code in row:
            if type(code) is not int or not 0 <= code <= _LARGEST_CODE:
                raise Refused("bad_reference", f"{name} has an invalid code {show(code)}.")
    return np.array(rows, dtype=np.int64)


def _steering(entry: Fields) -> tuple[str, float]:
    name = entry.text("name", _LONGEST_NAME)
    strength = entry.number("strength", -MAX_STEERING, MAX_STEERING)
    if not name:
        raise entry.refuse("name", "the name of a steering vector is needed")
    if strength is None:
        raise entry.refuse("strength", "a number is needed; 0 is off, 1 is as measured")
    return name, strength


def _take(
    entry: Fields, what: str, facts: ModelFacts, limits: ProtocolLimits, base64_too: bool
) -> Reference:
    """An earlier take: an artefact, or ``text``, with codes or audio if there are any."""
    marks = {name: entry.value(name) for name in ("family", "schema")}
    try:
        check_marks(marks, what)
    except RequestError as error:
        raise Refused("bad_reference", str(error)) from None
    text = entry.text("text", limits.pending_characters)
    if text is None:
        raise entry.refuse("text", "what is said in the take is needed", "bad_reference")
    checked_text(text, f"the text of {what}", "bad_reference")
    given = [name for name in ("codes", "vq_codes", "audio") if entry.value(name) is not None]
    if len(given) > 1:
        raise Refused("bad_reference", f"{what} has {' and '.join(given)}; send one of them.")
    if not given:
        return Reference(text)
    if given == ["audio"]:
        return read_clip(entry, text, limits, base64_too=base64_too)
    return Reference(text, codes=read_grid(entry, given[0], facts, limits, base64_too))
