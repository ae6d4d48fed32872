"""Interruptions as Pipecat makes them: what is heard, what is computed, and the connection."""

from __future__ import annotations

import asyncio

from tests.clients.pipecat.tools import RATE, call, ours
from tests.integrations.conftest import run
from tests.integrations.tools import Interruption, Watched
from tests.server.tools import LONG

from pipecat.frames.frames import (  # isort: skip - tools has looked whether it is there
    ErrorFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSUpdateSettingsFrame,
)

BRIEF = TTSUpdateSettingsFrame(delta=ours.RtDrama3TTSSettings(max_seconds=0.3))


def test_interruption(talkative: Watched) -> None:
    """One more frame at most, no audio behind it, the next utterance on the same connection."""

    async def work() -> None:
        async with call(talkative) as talk:
            held = Interruption(talkative)
            await talk.send(LLMFullResponseStartFrame(), LLMTextFrame(LONG))
            await talk.ear.until(TTSAudioRawFrame, 1)
            await asyncio.to_thread(held.wait_until_held)
            await talk.send(InterruptionFrame())
            await asyncio.to_thread(held.wait_until_known)
            # The pipeline learns of it without a word of the server, which stands still here.
            await talk.ear.until(InterruptionFrame, 1)
            assert await asyncio.to_thread(held.finish) <= 1
            behind = talk.ear.frames.index(talk.ear.of(InterruptionFrame)[0])
            await talk.send(BRIEF, TTSSpeakFrame(LONG))
            await talk.ear.until(TTSStoppedFrame, 1)
            second = talk.ear.frames.index(talk.ear.of(TTSStartedFrame)[1])
            between = talk.ear.frames[behind:second]
            assert not [frame for frame in between if isinstance(frame, TTSAudioRawFrame)]
            assert len(talk.ear.heard[1]) >= 2 * 0.2 * RATE
            first, other = {}, {}
            for frame in talk.ear.of(TTSAudioRawFrame):
                (first if talk.ear.frames.index(frame) < behind else other)[frame.context_id] = 1
            assert len(first) == len(other) == 1
            assert first.keys() != other.keys()
            assert not talk.ear.of(ErrorFrame)
            assert talkative.place.metric("connections", route="/v1/stream") == 1

    run(work())
    assert len(talkative.speeches) == 2


def test_consecutive_interruptions(talkative: Watched) -> None:
    """At any moment, also before there is audio, and text of the old answer goes nowhere."""

    async def work() -> None:
        async with call(talkative) as talk:
            for number in range(6):
                await talk.send(LLMFullResponseStartFrame(), LLMTextFrame("No end in sight. "))
                if number % 2:
                    await talk.ear.until(TTSAudioRawFrame, len(talk.ear.of(TTSAudioRawFrame)) + 1)
                await talk.send(InterruptionFrame())
                await talk.ear.until(InterruptionFrame, number + 1)
            await talk.send(BRIEF)
            before = len(talk.ear.heard)
            await talk.say(LONG)
            assert len(talk.ear.heard) == before + 1
            assert not talk.ear.of(ErrorFrame)
            assert talkative.place.metric("connections", route="/v1/stream") == 1

    run(work())


def test_words_overtaken_by_the_interruption(server: Watched) -> None:
    """They are not heard, neither immediately nor in the next answer."""

    async def work() -> list[str]:
        async with call(server) as talk:
            await talk.send(LLMFullResponseStartFrame(), LLMTextFrame("Hello there. And "))
            await talk.ear.until(TTSAudioRawFrame, 1)
            await talk.send(InterruptionFrame())
            await talk.ear.until(InterruptionFrame, 1)
            await talk.send(LLMTextFrame("another "), LLMTextFrame("one. "))
            await talk.send(LLMFullResponseEndFrame())
            await talk.answer(["Now ", "the third."])
            assert not talk.ear.of(ErrorFrame)
            return talk.spoken_text()

    assert run(work()) == ["Hello there.", "Now the third."]
    assert len(server.speeches) == 2
    assert [segment for segment, _ in server.segments(1)] == ["Now the third."]


def test_pipeline_without_answer_frames_speaks_after_an_interruption(
    server: Watched,
) -> None:
    async def work() -> None:
        async with call(server) as talk:
            await talk.send(LLMTextFrame("Hello there. "))
            await talk.ear.until(TTSAudioRawFrame, 1)
            await talk.send(InterruptionFrame())
            await talk.ear.until(InterruptionFrame, 1)
            before = len(talk.ear.of(TTSAudioRawFrame))
            await talk.send(LLMTextFrame("Now the third. "))
            await talk.ear.until(TTSAudioRawFrame, before + 1)

    run(work())


def test_uninterruptible_speech_is_not_interrupted(talkative: Watched) -> None:
    settings = ours.RtDrama3TTSSettings(max_seconds=1)

    async def work() -> None:
        async with call(talkative, settings=settings) as talk:
            held = Interruption(talkative)
            warning = TTSSpeakFrame(LONG)
            warning.interruptible = False
            await talk.send(warning)
            await talk.ear.until(TTSAudioRawFrame, 1)
            await asyncio.to_thread(held.wait_until_held)
            await talk.send(InterruptionFrame())
            await talk.ear.until(InterruptionFrame, 1)
            assert await asyncio.to_thread(held.finish) > 1
            await talk.ear.until(TTSStoppedFrame, 1)
            assert len(talk.ear.heard[0]) >= 2 * 0.9 * RATE

    run(work())
