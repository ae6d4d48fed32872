"""Normalised text and pauses in arriving text, through the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from rt_drama3 import Drama3
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.errors import RequestError
from tests.engine.simulation import Machine
from tests.small import heard, shared_drama

# Pauses.


def test_text_that_can_stand_alone_is_spoken_after_a_pause(
    machine: Callable[..., Machine],
) -> None:
    sim = machine(frames=10)
    speech = sim.open("We meet at 9 a.m. ", final=False)
    begun = sim.clock.now
    sim.run(lambda: sim.heard[speech])
    assert 0.25 <= sim.first(speech) - begun < 0.4
    speech.push_text("Bring food. ")
    sim.run(lambda: len(sim.segments[speech]) == 2)
    assert [segment.text for segment in sim.segments[speech]] == [
        "We meet at 9 a.m.",
        "Bring food.",
    ]


def test_new_text_restarts_the_pause(machine: Callable[..., Machine]) -> None:
    sim = machine(frames=10, text_pause_ms=500)
    speech = sim.open("Take vitamin C. ", final=False)
    sim.rest(0.4)
    speech.push_text("and ")
    sim.rest(5)
    assert not sim.heard[speech]
    assert sim.core.text_pause() == float("inf")
    speech.push_text("D. ")
    sim.rest(0.3)
    assert 0 < sim.core.text_pause() <= 0.25
    sim.run(lambda: sim.heard[speech])
    assert [segment.text for segment in sim.segments[speech]] == ["Take vitamin C. and D."]


@pytest.mark.parametrize(("text", "pause"), [("He lives in the ", 250), ("At 9 a.m. ", 0)])
def test_text_waits_where_it_cannot_stand_alone_or_no_pause_is_set(
    machine: Callable[..., Machine], text: str, pause: int
) -> None:
    sim = machine(frames=10, text_pause_ms=pause)
    speech = sim.open(text, final=False)
    sim.rest(5)
    assert not sim.heard[speech]
    speech.finish()
    sim.run(lambda: speech.ended)
    assert sim.heard[speech]


# Normalisation.


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("It costs $5.", "It costs five dollars."),
        ("See [the manual](https://a.example/b).", "See the manual."),
        ("Wait... what?", "Wait, what?"),
    ],
)
def test_nano_speaks_the_words(nano: Drama3, written: str, words: str) -> None:
    take = nano.generate(written, seed=3, max_frames=40)
    assert np.array_equal(take.codes, nano.generate(words, seed=3, max_frames=40).codes)
    off = nano.generate(written, seed=3, max_frames=40, normalize="off")
    assert not np.array_equal(take.codes, off.codes) or "$" in written


def test_segments_keep_what_was_written(nano: Drama3) -> None:
    speech = nano.engine.open(SpeechRequest("# Title\n\n- it is $5", seed=3, max_frames=12))
    _, summary = heard(speech)
    assert summary.segments[0][0] == "# Title"


def test_other_checkpoints_are_asked_for_it() -> None:
    with shared_drama() as drama:
        speak = partial(drama.generate, seed=1, max_frames=6)
        auto, off = speak("It is 5.").codes, speak("It is 5.", normalize="off").codes
        on, words = speak("It is 5.", normalize="on").codes, speak("It is five.").codes
        assert np.array_equal(auto, off)
        assert np.array_equal(on, words)
        with pytest.raises(RequestError, match="normalize is 'yes'; use auto, on or off"):
            drama.generate("Hi.", normalize="yes")
