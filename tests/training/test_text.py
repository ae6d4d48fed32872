"""Lines for the teacher: what is read, in which words, and what is left out."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from training.evaluate import QUICK, held_out
from training.spelling import cardinal, clock, digits, dollars, ordinal, year
from training.templates import Phrases
from training.text import finish, make_lines, plain_words, rare_first
from training.words import blocked_words, common_words, is_clean

GLOSSES = {
    "noun": [
        ("boat", 'a small vessel for travel on water; "we took the old boat to the island"'),
        ("yob", "a cruel and brutal fellow; offensive term for a person"),
        ("island", 'a land mass that is surrounded by water; "the island was quiet"'),
    ],
    "verb": [("murmur", 'speak softly or indistinctly; "she murmured something to her friend"')],
    "adj": [("quiet", 'free of noise or uproar; "a quiet audience at the concert"')],
    "adv": [("softly", 'with low volume; "speak softly to the children please"')],
}


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    """A WordNet of a few synsets."""
    for part, entries in GLOSSES.items():
        lines = [
            f"0000000{number} 04 n 01 {word} 0 000 | {gloss}  "
            for number, (word, gloss) in enumerate(entries)
        ]
        (tmp_path / f"data.{part}").write_text("  1 licence\n" + "\n".join(lines), "latin1")
    return tmp_path


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (101, "one hundred one"),
        (1250, "one thousand two hundred fifty"),
        (2_000_007, "two million seven"),
    ],
)
def test_cardinals(number: int, words: str) -> None:
    assert cardinal(number) == words


def test_other_numbers() -> None:
    assert ordinal(1) == "first"
    assert ordinal(12) == "twelfth"
    assert ordinal(40) == "fortieth"
    assert ordinal(121) == "one hundred twenty first"
    assert year(1905) == "nineteen oh five"
    assert year(2005) == "two thousand five"
    assert year(1800) == "eighteen hundred"
    assert clock(7, 5) == "seven oh five"
    assert dollars(1, 50) == "one dollar and fifty cents"
    assert digits("407") == "four zero seven"
    with pytest.raises(ValueError, match="-1"):
        cardinal(-1)


def test_patterns_are_sentences_in_words() -> None:
    phrases = Phrases(Random(3))
    lines = [phrases.sentence() for _ in range(400)]
    assert len(set(lines)) > 350
    for line in lines:
        assert line[0].isupper(), line
        assert line[-1] in ".?!", line
        assert not any(char.isdigit() or char in "{}|" for char in line), line


def test_marked_words_and_subjects_are_kept_out(wordnet: Path) -> None:
    blocked = blocked_words(wordnet, everyday=["boat"])
    assert blocked == {"yob"}
    assert is_clean("We sold the boat.", blocked)
    assert not is_clean("Some yobs sold the boat.", blocked)
    assert not is_clean("He was murdered there.", blocked)
    assert is_clean("A skilled sextet played.", blocked)


def test_common_words_are_ranked_and_readable(wordnet: Path) -> None:
    known = frozenset({"boat", "quiet", "water", "speak"})
    ranked = common_words(wordnet, ["Ġspeaking", "Ġquiet", "boat", "Ġzzgl"], known, 10)
    assert ranked.index("speaking") < ranked.index("quiet") < ranked.index("water")
    assert "zzgl" not in ranked
    assert {"boat", "water"} <= set(ranked)


def test_lines_leave_out_held_out_sentences(
    wordnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.text.teacher_lexicon", lambda _: frozenset({"boat", "island"}))
    kept_back = "The island was quiet."
    lines, lexicon = make_lines(wordnet, tmp_path, ["Ġboat"], [kept_back], count=120)
    again, _ = make_lines(wordnet, tmp_path, ["Ġboat"], [kept_back], count=120)
    assert lines == again
    assert len(set(lines)) == len(lines) > 100
    assert plain_words(kept_back) not in {plain_words(line) for line in lines}
    assert any("We took the old boat to the island" in line for line in lines)
    assert not any("offensive" in line for line in lines)
    assert "boat" in lexicon


def test_sentences_are_finished() -> None:
    assert finish("is it late", Random(0)) == "Is it late?"
    assert finish("stop!", Random(0)) == "Stop!"


def test_rare_words_come_first() -> None:
    lines = [f"line number {i}" for i in range(50)] + ["a zebra ran"]
    assert "a zebra ran" in rare_first(lines, ["zebra"], Random(0))[:1]


def test_held_out_sentences() -> None:
    everything = [text for _, text in held_out()]
    assert len(everything) == len(set(everything)) == 100
    assert all(3 <= len(text.split()) <= 25 for text in everything)
    quick = held_out(quick=True)
    assert len(quick) == QUICK
    assert len({kind for kind, _ in quick}) == 5
