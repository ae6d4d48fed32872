"""Directions and speaker tags for a voice that reads neither: accepted, and not spoken."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import rt_drama3
from rt_drama3 import Drama3
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.text.directions import spoken_words
from rt_drama3.text.prompt import PromptBuilder
from tests.small import WAIT, codes_of, heard, shared_drama


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello there.", "Hello there."),
        ("[whispers] Hello there.", "Hello there."),
        ("Hello [laughs] there.", "Hello there."),
        ("Hello there [sighs].", "Hello there."),
        ("<whisper>Hello</whisper> there.", "Hello there."),
        ("<|speaker:3|> Hello there.", "Hello there."),
        ("<|speaker:0|>Hello.\n<|speaker:12|> [calm] Why?", "Hello.\nWhy?"),
        ("[a [nested] one] Hello.", "Hello."),
        ("1 < 2, and a ] alone [", "1 < 2, and a ] alone ["),
        ("[whispers]", ""),
        ("<|speaker:1|> [whispers]", ""),
    ],
)
def test_the_words_remain(text: str, words: str) -> None:
    assert spoken_words(text) == words
    assert spoken_words(words) == words


PLAIN = "Hello there. Is it you?"
MARKED = [
    "[whispers] Hello there. Is it you?",
    "Hello there. [turns around] Is it you?",
    "<|speaker:5|> Hello there. <whisper>Is it you?</whisper>",
]


@pytest.fixture(scope="module")
def words_only() -> Iterator[Drama3]:
    """The nano voice, as if it had not been trained on directions."""
    with rt_drama3.load("nano", device="cpu") as drama:
        drama.prompts.reads_directions = False
        yield drama


@pytest.mark.parametrize("text", MARKED)
def test_only_the_words_are_spoken(words_only: Drama3, text: str) -> None:
    plain = words_only.generate(PLAIN, seed=3, max_frames=12)
    assert np.array_equal(words_only.generate(text, seed=3, max_frames=12).codes, plain.codes)


def test_streamed_text_gives_the_same_result(words_only: Drama3) -> None:
    plain = words_only.generate("Hello there.", seed=3, max_frames=12)
    speech = words_only.engine.open(SpeechRequest("", final=False, seed=3, max_frames=12))
    for part in ("[whis", "pers so", "ftly] Hel", "lo there."):
        speech.push_text(part)
    speech.finish()
    _, summary = heard(speech)
    assert [text for text, _ in summary.segments] == ["Hello there."]
    assert np.array_equal(summary.codes, plain.codes)


def test_earlier_turns_lose_their_directions_too() -> None:
    drama = shared_drama()
    builder = PromptBuilder(drama.prompts.tokenizer, drama.config, reads_directions=False)
    codes = np.ones((3, 4), dtype=np.int64)
    marked = builder.build("[calm] Yes.", history=[("<|speaker:2|> [loud] No!", codes)])
    plain = builder.build("Yes.", history=[("No!", codes)])
    assert np.array_equal(marked.rows, plain.rows)


@pytest.mark.parametrize("text", ["[whispers]", "<|speaker:1|> [laughs] [sighs]"])
def test_a_direction_alone_ends_without_audio(nano: Drama3, words_only: Drama3, text: str) -> None:
    for drama in (nano, words_only):  # both: nothing to speak
        take = drama.generate(text)
        assert take.codes.shape == (drama.config.num_codebooks, 0)
        assert take.audio.size == 0
        assert take.complete
    speech = words_only.engine.open(SpeechRequest(text))
    assert list(speech) == []
    assert speech.result(WAIT).segments == ()


def test_a_checkpoint_that_reads_directions_gets_them() -> None:
    drama = shared_drama()
    assert drama.prompts.reads_directions
    marked, plain = (drama.prompts.build(text).rows for text in ("[calm] Yes.", "Yes."))
    assert len(marked) > len(plain)
    speech = drama.engine.open(SpeechRequest("[calm] Yes.", seed=0, max_frames=2))
    assert codes_of(speech).shape[1] == 2
    drama.close()
