"""The directions that the embedded voice was trained on change how fast it speaks.

`[fast]` and `[slow]` change the number of frames of the same words; guidance and steering amplify
that. Every count is a sum over several texts with fixed seeds, so that no single draw decides.
"""

from __future__ import annotations

from functools import cache

import pytest

import rt_drama3
from rt_drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.scenes.steering import Steering
from tests.small import admit_all

TEXTS = (
    "The meeting was moved to three in the afternoon.",
    "I will send you the details in a moment.",
    "Please hold the line while I look for your order.",
    "We can meet you at the station tomorrow morning.",
    "The weather will be warm and dry this weekend.",
)
MEASURED_ON = (
    "Your package has arrived at the front desk.",
    "Thank you for waiting, I have found your account.",
    "The next train to the city leaves in ten minutes.",
    "There is a small garden behind the old house.",
)
LAYER = 6
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def voice() -> Drama3:
    rows = len(TEXTS)
    config = EngineConfig(step_mode="eager", max_streams=rows, guidance_rows=rows)
    drama = rt_drama3.load("nano", device="cpu", engine=config)
    admit_all(drama.engine)
    return drama


@cache
def frames(drama: Drama3, direct: str = "", guidance: float = 0, slower: float = 0) -> int:
    """The number of frames of all texts."""
    steering = [(slow(drama), slower)] if slower else []
    speeches = [
        drama.engine.open(
            SpeechRequest(
                f"{direct} {text}".strip(),
                seed=seed,
                guidance=guidance,
                steering=steering,
                audio=False,
            )
        )
        for seed, text in enumerate(TEXTS)
    ]
    return sum(speech.result().codes.shape[1] for speech in speeches)


@cache
def slow(drama: Drama3) -> Steering:
    return drama.steering.measure(drama.prompts, "slow", "[slow]", MEASURED_ON, LAYER)


def test_fast_is_faster_and_slow_is_slower(voice: Drama3) -> None:
    assert frames(voice, "[fast]") < frames(voice) < frames(voice, "[slow]") / 1.15


def test_guidance_amplifies_it(voice: Drama3) -> None:
    assert frames(voice, "[fast]", guidance=1) < frames(voice, "[fast]")
    assert frames(voice, "[slow]", guidance=0.5) > frames(voice, "[slow]")


def test_steering_works_without_a_direction_and_amplifies_one(voice: Drama3) -> None:
    assert frames(voice, slower=4) > 1.1 * frames(voice)
    assert frames(voice, "[slow]", slower=3) > frames(voice, "[slow]")


def test_other_directions_are_ignored(voice: Drama3) -> None:
    assert frames(voice, "[with a smile]") == frames(voice)


def test_guidance_adds_no_unconditional_row_for_other_directions(voice: Drama3) -> None:
    """It would be the same prompt, and cost a second row."""
    unknown, trained = "[with a smile] Good morning.", "[fast] Good morning."
    prompts = voice.prompts
    assert prompts.unconditional(prompts.build(unknown), unknown) is None
    assert prompts.unconditional(prompts.build(trained), trained) is not None
    assert frames(voice, "[with a smile]", guidance=3) == frames(voice)
