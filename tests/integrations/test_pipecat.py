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
from tests.small import WAIT, until

pytest.importorskip("pipecat", reason="needs pipecat-ai")

from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    EndFrame,
    ErrorFrame,
    Frame,
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
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.fish.tts import FishAudioTTSService
from pipecat.workers.runner import WorkerRunner

SILENCE = 0.4  # seconds without audio after which the service calls an utterance ended


class Here(FishAudioTTSService):
    """Pipecat's service at another address."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(api_key="any", **settings)
        self._base_url = f"{url.replace('http', 'ws', 1)}/v1/tts/live"


class Ear(FrameProcessor):
    """Keeps what comes out of the service.

    Attributes:
        heard: audio, by utterance.
        frames: everything, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []
        self.rates: set[int] = set()
        self.frames: list[Frame] = []
        self._changed = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        if isinstance(frame, TTSStartedFrame):
            self.heard.append(b"")
        elif isinstance(frame, TTSAudioRawFrame):
            self.heard[-1] += frame.audio
            self.rates.add(frame.sample_rate)
        self._changed.set()
        await self.push_frame(frame, direction)

    def of(self, kind: type[Frame]) -> list[Any]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    async def until(self, kind: type[Frame], count: int) -> None:
        """Waits until so many frames of a kind have come."""
        async with asyncio.timeout(WAIT):
            while len(self.of(kind)) < count:
                self._changed.clear()
                await self._changed.wait()


class Call:
    """A pipeline that runs."""

    def __init__(self, worker: Any, ear: Ear, service: Here) -> None:
        self.ear, self.service = ear, service
        self._worker = worker

    async def send(self, *frames: Frame) -> None:
        await self._worker.queue_frames(list(frames))

    async def say(self, text: str) -> None:
        """Speaks, and waits until the pipeline says that it was."""
        ended = len(self.ear.of(TTSStoppedFrame))
        await self.send(TTSSpeakFrame(text))
        await self.ear.until(TTSStoppedFrame, ended + 1)


@asynccontextmanager
async def call(server: Watched, rate: int = 16_000, **settings: Any) -> AsyncIterator[Call]:
    service = Here(server.url, **{"stop_frame_timeout_s": SILENCE, **settings})
    ear = Ear()
    worker = PipelineWorker(
        Pipeline([service, ear]),
        params=PipelineParams(
            audio_out_sample_rate=rate, enable_metrics=True, enable_usage_metrics=True
        ),
        cancel_on_idle_timeout=False,
        enable_rtvi=False,
    )
    started = asyncio.Event()

    async def on_started(*_: Any) -> None:
        started.set()

    worker.add_event_handler("on_pipeline_started", on_started)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    opened = len(server.speeches)
    running = asyncio.create_task(runner.run())
    await asyncio.wait_for(started.wait(), WAIT)
    await asyncio.to_thread(until, lambda: len(server.speeches) > opened, "the service's start")
    running_call = Call(worker, ear, service)
    try:
        yield running_call
    finally:
        await running_call.send(EndFrame())
        await asyncio.wait_for(running, WAIT)


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
            assert not talk.ear.of(ErrorFrame)
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
    """The service stops, closes and connects anew, so the close is known at once."""

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
            assert not talk.ear.of(ErrorFrame)
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
            assert not talk.ear.of(ErrorFrame)

    run(work())
    usual, other = (speech.request for speech in server.speeches)
    assert (usual.temperature, usual.top_p) == (None, None)
    assert (other.temperature, other.top_p) == (0.4, 0.8)
