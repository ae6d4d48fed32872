"""Text normalisation: Markdown, SSML, numbers and signs as the words that a reader would say.

Voices that were trained on words alone need it; large models mostly read such text by themselves.
English only. See docs/text.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from rt_drama3.text.normalize.characters import without_symbols
from rt_drama3.text.normalize.markup import needs_mark, plain_line
from rt_drama3.text.normalize.numbers import say_numbers
from rt_drama3.text.normalize.short import say_addresses, say_short_forms
from rt_drama3.text.rules import has_speech
from rt_drama3.text.sentences import LINE_BREAK, WHITE_SPACE, blocks

__all__ = ["Normalized", "has_markup", "normalize", "normalized"]

_SPECIAL = re.compile(r"(<\|[^|<>]*\|>)")
_DIRECTION = re.compile(r"(\[[^\[\]]*\]|</?[A-Za-z][\w:-]*(?:\s[^<>]*)?>)")
_MARKUP = re.compile(r"[<\[`~&]")
_STRAY = re.compile(r"(?<!\S)[*_`~|^#=\\]+(?!\S)")
_MARKS_ALONE = re.compile(r"[\s.,;:!?…-]*")
_PASSES = 10  # more than any text was seen to need
_BLANKS = re.compile(f"[{WHITE_SPACE}]+")
_BEFORE_MARK = re.compile(r" +(?=[.,;:!?](?:\s|$))")
_REPEATED = re.compile(r"([.!?])[.,;:]+(?=\s|$)|[,;]+([.!?:])|([,;:])[,;:]+(?=\s|$)")


class Normalized(NamedTuple):
    """What ``normalize`` makes of a text.

    Attributes:
        text: the words to speak, on one line per speaker's turn.
        notices: a sentence for each kind of thing that is not spoken.
    """

    text: str
    notices: tuple[str, ...]


def normalize(text: str) -> Normalized:
    """Writes text as it should be read aloud.

    Directions in ``[brackets]``, pairs of unknown tags and speaker tags stay. Normalising again
    changes nothing, and text that consists of words and punctuation stays as it is, except that
    line breaks become pauses or spaces.

    Args:
        text: of any length; it is read as English where its letters are mostly Latin.
    """
    notices: dict[str, None] = {}
    for _ in range(_PASSES):  # what is left of odd markup may look like other markup
        done, text = text, _normalize(text, notices)
        if text == done:
            break
    return Normalized(text, tuple(notices))


@lru_cache(256)
def normalized(segment: str) -> str:
    """The text of ``normalize``, cached; the engine asks for that of a segment several times.

    Normalising cannot make a token of the prompt's structure: it writes no ``<|``.
    """
    return normalize(segment).text


def has_markup(text: str) -> bool:
    """Whether a text may have what is not spoken: ``normalize`` has notices of no other text."""
    return _MARKUP.search(text) is not None


def keeps_speech(segment: str, speaks: Callable[[str], bool] = has_speech) -> bool:
    """Whether a segment with something to speak still has some once it is normalised.

    Only markup can be left out, so prose is not normalised for the answer.
    """
    return not has_markup(segment) or speaks(normalized(segment))


def _normalize(text: str, notices: dict[str, None]) -> str:
    turns: list[str] = []
    for number, part in enumerate(_SPECIAL.split(text)):
        if number % 2:
            turns.append(part)
        elif words := _turn(part, notices):
            turns.append((" " if turns else "") + words)
    return "".join(
        f"\n{turn}" if number and turn.startswith("<|") else turn
        for number, turn in enumerate(turns)
    )


def _turn(text: str, notices: dict[str, None]) -> str:
    lines: list[str] = []
    for block in blocks(text):
        plain, ends = plain_line(block, notices.setdefault)
        # Tags that pause have become line breaks, short pauses vertical tabs.
        said = [_said(line) for line in LINE_BREAK.split(plain.replace("\v", ","))]
        if lines and any(said):
            lines[-1] = _closed(lines[-1])
        said = [line for line in said if line]
        lines += [_closed(line) for line in said[:-1]]
        lines += [_closed(line) if ends else line for line in said[-1:]]
    return " ".join(lines)


def _closed(line: str) -> str:
    return line + "." if needs_mark(line) else line


def _said(line: str) -> str:
    """The words of one plain line."""
    if _is_latin(line):
        parts = _DIRECTION.split(line)
        parts[::2] = [say_numbers(say_addresses(say_short_forms(part))) for part in parts[::2]]
        line = "".join(parts)
    line = _BLANKS.sub(" ", _STRAY.sub("", line))
    line = _BEFORE_MARK.sub("", line)
    line = _REPEATED.sub(lambda found: found[1] or found[2] or found[3], line)
    line = line.strip(WHITE_SPACE)
    return "" if _MARKS_ALONE.fullmatch(line) else line


def _is_latin(text: str) -> bool:
    letters = [char for char in without_symbols(text) if char.isalpha()]
    return 2 * sum(char < "\u0250" for char in letters) >= len(letters)
