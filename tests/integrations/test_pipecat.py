"""pipecat-ai's FishAudioTTSService: utterances, interruption, metrics, on a real pipeline.

Its address is written into it, so ``Here`` names another; nothing else is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integrations.conftest import run
from tests.integrations.tools import SENTENCES, Interruption, Watched, assert_same
from tests.server.tools import LONG
from tests.small import until

pytest.importorskip("pipecat", reason="needs pipecat-ai")

from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    ErrorFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData, TTSUsageMetricsData
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.fish.tts import FishAudioTTSService

from tests.integrations.pipelines import Call, piped

SILENCE = 0.4  # seconds without audio after which the service calls an utterance ended


class Here(FishAudioTTSService):
    """Pipecat's service at another address."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(api_key="any", **settings)
        self._base_url = f"{url.replace('http', 'ws', 1)}/v1/tts/live"


@asynccontextmanager
async def call(server: Watched, rate: int = 16_000, **settings: Any) -> AsyncIterator[Call]:
    """The service, in a pipeline that runs, once it has begun its stream."""
    service = Here(server.url, **{"stop_frame_timeout_s": SILENCE, **settings})
    opened = len(server.speeches)
    async with piped(service, rate) as talk:
        await asyncio.to_thread(until, lambda: len(server.speeches) > opened, "the service's start")
        yield talk


def errors(talk: Call) -> list[str]:
    """What went wrong, but for audio that this machine made later than the service waits for it."""
    found = [frame.error for frame in talk.ear.of(ErrorFrame)]
    return [error for error in found if "completed with no audio" not in error]


@pytest.mark.parametrize("latency", ["balanced", "normal"])
@pytest.mark.parametrize("rate", [44_100, 24_000, 16_000])
def test_utterances(rate: int, latency: str, server: Watched) -> None:
    """Each is whole when it ends, though the service never says that one has ended."""

    async def work() -> list[bytes]:
        settings = Here.Settings(latency=latency)
        async with call(server, rate, settings=settings) as talk:
            for text in SENTENCES:
                await talk.say(text)
            assert talk.ear.rates == {rate}
            assert not errors(talk)
            return talk.ear.heard

    heard = run(work())
    assert len(server.speeches) == 1
    quality = "high" if latency == "normal" else "low_latency"
    expected = server.native_pieces(*SENTENCES, sample_rate=rate, quality=quality)
    assert len(heard) == len(expected) == 3
    for one, other in zip(heard, expected, strict=True):
        assert_same(one, other)


def test_an_answer_as_an_llm_writes_it(server: Watched) -> None:
    async def work() -> bytes:
        async with call(server, 44_100) as talk:
            words = ["Hel", "lo there. ", "And ", "another one.", " Now the third."]
            await talk.send(
                LLMFullResponseStartFrame(),
                *map(LLMTextFrame, words),
                LLMFullResponseEndFrame(),
            )
            await talk.ear.until(TTSStoppedFrame, 1)
            return b"".join(talk.ear.heard)

    assert_same(run(work()), b"".join(server.native_pieces(*SENTENCES, sample_rate=44_100)))


def test_metrics(server: Watched) -> None:
    async def work() -> list[Any]:
        async with call(server) as talk:
            await talk.say(SENTENCES[0])
            await talk.say(SENTENCES[1])
            return [data for frame in talk.ear.of(MetricsFrame) for data in frame.data]

    found = run(work())
    first_bytes = [d.value for d in found if isinstance(d, TTFBMetricsData) and d.value]
    characters = [d.value for d in found if isinstance(d, TTSUsageMetricsData)]
    assert len(first_bytes) == 2
    assert characters == [len(text) for text in SENTENCES[:2]]


def test_interruption(talkative: Watched) -> None:
    """The service stops, closes and reconnects, so the close is noticed immediately."""

    async def work() -> None:
        async with call(talkative) as talk:
            held = Interruption(talkative, begun=True)
            await talk.send(TTSSpeakFrame(LONG))
            await talk.ear.until(TTSAudioRawFrame, 1)
            await asyncio.to_thread(held.wait_until_held)
            await talk.service.queue_frame(BotStartedSpeakingFrame(), FrameDirection.UPSTREAM)
            await talk.send(InterruptionFrame())
            await asyncio.to_thread(held.wait_until_known)
            assert await asyncio.to_thread(held.finish) <= 1
            await talk.ear.until(InterruptionFrame, 1)
            behind = talk.ear.frames[-1]
            await talk.send(TTSSpeakFrame(LONG))
            await talk.ear.until(TTSStartedFrame, 2)
            # Nothing of the first utterance came behind the interruption.
            place = talk.ear.frames.index(behind)
            second = talk.ear.frames.index(talk.ear.of(TTSStartedFrame)[1])
            assert not [f for f in talk.ear.frames[place:second] if isinstance(f, TTSAudioRawFrame)]
            count = len(talk.ear.of(TTSAudioRawFrame))
            await talk.ear.until(TTSAudioRawFrame, count + 3)
            assert not errors(talk)
            talkative.speeches[-1].cancel()

    run(work())
    assert len(talkative.speeches) == 2  # each connection begins with a start


def test_its_settings(server: Watched) -> None:
    async def work() -> None:
        async with call(server) as talk:
            await talk.say(SENTENCES[0])
        chosen = Here.Settings(voice="9" * 32, model="drama-3", temperature=0.4, top_p=0.8)
        async with call(server, settings=chosen) as talk:
            await talk.say(SENTENCES[0])
            assert not errors(talk)

    run(work())
    usual, other = (speech.request for speech in server.speeches)
    assert (usual.temperature, usual.top_p) == (None, None)
    assert (other.temperature, other.top_p) == (0.4, 0.8)
