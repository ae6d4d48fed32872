"""Scorers and ranking; the takes themselves are made in test_directed.py."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rt_drama3.drama3 import Take
from rt_drama3.errors import ConfigError, RequestError
from rt_drama3.scenes.best_of import ASR_RATE, AsrScorer, check_count, duration_sanity, rank
from rt_drama3.text.rules import usual_seconds

RATE = 44_100
TEXT = "It was late, and the lights were off."


def take(seconds: float, seed: int = 0, text: str = TEXT, complete: bool = True) -> Take:
    frames = round(seconds * RATE / 2048)
    audio = np.zeros(frames * 2048, dtype=np.float32)
    return Take(text, np.zeros((3, frames), dtype=np.int64), audio, RATE, seed, complete)


def test_the_best_comes_first_and_equals_keep_their_order() -> None:
    takes = [take(1, seed) for seed in range(5)]
    scores = {0: 1.0, 1: 3.0, 2: -math.inf, 3: 3.0, 4: 2.0}
    ranking = rank(takes, lambda one: scores[one.seed])
    assert [one.seed for one in ranking.takes] == [1, 3, 4, 0, 2]
    assert ranking.scores == (3.0, 3.0, 2.0, 1.0, -math.inf)
    assert ranking.best.seed == 1


def test_a_scorer_must_give_numbers() -> None:
    with pytest.raises(RequestError, match="NaN for seed 7"):
        rank([take(1, 7)], lambda _: math.nan)


@pytest.mark.parametrize("n", [0, 33, -1, 1.5, "2", True, None])
def test_counts_that_cannot_be(n: Any) -> None:
    with pytest.raises(RequestError, match="from 1 to 32"):
        check_count(n)


def test_counts() -> None:
    assert check_count(1) == 1
    assert check_count(np.int64(32)) == 32


def test_a_usual_reading_beats_dawdling_and_rushing() -> None:
    usual = usual_seconds(TEXT)
    assert 1.5 < usual < 4  # 37 characters
    lengths = [usual / 4, usual / 2, usual, 2 * usual, 6 * usual]
    scores = [duration_sanity(take(seconds)) for seconds in lengths]
    assert max(scores) == scores[2] == pytest.approx(0, abs=0.05)
    assert scores[0] < scores[1] == pytest.approx(scores[3], abs=0.05)
    assert scores[4] < scores[3]


def test_a_cut_take_and_an_empty_one_lose() -> None:
    usual = usual_seconds(TEXT)
    assert duration_sanity(take(usual, complete=False)) < duration_sanity(take(3 * usual))
    assert duration_sanity(take(0)) == -math.inf


def test_directions_are_not_spoken() -> None:
    plain = duration_sanity(take(2.5))
    directed = f"<|speaker:0|> [very slow and very sad, as if lost in thought] {TEXT}"
    assert duration_sanity(take(2.5, text=directed)) == pytest.approx(plain)
    assert duration_sanity(take(2.5, text="[laughs]")) == 0


def listening(heard: str) -> tuple[AsrScorer, list[npt.NDArray[np.float32]]]:
    given: list[npt.NDArray[np.float32]] = []

    def transcribe(audio: npt.NDArray[np.float32]) -> str:
        given.append(audio)
        return heard

    return AsrScorer(transcribe=transcribe), given


@pytest.mark.parametrize(
    ("heard", "score"),
    [
        ("it was late and the lights were off", 0.0),
        ("  IT WAS LATE -- and the lights were off!", 0.0),
        ("it was late and the light were off", -1 / 28),
        ("it was fate and the lights were all off", -4 / 28),
        ("", -1.0),
        ("zzz", -1.0),
    ],
)
def test_what_is_heard_is_compared_by_letters(heard: str, score: float) -> None:
    scorer, given = listening(heard)
    directed = "<|speaker:3|> [sad] It was <slow>late</slow>, and the lights were off. [sighs]"
    assert scorer(take(2, text=directed)) == pytest.approx(score)
    assert len(given[0]) == pytest.approx(2 * ASR_RATE, rel=0.02)
    assert given[0].dtype == np.float32


def test_nothing_to_hear() -> None:
    scorer, given = listening("anything")
    assert scorer(take(1, text="[laughs]")) == 0
    assert scorer(take(0)) == -1
    assert not given


def test_without_faster_whisper_the_scorer_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "faster_whisper" else real(name)
    )
    with pytest.raises(ConfigError, match="pip install faster-whisper"):
        AsrScorer()
