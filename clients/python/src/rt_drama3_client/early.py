"""EarlyStart: has the first words of an utterance spoken before their sentence is complete."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rt_drama3_client.errors import UsageError
from rt_drama3_client.sources import FLUSH, Piece

# Directions and special tokens: half of one means nothing, and none of them is a word.
_MARKUP = re.compile(r"\[[^\[\]]*\]|<\|[^|<>]*\|>")
_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"')\]\u201d\u2019\u00bb]*\s")
_WORD_END = re.compile(r"(?<=\w)\W*?\s+")


class EarlyStart:
    """Puts one flush into a text that comes in pieces: behind its first words.

    The server speaks whole sentences, as they complete. Where a language model takes its time over
    the first one, its first words can be spoken meanwhile; the price is the melody of a sentence
    that is spoken in two parts. The flush comes at the first end of a word behind so many words,
    never inside a ``[direction]``, and not at all where the first sentence is shorter, where it
    has tags such as ``<whisper>``, whose pairs belong together, or in scripts without spaces.

    Args:
        words: so many; None leaves the text as it is.

    Raises:
        UsageError: fewer than one.
    """

    def __init__(self, words: int | None) -> None:
        if words is not None and words < 1:
            raise UsageError(f"{words} words cannot be spoken early; at least 1, or None.")
        self._words = words
        self._text = ""  # what came, until it is settled where the flush goes

    def split(self, text: str) -> Iterator[Piece]:
        """The text, with ``FLUSH`` in the middle where it belongs into this piece."""
        if self._words is None:
            yield text
            return
        before = len(self._text)
        self._text += text
        place = self._place(self._words)
        if place is None:
            yield text
            return
        self._words, self._text = None, ""
        yield text[: place - before]
        yield FLUSH
        if rest := text[place - before :]:
            yield rest

    def _place(self, words: int) -> int | None:
        """Where the flush goes, in what came so far; behind what came before this piece."""
        # Markup becomes something of the same length that is no word and ends none.
        plain = _MARKUP.sub(lambda found: "\0" * len(found[0]), self._text)
        tag, bracket = plain.find("<"), plain.find("[")
        end = _SENTENCE_END.search(plain)
        limits = [place for place in (tag, bracket, end.start() if end else -1) if place >= 0]
        limit = min(limits, default=len(plain))
        for count, found in enumerate(_WORD_END.finditer(plain), start=1):
            if found.start() >= limit:
                break
            if count == words:
                return found.end()
        if tag >= 0 or end is not None:  # the sentence is complete, or must not be parted
            self._words, self._text = None, ""
        return None
