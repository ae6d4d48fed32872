"""Directions in a text: what they are, the text without them, and which tokens both share.

A direction is a ``[bracket]`` or a pair of tags ``<whisper>..</whisper>``; to the model both are
ordinary text (docs/architecture.md, 6). Guidance and steering compare a directed text with its
undirected twin. The twin is made by deletion alone, so that everything else in it stands where it
stood. No torch in this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from rt_drama3.text.cutting import WHITE_SPACE, closing_tags

_SPECIAL = re.compile(r"<\|[^|<>]*\|>")  # turns begin at these; no direction reaches across one
_BRACKET = re.compile(r"[\[\]]")
_TAG = re.compile(
    rf"<(?P<slash>/?)(?P<name>[A-Za-z][\w-]*+)(?:[{WHITE_SPACE}][^<>\[\]]*)?>"  # as in ``MARKUP``
)
_CLOSING_MARK = re.compile(r"[.,;:!?\u2026\u3002\uff0c\uff01\uff1f)\]}]")


class Spans(NamedTuple):
    """What of a text stays: half-open ranges of characters, ascending and apart."""

    kept: tuple[tuple[int, int], ...]

    def of(self, text: str) -> str:
        """The characters that stay."""
        return "".join(text[start:end] for start, end in self.kept)


class Encoding(Protocol):
    """Tokens of a text and the characters that each of them covers."""

    @property
    def ids(self) -> list[int]: ...

    @property
    def offsets(self) -> list[tuple[int, int]]: ...


class Tokenizer(Protocol):
    """The part of ``tokenizers.Tokenizer`` that aligning texts needs."""

    def encode(self, sequence: str, /) -> Encoding: ...


def undirected(text: str) -> str:
    """The text without its directions: the undirected twin.

    Brackets go with what is in them, the outermost ones where they are nested; of a pair of tags
    only the tags go, what is between them is spoken either way. A bracket or tag without its
    partner in the same speaker's turn is plain text and stays. So does a speaker tag. White space
    that would be left twice, at the edge of the text or before a closing mark goes as well.

    Returns:
        The text itself where there are no directions; possibly nothing but speaker tags.
    """
    return undirected_spans(text).of(text)


def has_directions(text: str) -> bool:
    """Whether the text has a direction, so that its undirected twin is another text."""
    return undirected(text) != text


def undirected_spans(text: str) -> Spans:
    """What ``undirected`` keeps of a text."""
    kept: list[tuple[int, int]] = []
    done = 0
    for start, end in _turns(text):
        kept.append((done, start))
        kept += _kept(text, start, end)
        done = end
    kept.append((done, len(text)))
    return Spans(tuple(span for span in kept if span[0] < span[1]))


def shared_tokens(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Positions of the tokens that a text and its undirected twin share, in order.

    A token is shared when it is the same one over the same characters. Tokens at the seams of what
    was removed may differ and are then left out.

    Returns:
        Pairs (position in the text, position in the twin), ascending in both.
    """
    spans = undirected_spans(text)
    one, other = tokenizer.encode(text), tokenizer.encode(spans.of(text))
    back = [at for start, end in spans.kept for at in range(start, end)]  # twin -> text
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
    """A range of the twin's characters as a range of the text's."""
    if start == end:
        return (back[start], back[start]) if start < len(back) else (1 << 62, 1 << 62)
    return back[start], back[end - 1] + 1


def _turns(text: str) -> Iterator[tuple[int, int]]:
    """Ranges between special tokens, without the white space at their end."""
    done = 0
    edges = [found.span() for found in _SPECIAL.finditer(text)]
    for start, end in (*edges, (len(text), len(text))):
        yield done, done + len(text[done:start].rstrip(WHITE_SPACE))
        done = end


class _Mark(NamedTuple):
    """A piece of a direction that goes."""

    start: int
    end: int
    opens: bool  # an opening tag: what follows is the beginning of something


def _kept(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """What stays of the turn ``text[start:end]``, some of it possibly empty."""
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
        # The white space in front goes rather than that behind: a token is a word with the space
        # in front of it, and the word behind the direction is to keep its own.
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
    """The outermost brackets that have a partner, in order."""
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
    """Both tags of every pair outside the brackets."""
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
