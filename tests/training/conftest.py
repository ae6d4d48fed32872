"""Clips that no teacher spoke: words with plausible timing over noise, and their codes."""
# ruff: noqa: RUF001 - phonemes

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.clips import (
    FRAME_SAMPLES,
    ClipInfo,
    Sentence,
    Shard,
    Word,
    codes_path,
    save_shard,
    shard_path,
)
from training.lexicon import Lexicon

WORDS = {"we": "wˌi", "like": "lˈIk", "red": "ɹˈɛd", "boats": "bˈOts", "the": "ðə"}


def make_clip(line: int, random: np.random.Generator, style: str = "") -> ClipInfo:
    """A clip of three to six words, each phoneme three steps of 25 ms long."""
    chosen = random.choice(list(WORDS), int(random.integers(3, 7))).tolist()
    words = [Word(word, WORDS[word], True) for word in chosen[:-1]]
    words += [Word(chosen[-1], WORDS[chosen[-1]], False), Word(".", ".", False)]
    phones = " ".join(WORDS[word] for word in chosen) + "."
    durations = (2, *[3] * len(phones), 4)
    frames = int(np.ceil(sum(durations) * 0.025 * 44_100 / FRAME_SAMPLES))
    sentence = Sentence(tuple(words), phones, durations)
    return ClipInfo(line, " ".join(chosen) + ".", style, frames, (sentence,))


@pytest.fixture(scope="session")
def lexicon() -> Lexicon:
    return Lexicon({word: phones for word, phones in WORDS.items() if word != "boats"})


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory, lexicon: Lexicon) -> Path:
    """A folder with two shards of clips, their codes and the lexicon; tests must not change it."""
    folder = tmp_path_factory.mktemp("shards")
    random = np.random.default_rng(0)
    for number in range(2):
        lines = range(number * 12 + 90, number * 12 + 102)
        clips = [make_clip(line, random, "fast" if line % 7 == 0 else "") for line in lines]
        frames = sum(clip.frames for clip in clips)
        noise = 0.05 * random.standard_normal(frames * FRAME_SAMPLES)
        pcm = (32_767 * noise).astype(np.int16)
        save_shard(folder, number, Shard(tuple(clips), pcm, random.integers(0, 236, frames)))
        codes = random.integers(0, 236, (frames, 5)).astype(np.int16)
        np.save(codes_path(shard_path(folder, number)), codes)
    lexicon.save(folder / "lexicon.json")
    return folder
