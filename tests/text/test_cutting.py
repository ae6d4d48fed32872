"""Splitting long text: limits, tags, pauses, grapheme clusters, hostile input, and the oracle."""
# ruff: noqa: RUF001 - punctuation of many scripts is the subject here

from __future__ import annotations

import re
from collections import Counter

import pytest
import regex
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rt_drama3.errors import RequestError
from rt_drama3.text.rules import (
    SEGMENT_BYTES,
    flatten,
    frame_cap,
    has_speech,
    split_text,
)

FRAME_RATE = 44_100 / 2048
SENTENCE = "The quick brown fox jumps over the lazy dog near the river bank. "  # 65 bytes
CUES = re.compile(r"\[[^\[\]]*\]")
SPEAKER = re.compile(r"<\|speaker:(\d+)\|> ")

# Fragments that are difficult to split, concatenated at random.
FRAGMENTS = st.sampled_from(
    [
        "word ",
        "Dr. Smith ",
        "3.14 ",
        "and, then; ",
        "Stop. ",
        "What?! ",
        "... ",
        "[laughs] ",
        "<whisper>softly now</whisper> ",
        "<whisper>",
        "</whisper>",
        "<b>",
        "</b> ",
        "[",
        "]",
        "<",
        "<|odd|>",
        "<|",
        "|>",
        "今天天气很好。",
        "我们去公园，",
        "नमस्ते ",
        "😀",
        "👩‍👩‍👧",
        "🇩🇪",
        "é",
        "\u3000",
        "  ",
        "\n",
        "\t",
        "https://example.com/a?b=c ",
        "x" * 90,
        "漢" * 40,
    ]
)
TURNS = st.lists(FRAGMENTS, max_size=60).map("".join)
SPEAKERS = st.sampled_from(["", *(f"<|speaker:{n}|>" for n in (0, 1, 2, 3, 15))])
SCRIPTS = st.lists(st.tuples(SPEAKERS, TURNS), min_size=1, max_size=6).map(
    lambda turns: "".join(tag + words for tag, words in turns)
)


def letters(text: str) -> Counter[str]:
    """The spoken characters: letters and digits outside tags."""
    bare = re.sub(r"<\|[^|<>]*\|>|</?[A-Za-z][\w-]*>", "", text)
    return Counter(filter(str.isalnum, bare))


def bare(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(
    "text", ["Hi", "a" * 300, "[laughs]", "One.  Two, three", "[a " + "b" * 290]
)
def test_text_that_fits_stays_as_it_is(text: str) -> None:
    assert split_text(f"  {text}\n") == [text]


@given(SCRIPTS, st.sampled_from([300, 120]), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_segments_respect_all_limits(text: str, max_bytes: int, max_speakers: int) -> None:
    assume(
        not re.search(r"<\|[^|<>]*(?:[^\w|<>:]|\w{20})[^|<>]*\|>", text)
    )  # one long special token
    try:
        segments = split_text(text, max_bytes, max_speakers)
    except RequestError:
        # Only a cue that does not fit into a segment is refused.
        assert max(len(cue.encode()) for cue in re.findall(r"\[[^\[\]]*\]", text)) > max_bytes / 2
        return
    tagged = "<|speaker:" in text
    for segment in segments:
        assert has_speech(segment)
        assert len(segment.encode()) <= max_bytes
        assert segment == segment.strip()
        lines = segment.split("\n")
        assert all(SPEAKER.match(line) for line in lines) if tagged else len(lines) == 1
        assert len({tag[1] for tag in SPEAKER.finditer(segment)}) <= max_speakers
        assert flatten(segment) == segment
    assert letters("".join(segments)) == letters(text)  # nothing is lost or repeated
    flat = Counter(word for turn in SPEAKER.split(flatten(text)) for word in CUES.findall(turn))
    kept = Counter(word for segment in segments for word in CUES.findall(segment))
    assert kept["[laughs]"] == flat["[laughs]"]


@given(TURNS.filter(lambda text: not re.search(r"</?[a-z]", text)))
@settings(max_examples=100, deadline=None)
def test_only_white_space_is_dropped_if_every_part_has_speech(text: str) -> None:
    text = "x".join(["", *text, ""])
    assume(
        all(len(cue.encode()) <= SEGMENT_BYTES for cue in CUES.findall(text))
    )  # longer ones are refused
    assert bare("".join(split_text(text))) == bare(flatten(text))


@given(st.text(max_size=400), st.sampled_from([32, 64, 300]))
@settings(max_examples=150, deadline=None)
def test_any_characters_can_be_split(text: str, max_bytes: int) -> None:
    text = flatten(text.replace("[", "").replace("<", ""))
    segments = split_text(text, max_bytes)
    assert all(len(segment.encode()) <= max_bytes for segment in segments)
    assert letters("".join(segments)) == letters(text)


def test_sentences_are_preferred_then_clauses_then_spaces() -> None:
    assert split_text(SENTENCE * 9) == [(SENTENCE * n).strip() for n in (4, 4, 1)]
    clauses = "however the quick brown fox jumps over the lazy dog today, " * 9
    assert all(segment.endswith(",") for segment in split_text(clauses))
    words = split_text("word " * 200)
    assert all(set(segment.split()) == {"word"} for segment in words)
    assert [len(word) for word in split_text("x" * 700)] == [300, 300, 100]
    # A whole sentence is better than a full segment.
    long = SENTENCE[:-2] + " and on" * 33 + "."
    assert len(long) == 295
    assert split_text(f"Well. {long} {long}") == ["Well.", long, long]


def test_a_cut_sentence_leaves_no_tiny_remainder() -> None:
    for size in range(301, 340):
        words = ("some words, " + "and more of them " * 20)[: size - 4].strip() + " go."
        parts = split_text(words)
        assert min(map(len, parts)) > 50, parts


@pytest.mark.parametrize(
    "unit",
    [
        "Dr. Smith",
        "e.g. apples",
        "U.S. Army",
        "No. 5",
        "J. R. R. Tolkien",
        "pi is 3.14",
        "1,000,000",
        "10:30 pm",
        "1 000 000",
        "St. John",
        "https://example.com/a.b?c=d,e",
        "me.you@example.com",
        "5\xa0km",
        "z.B. Brot",
        "2. Second",
    ],
)
def test_units_are_not_split(unit: str) -> None:
    for lead in range(240, 300):
        filler = "so it goes " * 30
        text = f"{filler[:lead].strip()}: {unit} {filler}"
        assert any(unit in segment for segment in split_text(text)), lead


@pytest.mark.parametrize(
    "sentence",
    [
        "I know that you and I.",
        'She said "Go away!"',
        "Was it (really so)?",
        "It is no.",
        "I can't.",
        "It cost 1.50.",
        "<b>Quietly now.</b>",
        "Wirklich „so.“",
        "In 2024.",
    ],
)
def test_sentence_ends_are_found(sentence: str) -> None:
    filler = "and a lot more without any mark at all " * 7
    assert split_text(f"{filler}{sentence} {filler}")[-1] == filler.strip()


@pytest.mark.parametrize(
    "sentence", ["今天天气很好。", "「行こう！」", "本当ですか？", "यह अच्छा है। ", "ما هذا؟ "]
)
def test_other_scripts_end_sentences_too(sentence: str) -> None:
    segments = split_text(sentence * 60)
    assert len(segments) > 2
    assert all(segment.endswith(sentence.strip()) for segment in segments)


@given(
    st.lists(
        st.sampled_from(
            [
                "👩‍👩‍👧‍👦",
                "🇩🇪",
                "🇫🇷",
                "👍🏽",
                "e\u0301",
                "क्षि",
                "กำ",
                "한",
                "\u1112\u1161\u11ab",
                "❤️",
                "漢",
                "x",
            ]
        ),
        min_size=80,
        max_size=150,
    )
)
@settings(max_examples=50, deadline=None)
def test_grapheme_clusters_stay_whole(characters: list[str]) -> None:
    text = "x" + "".join(characters) + "x"
    whole = regex.findall(r"\X", text)
    parts = [part for segment in split_text(text) for part in regex.findall(r"\X", segment)]
    # A segment of emoji alone has nothing to say and is dropped.
    kept = "".join(parts)
    if kept == text:
        assert parts == whole
    else:
        assert set(parts) <= set(whole)


def test_an_endless_grapheme_cluster_is_cut_anyway() -> None:
    segments = split_text("x" + "\u0301" * 1000 + "x")
    assert all(len(segment.encode()) <= 300 for segment in segments)


def test_cues_tags_and_pairs_are_never_cut() -> None:
    units = ["[whispers very softly, slowly. Then stops]", "<|odd, one. two|>", "<b>Big. Bold.</b>"]
    for unit in units:
        for lead in range(200, 300):
            text = "so it goes " * 30
            text = f"{text[:lead]}{unit}{text}"
            assert sum(segment.count(unit) for segment in split_text(text)) == 1


def test_a_pair_longer_than_a_segment_is_closed_and_reopened() -> None:
    segments = split_text(f"He said: <whisper>{SENTENCE * 9}</whisper> Loud again. {SENTENCE * 3}")
    assert len(segments) == 3
    for segment in segments:
        assert segment.count("<whisper>") == segment.count("</whisper>") == 1
        assert not re.search(r"<whisper>\s*</whisper>", segment)
    assert bare("".join(segments)).replace("</whisper><whisper>", "") == bare(
        f"He said: <whisper>{SENTENCE * 9}</whisper> Loud again. {SENTENCE * 3}"
    )


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.booleans())
@settings(max_examples=100, deadline=None)
def test_long_pairs_within_long_pairs(before: int, inner: int, after: int, spaced: bool) -> None:
    gap = " " if spaced else ""
    words = [(SENTENCE * n).strip() for n in (before, inner, after)]
    text = gap.join(["<fr a=1>", words[0], "<b>", words[1], "x [hm]</b>", words[2], "</fr>"])
    for segment in split_text(text, 160):
        assert len(segment.encode()) <= 160
        tags = re.findall(r"<(/?)(fr|b)", segment)
        assert "".join(slash + name for slash, name in tags) in (
            "fr/fr", "b/b", "frb/b/fr", "frb/bb/b/fr", ""
        )  # fmt: skip
    assert letters("".join(split_text(text, 160)))["q"] == before + inner + after


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[" + "x" * 400 + "]", r"\[xxx"),
        ("<|" + "x" * 400 + "|>", r"<\|xxx"),
        ("<b x=" + "y" * 300 + ">" + "word " * 90 + "</b>", "<b x=yyy"),
        ("<|speaker:1|> [" + "x" * 290 + "]", r"\[xxx"),
        ("<b>" * 60 + "word " * 90 + "</b>" * 60, "<b>"),
    ],
)
def test_units_that_exceed_a_segment_are_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(RequestError, match=f"{named}.*bytes.*Shorten"):
        split_text(text)


@pytest.mark.parametrize("opening", ["[", "<b>", "<|", "<", "</b>", "<b ", "]"])
def test_unmatched_brackets_are_plain_text(opening: str) -> None:
    text = f"{opening}{SENTENCE * 20}"
    segments = split_text(text)
    assert all(200 < len(segment) <= 300 for segment in segments[:-1])
    assert bare("".join(segments)) == bare(text)


def test_unmatched_tags_do_not_hide_a_pair() -> None:
    pair = "<whisper>So <b>soft. So soft.</whisper>"
    for lead in range(200, 300):
        text = "so it goes " * 30
        assert (
            sum(segment.count(pair) for segment in split_text(f"{text[:lead]}{pair}</b>{text}"))
            == 1
        )


def test_a_long_unmatched_tag_is_plain_text() -> None:
    text = f"x <y {SENTENCE * 9}> z"
    assert len(split_text(text)) == 3
    assert bare("".join(split_text(text))) == bare(text)


def test_speakers_keep_their_tags() -> None:
    assert split_text(f"Intro. <|speaker:1|>{SENTENCE * 6}\n<|speaker:2|> Yes.\nNo.") == [
        "<|speaker:0|> Intro.\n<|speaker:1|> " + (SENTENCE * 4).strip(),
        "<|speaker:1|> " + (SENTENCE * 2).strip() + "\n<|speaker:2|> Yes. No.",
    ]


def test_a_segment_has_few_speakers() -> None:
    text = " ".join(f"<|speaker:{n}|> Hello." for n in (0, 1, 0, 2, 3, 4))
    turn = "<|speaker:{}|> Hello.".format
    assert split_text(text) == [
        "\n".join(map(turn, (0, 1, 0, 2))),
        "\n".join(map(turn, (3, 4))),
    ]
    assert split_text(text, max_speakers=1) == list(map(turn, (0, 1, 0, 2, 3, 4)))


def test_parts_without_speech_stay_with_a_neighbour_or_are_dropped() -> None:
    assert split_text("Wait... 😀 What?!") == ["Wait... 😀 What?!"]
    full = "x" * 290 + "."
    assert split_text(f"{full} ... X{full}") == [f"{full} ...", f"X{full}"]
    assert split_text(f"{'x' * 300} 😀😀😀 {'y' * 300}") == ["x" * 300, "y" * 300]
    assert split_text("<|speaker:1|> ... <|speaker:2|> <|speaker:3|> Hi.") == [
        "<|speaker:1|> ...\n<|speaker:3|> Hi."
    ]
    for text in ("...", "😀" * 500, "<|speaker:1|> ?!", ". " * 10_000):
        assert split_text(text) == []


@pytest.mark.parametrize(("max_bytes", "max_speakers"), [(31, 1), (0, 3), (300, 0)])
def test_impossible_limits_are_refused(max_bytes: int, max_speakers: int) -> None:
    with pytest.raises(RequestError, match="too small"):
        split_text("Hello.", max_bytes, max_speakers)


# 60,000 characters each. Time is not measured, but a quadratic step would take minutes.
@pytest.mark.parametrize(
    "unit",
    [
        "[",
        "<a",
        "<a ",
        "<|",
        "<b>",
        "</b>",
        "[x]",
        "1. ",
        "Dr. ",
        "...",
        "\u0301",
        "🇩🇪",
        "\n",
        "'",
        "漢",
        "<b>x</b>",
        "\u200d",
        "<|speaker:1|> a ",
        "<a x>y",
        "a,",
        "\x00",
    ],
)
def test_hostile_text_ends(unit: str) -> None:
    segments = split_text(unit * (60_000 // len(unit)))
    assert all(len(segment.encode()) <= 300 for segment in segments)
    has_speech(unit * 60_000)
    assert frame_cap(unit * 60_000, FRAME_RATE) > 0


@pytest.mark.parametrize(
    "text",
    [
        "Hello.",
        SENTENCE * 20,
        "<|speaker:1|> One.\n<|speaker:2|>Two. <|speaker:1|> Three.",
        "Line one.\n\nLine two.",
        f"[calm] {SENTENCE * 8} [laughs]",
        "今天天气很好。" * 60,
    ],
)
def test_ordinary_text_is_cut_as_the_oracle_cuts_it(text: str) -> None:
    oracle = pytest.importorskip("mlx_audio.tts.models.fish_drama3.chunking")
    cuts = oracle.split_text(text)  # which leaves two spaces behind some tags
    assert [segment.split() for segment in split_text(text)] == [cut.split() for cut in cuts]
