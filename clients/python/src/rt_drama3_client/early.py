"""EarlyStart: speaks the first words of an utterance before their sentence is complete."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rt_drama3_client.errors import UsageError
from rt_drama3_client.sources import FLUSH, Part

# Directions and special tokens: they must not be split, and do not count as words.
_MARKUP = re.compile(r"\[[^\[\]]*\]|<\|[^|<>]*\|>")
_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"')\]\u201d\u2019\u00bb]*\s")
_WORD_END = re.compile(r"(?<=\w)\W*?\s+")


class EarlyStart:
    """Inserts one flush into a streamed text, after its first words.

    The server speaks sentences as they complete. If a language model is slow to finish the first
    one, its first words can be spoken meanwhile, at the price of the prosody of a sentence that is
    spoken in two parts. The flush comes at the first word boundary after ``words`` words, never
    inside a ``[direction]``, and not at all if the first sentence is shorter, if it has tags such
    as ``<whisper>``, whose pairs belong together, or in scripts without spaces.

    Args:
        words: number of words; None leaves the text unchanged.

    Raises:
        UsageError: fewer than one.
    """

    def __init__(self, words: int | None) -> None:
        if words is not None and words < 1:
            raise UsageError(f"cannot speak {words} words early; use at least 1, or None.")
        self._words = words
        self._text = ""  # text so far, until the position of the flush is known

    def split(self, text: str) -> Iterator[Part]:
        """Yields the text, with ``FLUSH`` in the middle if it belongs into this part."""
        if self._words is None:
            yield text
            return
        before = len(self._text)
        self._text += text
        position = self._position(self._words)
        if position is None:
            yield text
            return
        self._words, self._text = None, ""
        yield text[: position - before]
        yield FLUSH
        if rest := text[position - before :]:
            yield rest

    def _position(self, words: int) -> int | None:
        """Returns the position of the flush in the text so far, after the earlier parts."""
        # Markup is replaced by characters of the same length that are not part of words.
        plain = _MARKUP.sub(lambda found: "\0" * len(found[0]), self._text)
        tag, bracket = plain.find("<"), plain.find("[")
        end = _SENTENCE_END.search(plain)
        limits = [
            position for position in (tag, bracket, end.start() if end else -1) if position >= 0
        ]
        limit = min(limits, default=len(plain))
        for count, found in enumerate(_WORD_END.finditer(plain), start=1):
            if found.start() >= limit:
                break
            if count == words:
                return found.end()
        if tag >= 0 or end is not None:  # the sentence is complete, or must not be split
            self._words, self._text = None, ""
        return None
