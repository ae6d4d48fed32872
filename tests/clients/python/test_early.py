"""Where the first words of an utterance are cut off, however its text comes."""

from __future__ import annotations

import pytest

from rt_drama3_client import FLUSH, EarlyStart, UsageError
from tests.small import TEXTS


def marked(words: int | None, *parts: str) -> str:
    """The text with a bar where it is flushed."""
    early = EarlyStart(words)
    return "".join("|" if part is FLUSH else part for text in parts for part in early.split(text))


@pytest.mark.parametrize(
    "expected",
    [
        "One two three |four five. Six seven eight nine.",
        "[barely holding it together] one two three |four five.",
        "One two [a long pause, then] three |four five.",
        "One, two -- three, |four five.",
        "<|speaker:1|> One two three |four.",
        "Don't you two's |dare.",
    ],
)
def test_one_flush_after_the_words(expected: str) -> None:
    text = expected.replace("|", "") if "<" not in expected else "<|speaker:1|> One two three four."
    assert marked(3, text) == expected
    tokens = [text[n : n + 5] for n in range(0, len(text), 5)]
    if "<" not in text:  # incomplete tags are unchanged
        assert marked(3, *tokens) == marked(3, *text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Two words. And then some more of them.",
        "Really?! And then some more of them.",
        "<whisper>between the two of us</whisper> and more.",
        "Only two",
        "One two three",  # its word may continue
        "\u4f60\u597d\u4e16\u754c\u4f60\u597d",
        *TEXTS,
    ],
)
def test_flush_does_not_split_markup(text: str) -> None:
    assert marked(3, text) == marked(3, *text) == text


def test_none_leaves_the_text_unchanged() -> None:
    assert marked(None, "One two three ", "four five six.") == "One two three four five six."


def test_less_than_one_word_raises() -> None:
    with pytest.raises(UsageError, match="0 words"):
        EarlyStart(0)
