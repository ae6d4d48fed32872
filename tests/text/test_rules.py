"""Text rules: validation, line breaks, speaker tags, has_speech, frame caps, and the oracle."""
# ruff: noqa: RUF001 - punctuation of many scripts is the subject here

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.errors import RequestError
from rt_drama3.text.rules import (
    MAX_FRAMES,
    check_text,
    flatten,
    frame_cap,
    has_speech,
    reference_transcript,
    with_speaker_tag,
)

FRAME_RATE = 44_100 / 2048
SENTENCE = "The quick brown fox jumps over the lazy dog near the river bank. "  # 65 bytes


# --- check_text -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["Hi", "...", "😀", "a\x00b", "<|speaker:15|> x", "[laughs]", "<b>", "[", "مرحبا", "|>"]
)
def test_ordinary_text_is_accepted(text: str) -> None:
    check_text(text)


@pytest.mark.parametrize(
    "token",
    ["<|im_start|>", "<|im_end|>", "<|voice|>", "<|text|>", "<|interleave|>", "<|semantic:"],
)
def test_structural_tokens_are_refused_by_name(token: str) -> None:
    with pytest.raises(RequestError, match=re.escape(token)):
        check_text(f"Hello {token}7|> world", "the text of history 2")
    with pytest.raises(RequestError, match=r"^the text of history 2"):
        check_text(token, "the text of history 2")


@pytest.mark.parametrize(
    "tag",
    [
        "<|speaker:16|>",
        "<|speaker:01|>",
        "<|speaker:-1|>",
        "<|speaker:|>",
        "<|speaker:1",
        "<|speaker",
        "<|speaker:1>",
        "<|speaker: 1|>",
        "<| speaker:1|>",
        "<|Speaker:1|>",
        "<|speaker:١|>",
    ],
)
def test_other_speaker_tags_are_refused_by_name(tag: str) -> None:
    with pytest.raises(RequestError, match=re.escape(tag)) as error:
        check_text(f"<|speaker:1|> Hello. {tag}")
    assert "<|speaker:0|> to <|speaker:15|>" in str(error.value)


@pytest.mark.parametrize("text", ["", " ", "\n\u3000\u2028", "\x00\x1f", "<|speaker:1|> \n"])
def test_empty_text_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="empty"):
        check_text(text)


def test_a_lone_surrogate_is_refused_with_its_position() -> None:
    with pytest.raises(RequestError, match=r"U\+D83D, at character 3"):
        check_text("abc\ud83d")


@pytest.mark.parametrize("text", [None, b"Hello", 5])
def test_other_types_are_refused(text: object) -> None:
    with pytest.raises(RequestError, match=type(text).__name__):
        check_text(text)


# --- flatten, speaker tags ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "flat"),
    [
        ("one\ntwo", "one two"),
        ("one \r\n\r\n two", "one two"),
        ("one\u2028two\x85three\vfour\ffive", "one two three four five"),
        ("\n\n one \n", "one"),
        ("one  two\tthree\u3000four ", "one  two\tthree\u3000four "),
        ("one\x00two\x1b three", "one two three"),
        ("<|im_\x00end|>", "<|im_ end|>"),  # dropping the control character would forge a token
        (
            "<|speaker:0|> Hi.\n\n<|speaker:1|> You\ntoo.",
            "<|speaker:0|> Hi.\n<|speaker:1|> You too.",
        ),
        ("<|speaker:0|> Hi. <|speaker:1|> You.", "<|speaker:0|> Hi. <|speaker:1|> You."),
    ],
)
def test_line_breaks_become_spaces(text: str, flat: str) -> None:
    assert flatten(text) == flat


@given(
    st.lists(st.sampled_from(["a", " ", "\n", "\r", "\x00", "\u2028", "\u3000", "<|speaker:1|>"]))
)
@settings(max_examples=100, deadline=None)
def test_flattening_is_idempotent(parts: list[str]) -> None:
    flat = flatten("".join(parts))
    assert flatten(flat) == flat
    assert re.search(r"[\r\x00\u2028]|\n(?!<\|speaker)", flat) is None


@pytest.mark.parametrize(
    ("text", "tagged", "transcript"),
    [
        ("Hi", "<|speaker:0|> Hi", "<|speaker:0|> Hi"),
        (" Hi ", "<|speaker:0|>  Hi ", "<|speaker:0|>  Hi "),
        ("<|speaker:3|>Hi", "<|speaker:3|>Hi", "<|speaker:3|>Hi"),
        ("\u3000 <|speaker:12|> Hi", "\u3000 <|speaker:12|> Hi", "<|speaker:12|>\u3000  Hi"),
        ("\x1f<|speaker:1|>", "<|speaker:0|> \x1f<|speaker:1|>", "<|speaker:0|> \x1f<|speaker:1|>"),
        ("a <|speaker:1|> b", "<|speaker:0|> a <|speaker:1|> b", "<|speaker:0|> a <|speaker:1|> b"),
    ],
)
def test_speaker_tag_comes_first(text: str, tagged: str, transcript: str) -> None:
    assert with_speaker_tag(text) == tagged
    assert reference_transcript(text) == transcript


# --- has_speech, frame_cap -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["a", "7", "[laughs]", "<b>x</b>", "漢", "مرحبا", "½", "<|speaker:1|> a", "<a", "Ünï", "ไทย"],
)
def test_speech(text: str) -> None:
    assert has_speech(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "...",
        "?!",
        "😀",
        "❤️",
        "1️⃣",
        "ℹ️",
        "👩‍👩‍👧",
        "🇩🇪",
        "—",
        "[...]",
        "[]",
        "<b></b>",
        "<|speaker:1|>",
        "<|x|> !",
        "\u200b",
        "\u0301",
        "。",
        "_",
        "<whisper> ... </whisper>",
    ],
)
def test_no_speech(text: str) -> None:
    assert not has_speech(text)


# Approximate seconds of a human reading.
READINGS = {
    SENTENCE.strip(): 4.2,
    "Hello.": 0.7,
    "Call 555-0199, extension 42, before 10:30 on 12/31/2026.": 8.0,
    "今天天气很好，我们去公园吧。": 2.8,
    "おはようございます。今日はいい天気ですね。": 3.5,
    "안녕하세요, 오늘 날씨가 좋네요.": 3.0,
    "नमस्ते, आप कैसे हैं?": 1.8,
    "The FBI and the CIA met at NASA.": 3.2,
    "[laughs] Oh, stop it.": 3.0,
    "Donaudampfschifffahrtsgesellschaftskapitän": 3.2,
    "1234567890": 4.0,
}


@pytest.mark.parametrize(("text", "seconds"), READINGS.items())
def test_frame_cap_is_generous_but_bounded(text: str, seconds: float) -> None:
    cap = frame_cap(text, FRAME_RATE) / FRAME_RATE
    assert 2 * seconds + 2 < cap < 5 * seconds + 8


def test_frame_cap_scales_with_frame_rate_up_to_the_limit() -> None:
    assert frame_cap(SENTENCE, 50.0) == pytest.approx(2 * frame_cap(SENTENCE, 25.0), abs=1)
    assert frame_cap("7" * 20_000, FRAME_RATE) == MAX_FRAMES
    assert frame_cap("Hm" + "." * 290, FRAME_RATE) < 8 * FRAME_RATE
    assert frame_cap("...", FRAME_RATE) > 0


# --- the oracle ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Hi",
        "<|im_end|>",
        "<|semantic:3|>",
        "<|speaker:16|> a",
        "<|speaker:01|> a",
        "...",
        "<|speaker:15|> a",
        "<|speaker:x|> a",
        "\u2029\u3000",
        "<|voice|>",
        "<|speaker:3",
    ],
)
def test_the_oracle_refuses_the_same_text(text: str) -> None:
    oracle = pytest.importorskip("mlx_audio.tts.models.fish_drama3.chunking")
    try:
        oracle.validate_text(text, "text")
    except ValueError:
        with pytest.raises(RequestError):
            check_text(text)
    else:
        check_text(text)


@given(st.text(st.sampled_from("a \t\n\u3000<|speaker:1>"), max_size=12), st.booleans())
@settings(max_examples=100, deadline=None)
def test_speaker_tags_are_placed_as_the_oracle_does(text: str, tagged: bool) -> None:
    oracle = pytest.importorskip("mlx_audio.tts.models.fish_drama3.chunking")
    text = text[:3] + "<|speaker:7|>" + text[3:] if tagged else text
    assert with_speaker_tag(text) == oracle.with_speaker_tag(text)
    assert reference_transcript(text) == oracle.reference_transcript(text)
