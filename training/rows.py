"""Clips as rows for the language model: single takes, long segments, and scenes of several turns.

A segment of text may hold several sentences, and a later one sees earlier ones as turns of the same
scene; both are assembled here from clips of one or two sentences, so that the teacher need not
read long texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from training.clips import FRAME_SAMPLES, SAMPLE_RATE, ClipInfo
from training.lexicon import Lexicon, spoken_words
from training.model import Batch
from training.vocabulary import (
    ANSWER,
    DIRECTION_CHARS,
    END,
    IDS,
    NEWLINE,
    SPACE,
    SYSTEM,
    TEXT_TOKENS,
    USER,
)

FRAME_SECONDS = FRAME_SAMPLES / SAMPLE_RATE
SEGMENT_CHARS = 290  # text of one segment, as the product splits it
LONGEST = 1100  # rows of a sequence
_SLACK = 0.01  # seconds around a frame in which its text may lie
_OTHER_SPEAKER = 0.08  # share of turns with a tag other than the first
_UNSAID = 0.01  # share of turns without words, which end immediately
_ROUNDING = 8  # rows of a batch are a multiple

Ints = npt.NDArray[np.int64]
Random = np.random.Generator


class Text(NamedTuple):
    """Tokens, the seconds in which each is spoken ``[n, 2]``, and where each word starts."""

    tokens: Ints
    seconds: npt.NDArray[np.float32]
    starts: Ints


@dataclass(frozen=True, eq=False)
class Utterance:
    """A clip ready to be put into rows: its text as phonemes and as letters, and its codes."""

    phones: Text
    letters: Text
    codes: npt.NDArray[np.int16]
    style: str
    chars: int

    @property
    def size(self) -> int:
        """Rows it takes by itself, about."""
        return len(self.codes) + len(self.phones.tokens) + 15


def utterance(clip: ClipInfo, codes: npt.NDArray[np.int16], lexicon: Lexicon) -> Utterance:
    """Prepares a clip with its codes ``[frames, books]``."""
    return Utterance(
        _text(clip, lexicon, False), _text(clip, lexicon, True), codes, clip.style, len(clip.text)
    )


def _text(clip: ClipInfo, lexicon: Lexicon, letters: bool) -> Text:
    tokens: list[int] = []
    seconds: list[tuple[float, float]] = []
    starts = []
    last = None
    for word in spoken_words(clip):
        found = lexicon.read(word, letters)
        if last is not None:
            tokens.append(SPACE)
            seconds.append(last)
        starts.append(len(tokens))
        for token, span in found:
            tokens.append(token)
            seconds.append(span)
        last = word.space or (seconds[-1] if seconds else (0.0, 0.0))
    return Text(
        np.array(tokens, np.int64),
        np.array(seconds, np.float32).reshape(-1, 2),
        np.array([*starts, len(tokens)], np.int64),
    )


def _mixed(one: Utterance, spelled: float, random: Random) -> tuple[Ints, npt.NDArray[np.float32]]:
    """Its tokens and seconds, each word as letters with probability ``spelled``."""
    if spelled == 0:
        return one.phones.tokens, one.phones.seconds
    choice = random.random(len(one.phones.starts) - 1) < spelled
    tokens, seconds = [], []
    for number, as_letters in enumerate(choice):
        text = one.letters if as_letters else one.phones
        part = slice(text.starts[number], text.starts[number + 1])
        tokens.append(text.tokens[part])
        seconds.append(text.seconds[part])
    return np.concatenate(tokens), np.concatenate(seconds)


class Turn(NamedTuple):
    """One segment of text and its audio: tokens, their seconds, codes."""

    tokens: Ints
    seconds: npt.NDArray[np.float32]
    codes: Ints


def turn(parts: Sequence[Utterance], random: Random, augment: bool) -> Turn:
    """Joins utterances into one segment.

    Args:
        parts: at least one; only a single one may have a style.
        random: of speaker tags, spelling, pauses and turns without words, of which only the style
            is left.
        augment: whether to vary those; otherwise speaker 0, phonemes and no extra pause.
    """
    spelled = random.choice([0.0, 0.0, 0.15, 0.4]) if augment else 0.0
    speaker = random.integers(1, 16) if augment and random.random() < _OTHER_SPEAKER else 0
    tokens = [np.array([IDS[f"<|speaker:{speaker}|>"], SPACE])]
    seconds = [np.zeros((2, 2), np.float32)]
    codes: list[npt.NDArray[np.int16]] = []
    begin = 0
    unsaid = augment and random.random() < _UNSAID
    for number, part in enumerate(parts):
        if part.style:
            tokens.append(np.array([IDS[DIRECTION_CHARS[part.style]], SPACE]))
            seconds.append(np.zeros((2, 2), np.float32))
        if unsaid:
            codes.append(part.codes[:0])
            break
        if number:
            pause = int(random.integers(0, 5)) if augment else 2
            codes.append(np.repeat(codes[-1][-1:], pause, 0))
            begin += pause
            between = [SPACE]
            if augment and random.random() < _OTHER_SPEAKER:
                between = [NEWLINE, IDS[f"<|speaker:{random.integers(0, 16)}|>"], SPACE]
            tokens.append(np.array(between))
            span = ((begin - pause - 2) * FRAME_SECONDS, (begin + 1) * FRAME_SECONDS)
            seconds.append(np.full((len(between), 2), span, np.float32))
        part_tokens, part_seconds = _mixed(part, spelled, random)
        tokens.append(part_tokens)
        seconds.append(part_seconds + np.float32(begin * FRAME_SECONDS))
        codes.append(part.codes)
        begin += len(part.codes)
    return Turn(
        np.concatenate(tokens), np.concatenate(seconds), np.concatenate(codes).astype(np.int64)
    )


class Rows(NamedTuple):
    """One sequence; see ``Batch`` for the fields, of which these are without labels."""

    main: Ints
    codes: Ints
    audio: npt.NDArray[np.bool_]
    target: npt.NDArray[np.bool_]
    text_at: npt.NDArray[np.bool_]


def scene(turns: Sequence[Turn]) -> Rows:
    """Turns as one sequence of rows, as ``rt_drama3.text.prompt`` would build it."""
    main: list[Ints] = [np.array(SYSTEM)]
    size = len(SYSTEM) + sum(
        len(USER) + len(t.tokens) + len(ANSWER) + len(t.codes) + 2 for t in turns
    )
    books = turns[0].codes.shape[1]
    codes = np.zeros((size - 1, books), np.int64)
    audio, target = np.zeros(size - 1, np.bool_), np.zeros(size - 1, np.bool_)
    text_at = np.zeros((size - 1, size - 1), np.bool_)
    row = len(SYSTEM)
    for number, one in enumerate(turns):
        first_text = row + len(USER)
        end_text = first_text + len(one.tokens)
        first = end_text + len(ANSWER)
        end = first + len(one.codes)
        main += [np.array(USER), one.tokens, np.array(ANSWER), TEXT_TOKENS + one.codes[:, 0]]
        main.append(np.array([END, NEWLINE] if number + 1 < len(turns) else [END]))
        codes[first:end] = one.codes
        audio[first:end] = True
        target[first : end + 1] = True
        begin = np.arange(len(one.codes))[:, None] * FRAME_SECONDS
        spoken = (one.seconds[None, :, 0] < begin + FRAME_SECONDS + _SLACK) & (
            one.seconds[None, :, 1] > begin - _SLACK
        )
        text_at[first:end, first_text:end_text] = spoken
        text_at[first:end, end_text] = ~spoken.any(1)  # silence: the mark behind the text
        row = end + 2
    return Rows(np.concatenate(main), codes, audio, target, text_at)


def corrupt(rows: Rows, random: Random) -> tuple[Ints, Ints]:
    """Main tokens and codes with some frames mixed up, as the model's own will be."""
    share = random.choice([0.0, 0.05, 0.15])
    main, codes = rows.main.copy(), rows.codes.copy()
    places = np.flatnonzero(rows.audio)
    if share == 0 or not len(places):
        return main, codes
    hit = random.random(len(places)) < share
    other = places[random.integers(0, len(places), len(places))]
    for book in range(codes.shape[1]):
        chosen = hit & (random.random(len(places)) < (0.3 if book < 2 else 0.7))
        codes[places[chosen], book] = rows.codes[other[chosen], book]
    main[places] = TEXT_TOKENS + codes[places, 0]
    return main, codes


def collate(sequences: Sequence[Rows], random: Random | None) -> Batch:
    """A padded batch; ``random`` corrupts the inputs, None leaves them."""
    longest = max(len(rows.main) for rows in sequences)
    size = 1 - (-(longest - 1) // _ROUNDING) * _ROUNDING
    count, books = len(sequences), sequences[0].codes.shape[1]
    main = np.full((count, size), NEWLINE)
    codes = np.zeros((count, size, books), np.int64)
    heard_main, heard_codes = main.copy(), codes.copy()
    audio, target = np.zeros((count, size), np.bool_), np.zeros((count, size), np.bool_)
    text_at = np.zeros((count, size, size), np.bool_)
    for number, rows in enumerate(sequences):
        used = slice(len(rows.main))
        main[number, used], codes[number, used] = rows.main, rows.codes
        heard_main[number, used], heard_codes[number, used] = (
            corrupt(rows, random) if random is not None else (rows.main, rows.codes)
        )
        audio[number, used], target[number, used] = rows.audio, rows.target
        text_at[number, used, used] = rows.text_at
    return Batch(
        main=torch.from_numpy(heard_main[:, :-1]),
        codes=torch.from_numpy(heard_codes[:, :-1]),
        audio=torch.from_numpy(audio[:, :-1]),
        next_main=torch.from_numpy(main[:, 1:]),
        next_codes=torch.from_numpy(codes[:, 1:]),
        next_audio=torch.from_numpy(audio[:, 1:]),
        target=torch.from_numpy(target[:, 1:]),
        text_at=torch.from_numpy(text_at[:, 1:, :-1]),
    )


Plan = list[list[int]]  # turns of utterances, by number


def plan_scenes(
    utterances: Sequence[Utterance], order: Sequence[int], random: Random
) -> list[Plan]:
    """Deals the utterances out: most alone, some as long segments, some as scenes of turns."""
    plans: list[Plan] = []
    queue = list(order)
    while queue:
        kind = random.random()
        turns = 1 if kind < 0.78 else int(random.integers(2, 4))
        sentences = 1 if kind < 0.5 else int(random.integers(2, 6)) if turns == 1 else 2
        plan: Plan = []
        rows = 0
        for _ in range(turns):
            segment = [queue.pop()]
            rows += utterances[segment[0]].size
            chars = utterances[segment[0]].chars
            while queue and len(segment) < sentences and not utterances[segment[0]].style:
                following = utterances[queue[-1]]
                fits = rows + following.size <= LONGEST
                if following.style or not fits or chars + following.chars > SEGMENT_CHARS:
                    break
                segment.append(queue.pop())
                rows += following.size
                chars += following.chars + 1
            plan.append(segment)
            if not queue or rows + utterances[queue[-1]].size > LONGEST:
                break
        plans.append(plan)
    return plans


def pack(
    plans: Sequence[Plan], utterances: Sequence[Utterance], rows: int, random: Random
) -> list[list[Plan]]:
    """Batches of about equally long sequences, at most ``rows`` padded rows each, shuffled."""
    sizes = np.array(
        [sum(utterances[i].size for segment in plan for i in segment) for plan in plans]
    )
    order = np.argsort(sizes + random.random(len(sizes)) * 12)
    batches: list[list[Plan]] = []
    current: list[Plan] = []
    for index in order:  # ascending, so that the newest is the longest
        if current and (sizes[index] + 16) * (len(current) + 1) > rows:
            batches.append(current)
            current = []
        current.append(plans[index])
    batches.append(current)
    random.shuffle(batches)
    return batches


def build(
    plans: Sequence[Plan], utterances: Sequence[Utterance], random: Random, augment: bool = True
) -> Batch:
    """The batch of some plans."""
    sequences = [
        scene([turn([utterances[i] for i in segment], random, augment) for segment in plan])
        for plan in plans
    ]
    return collate(sequences, random if augment else None)
