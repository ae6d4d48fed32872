"""Word rules by lookup give the same result as the tokenizer's own list, offsets included."""
# ruff: noqa: RUF001 - a curly apostrophe

from __future__ import annotations

import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding, NormalizedString, Tokenizer

import rt_drama3
from rt_drama3.checkpoint.word_rules import MIN_RULES, WordRules, is_word_rule, read_tokenizer

NANO = Path(rt_drama3.__file__).parent / "voices" / "nano" / "tokenizer.json"
LOOKAHEAD = "(?!'?[a-rt-z]|s|'s[a-z])"


def rule(word: str, content: str = "\ue000", lookahead: str = LOOKAHEAD) -> dict[str, Any]:
    pattern = {"Regex": f"(?<![a-z']){word}{lookahead}"}
    return {"type": "Replace", "pattern": pattern, "content": content}


@cache
def both() -> tuple[Tokenizer, Tokenizer]:
    """The embedded voice's tokenizer, by ``tokenizers`` itself and by ``read_tokenizer``."""
    data = json.loads(NANO.read_text(encoding="utf-8"))
    assert sum(map(is_word_rule, data["normalizer"]["normalizers"])) > 10_000
    return Tokenizer.from_file(str(NANO)), read_tokenizer(NANO.read_bytes(), data)


@cache
def words() -> list[str]:
    steps = json.loads(NANO.read_text(encoding="utf-8"))["normalizer"]["normalizers"]
    found = (
        re.search(r"\)([a-z']+)\(", step["pattern"]["Regex"])
        for step in steps
        if is_word_rule(step)
    )
    return [match[1] for match in found if match]


def seen(encoding: Encoding) -> tuple[list[int], list[tuple[int, int]]]:
    return encoding.ids, encoding.offsets


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello there.",
        "It's James's, isn't it? The boss's 'tis o'clock's; rock'n'roll.",
        "Dr. Smith paid $5.50 at 10:30 a.m. for www.example.org, [fast] déjà vu.",
        "ITS THE DOGS' cats'' it''s its's shes hes",
        "zzyzx qwrtz <|im_start|>user\n",
    ],
)
def test_sentences_have_the_same_tokens_and_offsets(text: str) -> None:
    plain, fast = both()
    assert seen(fast.encode(text)) == seen(plain.encode(text))


def test_every_kind_of_word_has_the_same_tokens() -> None:
    plain, fast = both()
    some = random.Random(0).sample(words(), 300)
    known = [word for word in words() if "'" in word]
    for start in range(0, len(some), 30):
        text = " ".join(some[start : start + 30] + known[start : start + 30])
        assert seen(fast.encode(text)) == seen(plain.encode(text))


PARTS = st.sampled_from(["'", "s", "'s", " ", ".", "-", "é", "’", "a", "t", "S", "7", ", "])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_concatenated_words_have_the_same_tokens(data: st.DataObject) -> None:
    plain, fast = both()
    joined = st.lists(st.one_of(st.sampled_from(words()), PARTS), max_size=12)
    text = "".join(data.draw(joined))
    assert seen(fast.encode(text)) == seen(plain.encode(text))


def test_rules_apply_in_order_and_to_adjacent_words() -> None:
    rules = [("it's", "\ue001"), ("it", "\ue002"), ("'s", "\ue003"), ("it", "\ue004")]
    words = WordRules((rule(word)["pattern"]["Regex"], sound) for word, sound in rules)
    for text, expected in (
        ("it's it it'a its", "\ue001 \ue002 it'a its"),
        ("'s it's", "\ue003 \ue001"),
        ("it'ss", "it'ss"),
    ):
        normalized = NormalizedString(text)
        words.normalize(normalized)
        assert str(normalized.normalized) == expected


def test_a_word_after_a_replaced_word_is_found() -> None:
    rules = [("dog", "\ue001"), ("'s", "\ue002")]
    words = WordRules((rule(word)["pattern"]["Regex"], sound) for word, sound in rules)
    normalized = NormalizedString("dog's dog")
    words.normalize(normalized)
    assert str(normalized.normalized) == "\ue001\ue002 \ue001"


def test_steps_that_are_not_word_rules() -> None:
    assert is_word_rule(rule("word"))
    assert not is_word_rule(rule("word", content="letters"))  # a later rule might find them
    assert not is_word_rule(rule("wor.d"))
    assert not is_word_rule(rule("word", lookahead="s*"))
    assert not is_word_rule(rule("word", lookahead="(?!(?=a)b)"))
    assert not is_word_rule({"type": "Lowercase"})
    assert not is_word_rule({"type": "Replace", "pattern": {"String": "word"}, "content": ""})


@pytest.mark.parametrize("count", [MIN_RULES - 1, MIN_RULES])
def test_lists_between_other_steps(tmp_path: Path, count: int) -> None:
    data = json.loads(NANO.read_text(encoding="utf-8"))
    names = ["x" * n for n in range(1, count + 1)]
    lower = {"type": "Lowercase"}
    last = {"type": "Replace", "pattern": {"String": "\ue000"}, "content": "a"}
    data["normalizer"]["normalizers"] = [lower, *map(rule, names), last]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    tokenizer, plain = read_tokenizer(path.read_bytes(), data), Tokenizer.from_file(str(path))
    assert tokenizer.encode("X xxx xy").tokens == list("a a xy")
    assert seen(tokenizer.encode("X xxx xy")) == seen(plain.encode("X xxx xy"))


def test_a_tokenizer_without_a_normalizer(tmp_path: Path) -> None:
    data = json.loads(NANO.read_text(encoding="utf-8"))
    data["normalizer"] = None
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert read_tokenizer(path.read_bytes(), data).encode("ab").ids
