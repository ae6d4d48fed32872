"""Ends of sentences and lines in text that is still arriving, however it arrives."""
# ruff: noqa: E501, RUF001 - punctuation of many scripts, and lists in long lines

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rt_drama3.errors import RequestError
from rt_drama3.text.rules import split_growing
from rt_drama3.text.sentences import blocks, can_stand_alone, complete_ends

LONGEST = 120


def complete(text: str, normalized: bool = False) -> str:
    """The part of a growing text that is complete."""
    ends = complete_ends(text, normalized=normalized)
    return text[: ends[-1]] if ends else ""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Here is the list. And", "Here is the list."),
        ("It costs 3. ", "It costs 3."),
        ("Hello there.", ""),
        # Abbreviations.
        ("Apples, pears, etc. ", ""),
        ("Apples, pears, etc. are fine", ""),
        ("Apples, pears, etc. Then", "Apples, pears, etc."),
        ("See Smith et al. for more", ""),
        ("See Smith et al. They", "See Smith et al."),
        ("No. ", ""),
        ("No. 5 is here", ""),
        ("No. I do", "No."),
        ("No. it is", "No."),
        ("See fig. three and", ""),
        ("at 9 a.m. ", ""),
        ("at 9 a.m. we", ""),
        ("at 9 a.m. Bring ", "at 9 a.m."),
        ("at 9 a.m. Monday ", ""),
        ("in the U.S. Army ", ""),
        ("in the U.S. It ", "in the U.S."),
        ("Take vitamin C. It ", "Take vitamin C."),
        ("plan B. We ", "plan B."),
        ("Press F. Then ", "Press F."),
        ("J. R. R. Tolkien ", ""),
        ("Dr. Smith ", ""),
        ("You and I. Yes", "You and I."),
        ("e.g. The ", ""),
        ("Sen. Smith and Gov. Jones ", ""),
        ("viz. The ", ""),
        # Dots.
        ("Wait... what ", ""),
        ("Well... I ", ""),
        ("Hmm... What ", "Hmm..."),
        ("So… the ", ""),
        # Lines.
        ("Here is the list:\n- apples\n- pears\n", "Here is the list:\n- apples"),
        ("A title of this\n\n", "A title of this"),
        ("A title of this\nT", "A title of this"),
        ("# Heading\n", "# Heading"),
        ("This line is broken\nin the", ""),
        ("I went to the shop with\nJohn", ""),
        ("Apples\n", ""),
        ("Apples\n1", ""),
        ("Apples\nB", "Apples"),
        ("a) apples\nb) pears", "a) apples"),
        # Brackets and tags.
        ("[so. it goes", ""),
        ("One. [so. it", "One."),
        ("<b>One. Two", ""),
        ("<foo/>One. Two", "<foo/>One."),
        ("<img src=a>One. Two", "<img src=a>One."),
        ('<foo x="1"/>One. Two', '<foo x="1"/>One.'),
        ("<b>One. Two</b>. Three", "<b>One. Two</b>."),
        # Lists of numbers.
        ("1. Apples", ""),
        ("Yes. 2. Pears", "Yes."),
    ],
)
def test_complete_text(text: str, found: str) -> None:
    assert complete(text) == found


def test_tags_that_normalisation_reads_do_not_hold_text_back() -> None:
    assert complete("<speak><p>One. Two", normalized=True) == "<speak><p>One."
    assert complete("List<String> is it. Two", normalized=True) == "List<String> is it."
    assert complete("<whisper>One. Two", normalized=True) == ""
    assert complete("<speak><p>One. Two") == ""


@pytest.mark.parametrize(
    "text",
    [
        "We meet at 9 a.m. ",
        "He lives in the U.S. ",
        "Take vitamin C. ",
        "Let me check that.",
        "A title of this\n\n",
        "- apples\n",
        "Here is the list: ",
        "Apples, etc. ",
        "No. ",
        "Really?!",
        'She said "go." ',
        "It costs 3. ",
        "本当ですか？",
        "Wait... ",
    ],
)
def test_what_can_stand_alone(text: str) -> None:
    assert can_stand_alone(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "...", "Hello", "Hello, ", "He lives in the ", "Dr. ", "e.g. ", "1. ", "It costs 3.",
     "[laughs. ", "<b>One. ", "Hello. <|spea", "see [this. "],
)  # fmt: skip
def test_what_cannot_stand_alone(text: str) -> None:
    assert not can_stand_alone(text)


def test_blocks() -> None:
    text = "Title\n\nA line that\nwraps here.\n- one\n  more\n- two\n# Head\ntext\nMore"
    assert blocks(text) == [
        "Title", "A line that wraps here.", "- one more", "- two", "# Head", "text", "More"
    ]  # fmt: skip


FRAGMENTS = st.sampled_from(
    [
        "word ", "Word ", "the ", "I ", "It ", ". ", ".", "... ", "…", "! ", "?", ", ", "\n", "\n\n", " ",
        "- ", "1. ", "12. ", "# ", "etc. ", "et al. ", "No. ", "5", "3.14 ", "a.m. ", "U.S. ", "C. ", "Dr. ",
        "[", "]", "[laughs] ", "<b>", "</b>", "<w>", "</w>", "<|speaker:1|> ", "<", "|", "```\n", "> ",
        '"', "”", "(", ")", "。", "好", "*", "_", "x" * 50, "long word " * 8,
    ]
)  # fmt: skip


def split_in_parts(text: str, sizes: list[int], normalized: bool) -> list[str]:
    found, growing = [], ""
    at = 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        growing += text[at : at + size]
        at += size
        stretches, growing = split_growing(growing, LONGEST, 80, normalized=normalized)
        found += stretches
    return [*found, growing]


@given(
    st.lists(FRAGMENTS, max_size=40).map("".join),
    st.lists(st.integers(1, 30), min_size=1, max_size=9),
    st.booleans(),
)
@example("。</b>", [1], False)
@example("Yes.</b> No. ", [1], True)
@settings(max_examples=500, deadline=None)
def test_the_cuts_do_not_depend_on_how_the_text_arrives(
    text: str, sizes: list[int], normalized: bool
) -> None:
    try:
        whole = split_in_parts(text, [max(1, len(text))], normalized)
        parts = split_in_parts(text, sizes, normalized)
    except RequestError:  # a cue that fits no segment
        return
    assert parts == whole
    assert "".join(whole) == text


TEXT = (
    "Hello there. Dr. Smith paid $3.50 at 10:30 a.m. for it... Really? Yes! [laughs] It was "
    '<b>very. good</b> indeed. "Quoted." Then he left,\nwithout a word. Here is the list:\n- apples\n'
    "- pears etc.\n\nNo. 5 is last. The U.S. It is big. The end."
)


def test_every_two_cuts_of_one_text_give_the_same_stretches() -> None:
    whole = split_growing(TEXT, 600)
    assert [stretch.strip() for stretch in whole[0]] == [
        "Hello there.",
        "Dr. Smith paid $3.50 at 10:30 a.m. for it...",
        "Really?",
        "Yes!",
        "[laughs] It was <b>very. good</b> indeed.",
        '"Quoted."',
        "Then he left,\nwithout a word.",
        "Here is the list:",
        "- apples",
        "- pears etc.",
        "No. 5 is last.",
        "The U.S.",
        "It is big.",
    ]
    rng = random.Random(0)
    for _ in range(200):
        a, b = sorted(rng.randrange(len(TEXT)) for _ in range(2))
        found: list[str] = []
        growing = ""
        for part in (TEXT[:a], TEXT[a:b], TEXT[b:]):
            stretches, growing = split_growing(growing + part, 600)
            found += stretches
        assert (found, growing) == whole


def test_a_long_text_takes_linear_time() -> None:
    stretches, rest = split_growing("This is a sentence, is it not? " * 5000, 600)
    assert len(stretches) == 5000
    assert not rest.strip()
    stretches, _ = split_growing("no end in sight " * 5000, 600)
    assert "".join(stretches).count("sight") > 4900
