"""How a voice is judged: words, errors, loudness; and the embedded voice itself, where ASR is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rt_drama3 import Drama3
from training import asr
from training.asr import Judge, at_pauses, errors_at, word_errors, words
from training.evaluate import evaluate, evaluate_long, held_out, loudness, paragraph

# The embedded voice's own rate on the 20 short sentences, and what it may drift by: other CPUs
# round otherwise, and a take that draws one code differently goes its own way.
OWN_RATE, MARGIN = 0.083, 0.07


def test_numbers_and_spellings_are_made_equal() -> None:
    assert words("It's $42.50, OK?") == words("its forty-two dollars and fifty cents okay")
    assert words("At 7:45 on www.example.org") == words(
        "at seven forty five on w w w dot example dot org"
    )
    assert words("Code 40971") == words("code 4 0 9 7 1")
    assert words("gray") != words("green")


def test_word_errors() -> None:
    assert word_errors(["a", "b", "c"], ["a", "b", "c"]) == 0
    assert word_errors(["a", "b", "c"], ["a", "x", "c", "d"]) == 2
    assert word_errors(["a", "b"], []) == 2
    assert word_errors([], ["a"]) == 1


def test_errors_are_located() -> None:
    wanted = words("we like red boats and green trains")
    assert errors_at(wanted, wanted) == [0] * 7
    heard = words("we like boats and very green train")
    assert errors_at(wanted, heard) == [0, 0, 1, 0, 0, 1, 1]
    assert errors_at(wanted, []) == [1] * 7
    assert errors_at(wanted[:1], ["we", "all"]) == [1]
    assert errors_at([], ["we"]) == []


def test_long_text_is_evaluated_by_thirds() -> None:
    text = paragraph()
    assert 280 < len(words(text)) < 330
    heard = words(text)
    heard[5] = heard[290] = heard[291] = "nothing"
    take = SimpleNamespace(audio=0.1 * np.ones(3 * 44_100, np.float32), sample_rate=44_100)
    drama = SimpleNamespace(generate=lambda text, seed: take)
    judge: Any = SimpleNamespace(hear=lambda audio, rate: " ".join(heard))
    parts = evaluate_long(drama, judge, text)
    assert [part.errors for part in parts] == [1, 0, 2]
    assert sum(part.words for part in parts) == len(heard)


def test_long_audio_is_split_at_pauses() -> None:
    audio = np.ones(60 * 16_000, np.float32)
    for second in (14, 20, 38):
        audio[second * 16_000 : second * 16_000 + 4800] = 1e-3 * second
    parts = at_pauses(audio)
    assert np.array_equal(np.concatenate(parts), audio)
    ends = np.cumsum([len(part) for part in parts]) / 16_000
    assert ends[:-1] == pytest.approx([14.15, 38.15], abs=0.15)
    assert len(at_pauses(audio[: 20 * 16_000])) == 1


def test_loudness_of_known_signals() -> None:
    time = np.arange(3 * 44_100) / 44_100
    tone = (0.1 * np.sin(2 * np.pi * 997 * time)).astype(np.float32)
    assert loudness(tone, 44_100) == pytest.approx(-23.0, abs=0.2)
    pause = np.concatenate([tone, np.zeros(88_200, np.float32)])
    assert loudness(pause, 44_100) == pytest.approx(-23.0, abs=0.5)  # gated
    assert loudness(np.zeros(44_100, np.float32), 44_100) == -70.0


class _Teacher:
    sample_rate = 24_000

    def __call__(self, text: str, seed: int) -> Any:
        return np.concatenate([np.zeros(9000), 0.1 * np.ones(24_000), np.zeros(9000)])


def test_report_counts_errors_and_lengths() -> None:
    audio = np.zeros(2 * 44_100, np.float32)
    audio[50_000] = 0.9
    # For each sentence, the voice is heard first, then the teacher.
    heard = iter(["we like red boats", "we like boats", "we like boats", "we like boats"])
    drama = SimpleNamespace(
        sample_rate=44_100, generate=lambda text, seed: SimpleNamespace(audio=audio)
    )
    judge: Any = SimpleNamespace(hear=lambda samples, rate: next(heard))
    report = evaluate(
        drama, _Teacher(), judge, [("a", "We like red boats."), ("b", "We like boats.")]
    )
    assert report.rate() == 0
    assert report.teacher_rate("a") == pytest.approx(1 / 4)
    assert [round(one.ratio, 2) for one in report.sentences] == [2.0, 2.0]
    assert len(report.astray) == 2
    assert report.sentences[0].jumps == 2
    assert any("2 outside" in line for line in report.lines())
    assert report.json()["astray"] == 2


@pytest.mark.slow
def test_embedded_voice_is_understood(nano: Drama3, tmp_path: Path) -> None:
    needed = ("faster_whisper", "hibari", *asr.PARTS)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} missing: pip install -r training/requirements.txt")
    from hibari import Hibari

    report = evaluate(nano, Hibari(), Judge(tmp_path), held_out(quick=True))
    summary = "\n".join([*report.lines(), *(f"{one.heard}" for one in report.sentences)])
    assert report.rate() <= OWN_RATE + MARGIN, summary
    assert len(report.astray) <= 1, summary
    assert report.teacher_rate() < 0.06, summary  # else the judge is broken, not the voice
