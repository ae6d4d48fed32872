"""Directions in a text: finding them, removing them, and the tokens that both versions share.

A direction is a ``[bracket]`` or a pair of tags ``<whisper>..</whisper>``; to the model both are
ordinary text (docs/model.md, 6). Guidance and steering compare the text with the same text
without its directions. That version is made by deletion alone, so the rest keeps its order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from rt_drama3.text.rules import SPEAKER_TAG, has_speech
from rt_drama3.text.sentences import WHITE_SPACE, closing_tags

_SPECIAL = re.compile(r"<\|[^|<>]*\|>")  # turns begin at these; a direction ends within its turn
_BRACKET = re.compile(r"[\[\]]")
_TAG = re.compile(
    rf"<(?P<slash>/?)(?P<name>[A-Za-z][\w-]*+)(?:[{WHITE_SPACE}][^<>\[\]]*)?>"  # as in ``MARKUP``
)
_AROUND_TAG = re.compile(f"[{WHITE_SPACE}]*{SPEAKER_TAG.pattern}[{WHITE_SPACE}]*")
_CLOSING_MARK = re.compile(r"[.,;:!?\u2026\u3002\uff0c\uff01\uff1f)\]}]")


class Spans(NamedTuple):
    """The kept parts of a text: half-open character ranges, ascending and disjoint."""

    kept: tuple[tuple[int, int], ...]

    def of(self, text: str) -> str:
        """The characters in the kept ranges."""
        return "".join(text[start:end] for start, end in self.kept)


class Encoding(Protocol):
    """Tokens of a text and the character range of each."""

    @property
    def ids(self) -> list[int]: ...

    @property
    def offsets(self) -> list[tuple[int, int]]: ...


class Tokenizer(Protocol):
    """The part of ``tokenizers.Tokenizer`` that aligning texts needs."""

    def encode(self, sequence: str, /) -> Encoding: ...


def strip_directions(text: str) -> str:
    """Returns the text without its directions.

    Brackets are removed with their contents (the outermost pair when nested); of a pair of tags
    only the tags are removed, since the words between them are spoken either way. A bracket or tag
    without a partner in the same speaker's turn is plain text and stays, and so do speaker tags.
    White space that would be doubled, or left at the edge of the text or before a closing mark, is
    removed as well.

    Returns:
        The text itself if it has no directions; possibly only speaker tags.
    """
    return spans_without_directions(text).of(text)


def spoken_words(text: str) -> str:
    """The words alone, for checkpoints that would read directions and speaker tags aloud.

    Words and punctuation are unchanged; a line break remains where a speaker's turn began. The
    result is empty for a text that is only a direction.
    """
    lines = _AROUND_TAG.split(strip_directions(text))[::2]  # the odd items are speaker numbers
    return "\n".join(line for line in lines if line)


def has_words(text: str) -> bool:
    """Whether the text has something to speak (``has_speech``) besides its directions."""
    return has_speech(text if "[" not in text else strip_directions(text))


def can_be_spoken(text: str, directions_sound: bool) -> bool:
    """Whether the text has something to speak.

    Args:
        text: of any length.
        directions_sound: whether a direction alone counts, see ``PromptBuilder``.
    """
    return has_speech(text) if directions_sound else has_words(text)


def has_directions(text: str) -> bool:
    """Whether the text has a direction, so that ``strip_directions`` changes it."""
    return strip_directions(text) != text


def spans_without_directions(text: str) -> Spans:
    """The parts of a text that ``strip_directions`` keeps."""
    kept: list[tuple[int, int]] = []
    done = 0
    for start, end in _turns(text):
        kept.append((done, start))
        kept += _kept(text, start, end)
        done = end
    kept.append((done, len(text)))
    return Spans(tuple(span for span in kept if span[0] < span[1]))


def shared_tokens(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Positions of the tokens that a text shares with its version without directions.

    A token is shared if it has the same id and covers the same characters. Tokens next to a removed
    direction may differ and are then left out.

    Returns:
        Pairs (position in the text, position in the stripped text), ascending in both.
    """
    spans = spans_without_directions(text)
    one, other = tokenizer.encode(text), tokenizer.encode(spans.of(text))
    back = [at for start, end in spans.kept for at in range(start, end)]  # stripped text -> text
    mapped = [_mapped(back, start, end) for start, end in other.offsets]
    pairs, i, j = [], 0, 0
    while i < len(one.ids) and j < len(other.ids):
        if one.ids[i] == other.ids[j] and one.offsets[i] == mapped[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif one.offsets[i] <= mapped[j]:
            i += 1
        else:
            j += 1
    return pairs


def _mapped(back: list[int], start: int, end: int) -> tuple[int, int]:
    """Maps a character range of the stripped text to the original text."""
    if start == end:
        return (back[start], back[start]) if start < len(back) else (1 << 62, 1 << 62)
    return back[start], back[end - 1] + 1


def _turns(text: str) -> Iterator[tuple[int, int]]:
    """Ranges between special tokens, without trailing white space."""
    done = 0
    edges = [found.span() for found in _SPECIAL.finditer(text)]
    for start, end in (*edges, (len(text), len(text))):
        yield done, done + len(text[done:start].rstrip(WHITE_SPACE))
        done = end


class _Mark(NamedTuple):
    """A range to delete: a bracket with its contents, or one tag."""

    start: int
    end: int
    opens: bool  # an opening tag


def _kept(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The kept ranges of the turn ``text[start:end]``; some may be empty."""
    brackets = _brackets(text, start, end)
    kept: list[tuple[int, int]] = []
    done = start
    for mark in sorted([*brackets, *_tags(text, start, end, brackets)]):
        kept.append((done, mark.start))
        _drop_empty(kept)
        done = mark.end
        after = done
        while after < end and text[after] in WHITE_SPACE:
            after += 1
        # Drop the white space before the direction, not the one after it: a token is a word with
        # its leading space, so the next word keeps its token.
        if after > done or after == end or (not mark.opens and _CLOSING_MARK.match(text, after)):
            while kept and text[kept[-1][1] - 1] in WHITE_SPACE:
                kept[-1] = (kept[-1][0], kept[-1][1] - 1)
                _drop_empty(kept)
        if not kept and start == 0:
            done = after
    return [*kept, (done, end)]


def _drop_empty(spans: list[tuple[int, int]]) -> None:
    if spans[-1][0] >= spans[-1][1]:
        spans.pop()


def _brackets(text: str, start: int, end: int) -> list[_Mark]:
    """The outermost matched brackets, in order."""
    opened: list[int] = []
    found: list[_Mark] = []
    for bracket in _BRACKET.finditer(text, start, end):
        if bracket[0] == "[":
            opened.append(bracket.start())
        elif opened:
            begin = opened.pop()
            while found and found[-1].start > begin:
                found.pop()
            found.append(_Mark(begin, bracket.end(), False))
    return found


def _tags(text: str, start: int, end: int, brackets: list[_Mark]) -> Iterator[_Mark]:
    """Both tags of every matched pair outside the brackets."""
    inside = iter([*brackets, _Mark(len(text), len(text), False)])
    mark = next(inside)
    markup: list[re.Match[str]] = []
    for tag in _TAG.finditer(text, start, end):
        while mark.end <= tag.start():
            mark = next(inside)
        if tag.end() <= mark.start:
            markup.append(tag)
    opening = {tag.start(): tag for tag in markup}
    for at, close in closing_tags(markup).items():
        yield _Mark(at, opening[at].end(), True)
        yield _Mark(*close.span(), False)
