"""The voice's tokenizer: numbers as words, directions read past, and the tokens training showed."""
# ruff: noqa: RUF001 - phonemes and quotation marks

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from rt_drama3.text.normalize import normalize
from tests.training.conftest import make_clip
from training.clips import load_shard, shard_files
from training.lexicon import Lexicon, pronunciations, spoken_words
from training.rows import utterance
from training.spelling import cardinal, ordinal, year
from training.tokenizer import tokenizer_json
from training.vocabulary import DIRECTION_CHARS, IDS, SOUND_CHARS, SOUNDS, TEXT_TOKENS, split_sounds

NO_CODES = np.zeros((0, 5), np.int16)


@pytest.fixture(scope="module")
def plain() -> Tokenizer:
    """The rules without any words."""
    return Tokenizer.from_str(json.dumps(tokenizer_json(Lexicon({}))))


def read(tokenizer: Tokenizer, text: str) -> str:
    return "".join(tokenizer.encode(text).tokens)


def test_whole_numbers(plain: Tokenizer) -> None:
    random = np.random.default_rng(0)
    for number in [*range(111), *random.integers(111, 10_000, 100).tolist()]:
        is_year = 1100 <= number < 2000 or 2010 <= number < 2100
        wanted = year(number) if is_year else cardinal(number)
        assert read(plain, f"{number} of").lstrip() == f"{wanted} of", number
    for number in random.integers(1000, 10**9, 60).tolist():
        assert read(plain, f"{number:,}").strip() == cardinal(number)
    for number in range(1, 122):
        ends = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        ends = "th" if number % 100 in (11, 12, 13) else ends
        assert read(plain, f"the {number}{ends} day") == f"the {ordinal(number)} day"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It is $42.50, or $1.", "it is forty two dollars and fifty cents, or one dollar."),
        ("$280,000 and $1.05", "two hundred eighty thousand dollars and one dollar and five cents"),
        ("It cost $2.5 million.", "it cost two point five million dollars."),
        ("€5 or £2,500", "five euros or two thousand five hundred pounds"),
        ("At 7:45 from platform 12.", "at seven forty five from platform twelve."),
        ("At 7:00 pm or 8:05 a.m. we met.", "at seven p m or eight oh five a m we met."),
        ("Meet at 9:00.", "meet at nine o'clock."),
        ("Dial 555-0142.", "dial five five five, zero one four two."),
        ("Code 123456 or 007.", "code one two three four five six or zero zero seven."),
        ("About 65% & 3.14", "about sixty five percent and three point one four"),
        ("me.you@example.com", "me dot you at example dot com"),
        ("See https://www.example.org/help.", "see w w w dot example dot org slash help."),
        ("Dr. Ng met Mrs. May in the U.S. today.", "doctor ng met misses may in the u s today."),
        ("The FBI said STOP, OK?", "the f b i said stop, okay?"),
        ("Café — “naïve” don’t", "cafe, naive don't"),
        ("5 km, 10 kg", "five kilometers, ten kilograms"),
        ("[laughs] Hi [whispers softly] you <b>there</b>", "hi you there"),
        ("1,000,000 and 1905", "one million and nineteen oh five"),
        ("3-5 days, 10-12 at most", "three to five days, ten to twelve at most"),
        ("It was -5 or 1/2.", "it was minus five or one half."),
        ("2 ½ cups and 1⁄4", "two and one half cups and one quarter"),
        ("the 1990s and the '80s", "the nineteen nineties and the eighties"),
        ("on 24/7 in 2024-05-12", "on twenty four seven in two zero two four, zero five, one two"),
    ],
)
def test_text_is_normalised_as_spoken(plain: Tokenizer, text: str, words: str) -> None:
    assert read(plain, text).strip() == words


@pytest.mark.parametrize(
    "text",
    [
        "It is $42.50, or $1.", "$280,000 and $1.05", "It cost $2.5 million.", "€5 or £2,500",
        "At 7:45 from platform 12.", "At 7:00 pm or 8:05 a.m. we met.", "Meet at 9:00.",
        "Dial 555-0142.", "Code 123456 or 007.", "About 65% & 3.14", "me.you@example.com",
        "See https://www.example.org/help.", "Dr. Ng met Mrs. May in the U.S. today.",
        "5 km, 10 kg", "1,000,000 and 1905", "3-5 days, 10-12 at most", "It was -5 or 1/2.",
        "2 ½ cups and 1⁄4", "the 1990s and the '80s", "Café — “naïve” don’t", "$1,234.56",
    ],
)  # fmt: skip
def test_normalised_text_is_read_alike(plain: Tokenizer, text: str) -> None:
    assert read(plain, normalize(text).text).strip() == read(plain, text).strip()


def test_trained_directions_are_tokens(plain: Tokenizer) -> None:
    assert read(plain, "[Fast] Hi") == f"{DIRECTION_CHARS['fast']} hi"
    ids = plain.encode("<|speaker:0|> [slow] hi").ids
    assert IDS[DIRECTION_CHARS["slow"]] in ids


def test_prompt_phrases_are_single_tokens(plain: Tokenizer) -> None:
    tokens = plain.encode("<|im_start|>system\n").tokens
    assert tokens == ["<|im_start|>", "system\n"]
    assert plain.encode("<|im_end|>\n").tokens == ["<|im_end|>", "\n"]
    assert plain.encode("<|semantic:7|>").ids == [TEXT_TOKENS + 7]


def test_tokenizer_matches_the_training(shards: Path, lexicon: Lexicon) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(lexicon)))
    for path in shard_files(shards):
        for clip in load_shard(path).clips:
            shown = utterance(clip, NO_CODES, lexicon).phones.tokens
            assert tokenizer.encode(clip.text).ids == shown.tolist(), clip.text
    # "boats" is not a word of this lexicon, and words inside words are not words.
    assert tokenizer.encode("boats").ids == [IDS[char] for char in "boats"]
    assert tokenizer.encode("weird").ids == [IDS[char] for char in "weird"]
    we = [token for token, _ in split_sounds(lexicon.words["we"])]
    assert tokenizer.encode("We's").ids == [*we, IDS["'"], IDS["s"]]


def test_words_have_the_times_of_their_sounds(lexicon: Lexicon) -> None:
    clip = make_clip(0, np.random.default_rng(5))
    words = list(spoken_words(clip))
    assert [word.text for word in words] == clip.text.split()
    made = utterance(clip, NO_CODES, lexicon)
    begin, end = made.phones.seconds.T
    assert begin[0] == pytest.approx(0.05)
    assert (begin <= end).all()
    assert (np.diff(begin) >= 0).all()
    assert made.letters.tokens[0] == IDS[clip.text[0]]
    assert len(made.letters.starts) == len(made.phones.starts) == len(words) + 1


def test_pronunciations_prefer_what_was_heard() -> None:
    clip = make_clip(0, np.random.default_rng(5))
    word = clip.text.split()[0]
    found = pronunciations(
        [clip], [word, "absent", "odd"], {word: "x", "absent": "æbsənt", "odd": "…"}
    )
    assert found[word] == clip.sentences[0].words[0].phones
    assert found["absent"] == "æbsənt"
    assert "odd" not in found  # no token for it


def test_sounds_join_stress_and_vowel() -> None:
    assert split_sounds("ɹˈɛd") == [
        (IDS[SOUND_CHARS["ɹ"]], 1),
        (IDS[SOUND_CHARS["ˈɛ"]], 2),
        (IDS[SOUND_CHARS["d"]], 1),
    ]
    assert split_sounds("✗") == [(-1, 1)]
    assert len(set(SOUNDS)) == len(SOUNDS)


def test_other_directions_are_ignored() -> None:
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(Lexicon({}), directions=False)))
    assert read(tokenizer, "[fast] Hi") == "hi"
