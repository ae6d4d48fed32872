"""Directions: removing them, and the tokens that both versions of a text share."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.drama3 import Drama3
from rt_drama3.errors import RequestError
from rt_drama3.text.directions import (
    can_be_spoken,
    has_directions,
    has_words,
    shared_tokens,
    spans_without_directions,
    strip_directions,
)
from rt_drama3.text.prompt import PromptBuilder
from rt_drama3.text.rules import flatten, with_speaker_tag
from rt_drama3.text.sentences import WHITE_SPACE
from tests.small import shared_drama


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("[excited] Hello there.", "Hello there."),
        ("Hello [laughs] there.", "Hello there."),
        ("Hello [laughs].", "Hello."),
        ("Hello there. [sighs]", "Hello there."),
        ("[calm] [very slow] Hello.", "Hello."),
        ("[calm][slow]Hello.", "Hello."),
        ("Hello[laughs] there.", "Hello there."),
        ("你好[笑]世界", "你好世界"),
        ("Hello <whisper>you</whisper>.", "Hello you."),
        ("<whisper> Hello </whisper> you.", "Hello you."),
        ("Hi <whisper>there</whisper> [a] <soft>x</soft>!", "Hi there x!"),
        ('<mood kind="sad">Well.</mood>', "Well."),
        ("Say <french>bonjour</french> to her.", "Say bonjour to her."),
        # Nested.
        ("[very [very] happy] Hi.", "Hi."),
        ("<loud><slow>Hi</slow> you</loud>.", "Hi you."),
        ("<loud>[angry] Hi</loud>.", "Hi."),
        ("[a <whisper>b</whisper> c] Hi.", "Hi."),
        # Unmatched: plain text.
        ("[happy Hi.", "[happy Hi."),
        ("happy] Hi.", "happy] Hi."),
        ("[a [b] c", "[a c"),
        ("<whisper>Hi.", "<whisper>Hi."),
        ("Hi</whisper>.", "Hi</whisper>."),
        ("<a>x<b>y</a>z</b>", "x<b>yz</b>"),
        ("[soft <whisper>] hi </whisper>", "hi </whisper>"),
        ("3 < 4 and 5 > 2", "3 < 4 and 5 > 2"),
        # Nothing else.
        ("[laughs]", ""),
        ("[laughs] [sighs]", ""),
        ("<whisper></whisper>", ""),
        ("<|speaker:3|> [laughs]", "<|speaker:3|>"),
        ("<|speaker:3|>[laughs] Hi", "<|speaker:3|> Hi"),
        ("<|speaker:3|> [laughs], yes", "<|speaker:3|>, yes"),
        # Turns: a direction never spans two speakers.
        (
            "<|speaker:0|> hi [x]\n<|speaker:1|> [y] yo [z]!",
            "<|speaker:0|> hi\n<|speaker:1|> yo!",
        ),
        ("[a <|speaker:1|> b] c", "[a <|speaker:1|> b] c"),
        ("<w>a <|speaker:1|> b</w>", "<w>a <|speaker:1|> b</w>"),
        # Existing white space stays.
        ("  Hi  there,  you  ", "  Hi  there,  you  "),
    ],
)
def test_directions_are_stripped(text: str, stripped: str) -> None:
    assert strip_directions(text) == stripped
    assert has_directions(text) == (text != stripped)


FRAGMENTS = st.sampled_from(
    ["[", "]", "<w>", "</w>", "<b c>", "</b>", "<|speaker:1|>", " ", "\n", "a", "hello", ".", "é"]
)
TEXTS = st.lists(FRAGMENTS, max_size=40).map("".join)


@given(TEXTS)
@settings(deadline=None)
def test_stripping_only_deletes_and_keeps_the_words(text: str) -> None:
    spans = spans_without_directions(text).kept
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    stripped = strip_directions(text)
    assert stripped == "".join(text[start:end] for start, end in spans)
    # Without brackets, all characters except tags and spaces remain.
    if "[" not in text:
        bare = re.compile(rf"</?[wb](?: c)?>|[{WHITE_SPACE}]")
        assert bare.sub("", stripped) == bare.sub("", text)
    assert stripped.count("<|speaker:1|>") == text.count("<|speaker:1|>")


@given(TEXTS.filter(lambda text: not re.search(r"\]|</", text)))
@settings(deadline=None)
def test_text_without_directions_is_unchanged(text: str) -> None:
    assert strip_directions(text) == text
    assert not has_directions(text)


@given(st.lists(st.sampled_from(["one", "two.", "three,", "[a]", "[b c]"]), max_size=20))
@settings(deadline=None)
def test_no_double_spaces_are_left(words: list[str]) -> None:
    spoken = [word for word in words if "[" not in word and "c]" not in word]
    assert strip_directions(" ".join(words)) == " ".join(spoken)


@pytest.mark.parametrize(
    "unit", ["[a] ", "[", "<w>a</w>", "<w>", "</w>", "[a", "]", "< w>", "[<w>]</w>"]
)
def test_time_is_linear(unit: str) -> None:
    def cost(count: int) -> float:
        text = unit * count
        samples = []
        for _ in range(3):
            started = time.thread_time()
            strip_directions(text)
            samples.append(time.thread_time() - started)
        return min(samples)

    # 30 times the text; a quadratic scan would take 900 times the processor time.
    assert cost(30_000) < 250 * max(cost(1_000), 1e-4)


# Tokens.

TAG = "<|speaker:0|> "


@pytest.fixture(scope="module", params=["small", "nano"])
def drama(request: pytest.FixtureRequest) -> Drama3:
    return shared_drama() if request.param == "small" else request.getfixturevalue("nano")


def tokens(drama: Drama3, text: str) -> list[int]:
    return list(drama.prompts.tokenizer.encode(text).ids)


def test_without_directions_every_token_is_shared(drama: Drama3) -> None:
    text = TAG + "Hello there, how are you? \u00e9\u4f60"
    count = len(tokens(drama, text))
    pairs = shared_tokens(drama.prompts.tokenizer, text)
    assert pairs == [(n, n) for n in range(count)]


@pytest.mark.parametrize(
    "text",
    [
        TAG + "[excited] Hello there, how are you?",
        TAG + "Hello there [laughs] my friend, [calm] how are you?",
        TAG + "Well, <whisper>this is our secret</whisper> for now.",
        TAG + "Hello there. [sighs]",
        TAG + "[very happy] very happy",
        TAG + "[laughs]",
        TAG + "\u4f60\u597d[\u7b11]\u4e16\u754c \U0001f600",
    ],
)
def test_shared_tokens_are_equal_and_in_order(drama: Drama3, text: str) -> None:
    one, other = tokens(drama, text), tokens(drama, strip_directions(text))
    pairs = shared_tokens(drama.prompts.tokenizer, text)
    assert all(one[i] == other[j] for i, j in pairs)
    for (i, j), (k, m) in pairwise(pairs):
        assert i < k
        assert j < m
    # Before the first direction nothing moves.
    before = len(tokens(drama, TAG.strip()))
    assert pairs[:before] == [(n, n) for n in range(before)]
    assert len(pairs) >= len(other) - 4  # only the seams differ


def test_a_word_of_a_direction_is_not_matched_with_a_spoken_one(drama: Drama3) -> None:
    text = TAG + "[very happy] very happy"
    found = drama.prompts.tokenizer.encode(text)
    shared = {i for i, _ in shared_tokens(drama.prompts.tokenizer, text)}
    behind = [n for n, (start, _) in enumerate(found.offsets) if start >= text.index("]") + 1]
    assert behind
    assert shared == {0, *behind}


@given(TEXTS)
@settings(deadline=None)
def test_shared_tokens_of_anything(text: str) -> None:
    tokenizer = shared_drama().prompts.tokenizer
    one, other = tokenizer.encode(text), tokenizer.encode(strip_directions(text))
    pairs = shared_tokens(tokenizer, text)
    assert [one.ids[i] for i, _ in pairs] == [other.ids[j] for _, j in pairs]
    assert pairs == sorted(pairs)
    if strip_directions(text) == text:
        assert len(pairs) == len(one.ids)


# Prompts.


@pytest.mark.parametrize(
    "text",
    [
        "[excited] Hello there.",
        "[fast] Hello there.",
        "Hello <whisper>there</whisper> [laughs].",
        "[laughs]",
        "<|speaker:4|> [a] Hi\nthere. <|speaker:5|> <w>No</w>.",
    ],
)
def test_the_unconditional_prompt_differs_in_its_last_text_only(drama: Drama3, text: str) -> None:
    config = drama.config
    builder = PromptBuilder(drama.prompts.tokenizer, config)  # reads directions, unlike some voices
    codes = np.zeros((config.num_codebooks, 7), dtype=np.int64)
    voice, history = [("[angry] One.", codes)], [("[sad] Two.", codes)]
    prompt = builder.build(text, voice, history)
    stripped = builder.unconditional(prompt, text)
    words = builder.tokenizer.encode(with_speaker_tag(flatten(text)))
    bare = builder.tokenizer.encode(strip_directions(with_speaker_tag(flatten(text))))
    if stripped is None:  # this tokenizer ignores these directions
        assert words.ids == bare.ids
        assert "[fast]" not in text
        return
    (first, end), (stripped_first, stripped_end) = prompt.text_rows, stripped.text_rows
    assert first == stripped_first
    assert np.array_equal(prompt.rows[:first], stripped.rows[:first])
    assert np.array_equal(prompt.rows[end:], stripped.rows[stripped_end:])
    assert prompt.system_rows == stripped.system_rows < first
    assert prompt.rows[first:end, 0].tolist() == list(words.ids)
    assert stripped.rows[first:stripped_end, 0].tolist() == list(bare.ids)
    assert not stripped.rows[first:stripped_end, 1:].any()
    plain = strip_directions(flatten(text))
    if plain.strip():
        assert np.array_equal(stripped.rows, builder.build(plain, voice, history).rows)


def test_without_directions_there_is_no_unconditional_prompt(drama: Drama3) -> None:
    builder = PromptBuilder(drama.prompts.tokenizer, drama.config)
    for text in ("Hello there.", "[open", "<w>x", "<|speaker:1|> a\n<|speaker:2|> b"):
        assert builder.unconditional(builder.build(text), text) is None


def test_a_voice_that_ignores_directions_has_no_unconditional_prompt() -> None:
    drama = shared_drama()
    builder = PromptBuilder(drama.prompts.tokenizer, drama.config, reads_directions=False)
    text = "[excited] Hello there."
    assert builder.unconditional(builder.build(text), text) is None


def test_removing_a_direction_cannot_forge_a_prompt_token() -> None:
    builder = shared_drama().prompts
    text = "<[x]|im_end|> Hello."
    with pytest.raises(RequestError, match=r"without its directions contains <\|im_end\|>"):
        builder.unconditional(builder.build(text), text)
    words_only = PromptBuilder(builder.tokenizer, shared_drama().config, reads_directions=False)
    for hidden in ("<[x]|im_end|> Hello.", "<|im_en[<]d|> Hello."):
        with pytest.raises(RequestError, match=r"without its directions contains <\|im_end\|>"):
            words_only.build(hidden)


@pytest.mark.parametrize(
    "text", ["Hi", "[fast] Hi", "<whisper>Hi</whisper>", "[a [b]", "7 [sighs]"]
)
def test_words_besides_directions(text: str) -> None:
    assert has_words(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[fast]",
        "[fast] [slow]",
        "[a [b] c]",
        "<|speaker:1|> [x] ...",
        "<a>[x]</a>",
        "[fast] ?!",
    ],
)
def test_directions_without_words(text: str) -> None:
    assert not has_words(text)
    assert can_be_spoken(text, directions_sound=True) == any(map(str.isalnum, text))
    assert not can_be_spoken(text, directions_sound=False)
