"""Pronunciations: the lexicon of the tokenizer, and text as the model sees it.

``Lexicon.read`` gives the tokens that the voice's ``tokenizer.json`` gives for a word, with the
time span in which the teacher spoke each; a test holds them equal.
"""
# ruff: noqa: RUF001 - curly quotation marks

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from training.clips import PHONE_SECONDS, ClipInfo, Sentence
from training.vocabulary import IDS, LETTERS, MARKS, split_sounds

WORD = re.compile(rf"[{LETTERS}]+")
_PARTS = re.compile(rf"[{LETTERS}]+|[{re.escape(MARKS)}]")
Span = tuple[float, float]


class Spoken(NamedTuple):
    """A run of characters without a space in it, as written and as spoken.

    Attributes:
        text: lower case; letters and marks.
        sounds: phonemes that were voiced, each with its seconds.
        space: seconds of the space behind it, or None.
    """

    text: str
    sounds: list[tuple[str, Span]]
    space: Span | None


def spoken_words(clip: ClipInfo) -> Iterator[Spoken]:
    """The words of a clip in order; a sentence's last word has the pause behind it as space."""
    start = 0.0
    for sentence in clip.sentences:
        times = [start]
        for steps in sentence.durations:
            times.append(times[-1] + steps * PHONE_SECONDS)
        words = list(_sentence_words(sentence, times))
        if words and sentence is not clip.sentences[-1]:
            words[-1] = words[-1]._replace(space=(times[-2], times[-1]))
        yield from words
        start = times[-1]


def _sentence_words(sentence: Sentence, times: list[float]) -> Iterator[Spoken]:
    place = 0
    text, sounds = "", list[tuple[str, Span]]()
    for word in sentence.words:
        text += word.text.lower().replace("’", "'")
        for char in word.phones:
            if place < len(sentence.phones) and sentence.phones[place] == char:
                sounds.append((char, (times[place + 1], times[place + 2])))
                place += 1
        if not word.spaced:
            continue
        space = None
        if place < len(sentence.phones) and sentence.phones[place] == " ":
            space = (times[place + 1], times[place + 2])
            place += 1
        yield Spoken(text, sounds, space or _behind(sounds))
        text, sounds = "", []
    if text:
        yield Spoken(text, sounds, None)


def _behind(sounds: list[tuple[str, Span]]) -> Span:
    end = sounds[-1][1][1] if sounds else 0.0
    return (end, end)


def _bare(word: Spoken) -> tuple[str, str]:
    """The word without marks around it, and its phonemes without them."""
    phones = "".join(char for char, _ in word.sounds if char not in MARKS)
    return word.text.strip(MARKS), phones


def pronunciations(
    clips: Iterable[ClipInfo], words: list[str], ask: dict[str, str]
) -> dict[str, str]:
    """The usual pronunciation of each word: as the teacher mostly spoke it, else as it would.

    Args:
        clips: what was spoken.
        words: of the lexicon, most common first.
        ask: the teacher's reading of each word by itself.
    """
    heard: dict[str, Counter[str]] = defaultdict(Counter)
    for clip in clips:
        for word in spoken_words(clip):
            bare, phones = _bare(word)
            if WORD.fullmatch(bare) and phones:
                heard[bare][phones] += 1
    found = {}
    for entry in words:
        if entry in heard:
            found[entry] = heard[entry].most_common(1)[0][0]
        elif ask.get(entry):
            found[entry] = ask[entry]
    # Contractions and the like that are spoken often belong to it too.
    for entry, counts in heard.items():
        if "'" in entry and not entry.endswith("'s") and sum(counts.values()) >= 3:
            found.setdefault(entry, counts.most_common(1)[0][0])
    return {entry: phones for entry, phones in found.items() if _tokens(phones)}


def _tokens(phones: str) -> list[int]:
    return [token for token, _ in split_sounds(phones) if token >= 0]


@dataclass(frozen=True)
class Lexicon:
    """Words that are shown as phonemes, most common first."""

    words: dict[str, str]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.words, ensure_ascii=False, indent=0), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Lexicon:
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def read(self, word: Spoken, letters: bool = False) -> list[tuple[int, Span]]:
        """Tokens of a word with the seconds of each.

        Args:
            word: as spoken.
            letters: show its letters although it is known.
        """
        if not word.sounds:
            return []
        bare, phones = _bare(word)
        known = self.words.get(bare)
        if known == phones and not letters and word.text.rstrip(MARKS) == bare:
            return self._exact(word)
        start, end = word.sounds[0][1][0], word.sounds[-1][1][1]
        tokens = [
            token for part in _PARTS.findall(word.text) for token in self._part(part, letters)
        ]
        step = (end - start) / max(1, len(tokens))
        return [
            (token, (start + index * step, start + (index + 1) * step))
            for index, token in enumerate(tokens)
        ]

    def _exact(self, word: Spoken) -> list[tuple[int, Span]]:
        """Tokens with the very times of their phonemes, then the marks as written."""
        sounds = [(char, span) for char, span in word.sounds if char not in MARKS]
        found = []
        place = 0
        for token, size in split_sounds("".join(char for char, _ in sounds)):
            span = (sounds[place][1][0], sounds[place + size - 1][1][1])
            place += size
            if token >= 0:
                found.append((token, span))
        pause = next((span for char, span in word.sounds if char in MARKS), None)
        end = word.sounds[-1][1][1]
        marks = word.text[len(word.text.rstrip(MARKS)) :]
        return found + [(IDS[mark], pause or (end, end)) for mark in marks]

    def _part(self, part: str, letters: bool) -> list[int]:
        """Tokens of a word or mark as the tokenizer gives them."""
        if not letters:
            if part in self.words:
                return _tokens(self.words[part])
            stem = part.removesuffix("'s")
            if stem != part and stem in self.words:
                return [*_tokens(self.words[stem]), IDS["'"], IDS["s"]]
        return [IDS[char] for char in part]
