"""Cutting one speaker's turn into segments at natural pauses, and never inside a tag.

Directions in ``[brackets]``, special tokens ``<|...|>`` and paired tags ``<tag>...</tag>`` are
ordinary text to the model (docs/model.md, 6), but half of one is meaningless. Each step
reads a bounded window or passes over the text once, so the time is linear for any input.
"""
# ruff: noqa: RUF001 - punctuation of many scripts is the subject here

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from rt_drama3.errors import RequestError
from rt_drama3.text.sentences import (
    CLOSERS,
    MARKUP,
    THEN_SPACE,
    WHITE_SPACE,
    abbreviates,
    closing_tags,
    sentence_ends,
)

MIN_ROOM = 16  # bytes of text that must fit between the tags repeated around a segment

_SPACE = re.compile(f"[{WHITE_SPACE}]")
_SPACES = re.compile(f"[{WHITE_SPACE}]+")
_NO_BREAK_SPACES = "\xa0\u2007\u202f"

_CLAUSE_END = re.compile(rf"[,;:،؛–]{CLOSERS}{THEN_SPACE}|[—、，：；､]{CLOSERS}")

# Characters that extend the one before them, besides the combining marks (category M).
_CONTINUES = re.compile(
    "[\u200c\u200d\u0e33\u0eb3\u1160-\u11ff\ud7b0-\ud7ff\uff9e\uff9f"
    "\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
)
_ZERO_WIDTH_JOINER = "\u200d"
_VIRAMA = 9  # canonical combining class; joins the consonants on both sides


def size(text: str) -> int:
    """Length of the text in UTF-8 bytes."""
    return len(text.encode())


def cut_turn(text: str, budget: int) -> list[str]:
    """Cuts one speaker's turn into parts that fit into a segment, in order.

    A part ends at the last sentence end that fits; failing that at the last clause mark or space
    that leaves no tiny remainder of the sentence, then at any space, then between two grapheme
    clusters. A pair of tags that is too long for one part is closed at the cut and reopened after
    it; a bracket without a partner is plain text. Only white space at the cuts is dropped, and
    other runs of it are shortened if the turn has to be cut at all.

    Args:
        text: without speaker tags and line breaks.
        budget: UTF-8 bytes per part.

    Raises:
        RequestError: a cue, a special token or the tags around one place exceed the budget.
    """
    text = text.strip(WHITE_SPACE)
    if size(text) <= budget:
        return [text] if text else []
    turn = _mark(_SPACES.sub(lambda run: run[0][0], text), budget)
    parts: list[str] = []
    start = 0
    while start < len(turn.text):
        opened = "".join(pair.opening for pair in turn.around(start))
        end = _part_end(turn, start, budget - size(opened))
        closed = "".join(pair.closing for pair in reversed(turn.around(end)))
        parts.append(opened + turn.text[start:end].rstrip(WHITE_SPACE) + closed)
        start = end + bool(_SPACE.match(turn.text, end))
    return parts


class _Pair(NamedTuple):
    """A pair of tags longer than the budget; a half-open range with both tags."""

    start: int
    end: int
    opening: str
    closing: str
    parent: int  # index of the long pair that encloses it, or -1


class _Turn(NamedTuple):
    """A turn and the places where it must not be cut."""

    text: str
    glued: bytearray  # 1 where a cut would split a cue, a tag, or a pair that fits the budget
    pairs: list[_Pair]  # by start

    def around(self, at: int) -> list[_Pair]:
        """The long pairs that a cut at this place would split, outermost first."""
        index = bisect_left(self.pairs, at, key=lambda pair: pair.start) - 1
        found: list[_Pair] = []
        while index >= 0:
            pair = self.pairs[index]
            if pair.end > at:
                found.append(pair)
            index = pair.parent
        return found[::-1]

    def glue(self, start: int, end: int) -> None:
        self.glued[start:end] = b"\1" * (end - start)


def _mark(text: str, budget: int) -> _Turn:
    """Finds what must stay whole when the text is cut into parts of ``budget`` bytes."""
    turn = _Turn(text, bytearray(len(text) + 1), [])
    markup = list(MARKUP.finditer(text))
    closing = closing_tags(markup)
    room, done = budget, 0
    outer: list[tuple[int, int]] = []  # (index of an enclosing long pair, bytes of its tags)
    for found in markup:
        start, end = found.span()
        while outer and turn.pairs[outer[-1][0]].end <= start:
            room += outer.pop()[1]
        if start < done:
            continue  # inside a pair that stays whole
        close = closing.get(start)
        if close:
            end = close.end()
        if end - start <= room and size(text[start:end]) <= room:
            turn.glue(start + 1, end)
            done = end
        elif close:
            # White space next to the tags stays with them; a part could be empty otherwise.
            inside = found.end() + bool(_SPACE.match(text, found.end()))
            behind = close.start() - bool(_SPACE.match(text, close.start() - 1))
            turn.glue(start + 1, inside + 1)
            turn.glue(behind, end)
            taken = size(text[start:inside]) + size(text[behind:end])
            if room - taken < MIN_ROOM:
                raise _too_long(found[0], budget)
            parent = outer[-1][0] if outer else -1
            outer.append((len(turn.pairs), taken))
            turn.pairs.append(_Pair(start, end, found[0], close[0], parent))
            room -= taken
        elif not found["name"]:
            raise _too_long(found[0], budget)
    return turn


def _too_long(markup: str, budget: int) -> RequestError:
    shown = markup if len(markup) <= 40 else markup[:37] + "..."
    return RequestError(
        f"text: {shown!r} ({size(markup)} bytes) does not fit into a segment of {budget} "
        "bytes together with the tags around it. Shorten it, or nest fewer tags."
    )


def _part_end(turn: _Turn, start: int, room: int) -> int:
    """The best end for the part of up to ``room`` bytes that begins at ``start``."""
    text = turn.text
    head = text[start : start + room].encode()[:room].decode(errors="ignore")
    last = start + len(head)
    if last == len(text):
        return last

    def fits(at: int) -> bool:
        closing = sum(size(pair.closing) for pair in turn.around(at))
        return not turn.glued[at] and (not closing or size(text[start:at]) + closing <= room)

    def best(places: Sequence[int], least: int = start + 1, most: int = last) -> int | None:
        return next((at for at in reversed(places) if least <= at <= most and fits(at)), None)

    end = best(sentence_ends(text, start, last))
    if end is not None:
        return end
    # The sentence itself must be cut; leave no tiny remainder on either side.
    margin = (last - start) // 4
    beyond = min(len(text), last + margin)
    sentence_end = next(iter(sentence_ends(text, last, beyond)), beyond)
    middle = (start + max(1, margin), min(last, sentence_end - margin))
    clauses = [found.end() for found in _CLAUSE_END.finditer(text, start, last + 1)]
    spaces = [found.start() for found in _SPACE.finditer(text, start, last + 1)]
    good_spaces = [at for at in spaces if _can_split(text, at)]
    for places, least, most in (
        (clauses, *middle),
        (good_spaces, *middle),
        (good_spaces, start + 1, last),
        (spaces, start + 1, last),
        (clauses, start + 1, last),
    ):
        end = best(places, least, most)
        if end is not None:
            return end
    # _mark reserved room for a character or a cue with all enclosing tags, so some place fits.
    anywhere = [at for at in range(start + 1, last + 1) if fits(at)]
    whole = (at for at in reversed(anywhere) if not _inside_character(text, start, at))
    return next(whole, anywhere[-1])


def _can_split(text: str, space: int) -> bool:
    """Whether a cut at a space is acceptable, unlike in "Dr. Jones" or "1 000"."""
    before, after = text[space - 1], text[space + 1 : space + 2]
    if text[space] in _NO_BREAK_SPACES or (before.isdigit() and after.isalnum()):
        return False
    return before != "." or not abbreviates(text, space - 1)


def _inside_character(text: str, start: int, at: int) -> bool:
    """Whether a cut would split a grapheme cluster: accents, emoji, flags."""
    before, after = text[at - 1], text[at]
    if unicodedata.category(after)[0] == "M" or _CONTINUES.match(after):
        return True
    if before == _ZERO_WIDTH_JOINER or unicodedata.combining(before) == _VIRAMA:
        return True
    flag = at  # two regional indicators are one flag
    while flag > start and "\U0001f1e6" <= text[flag - 1] <= "\U0001f1ff":
        flag -= 1
    return (at - flag) % 2 == 1 and "\U0001f1e6" <= after <= "\U0001f1ff"
