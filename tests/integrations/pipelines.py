"""A speech service in a real Pipecat pipeline that runs, for any service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.small import WAIT

pytest.importorskip("pipecat", reason="needs pipecat-ai")

from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner


class Ear(FrameProcessor):  # type: ignore[misc]
    """Keeps what comes out of the service.

    Attributes:
        frames: everything, in order.
        heard: audio, by utterance.
        rates: of the audio.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []
        self.heard: list[bytes] = []
        self.rates: set[int] = set()
        self._changed = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.keep(frame)
        await self.push_frame(frame, direction)

    def keep(self, frame: Frame) -> None:
        self.frames.append(frame)
        if isinstance(frame, TTSStartedFrame):
            self.heard.append(b"")
        elif isinstance(frame, TTSAudioRawFrame):
            self.heard[-1] += frame.audio
            self.rates.add(frame.sample_rate)
        self._changed.set()

    def of(self, kind: type[Frame]) -> list[Any]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    async def until(self, kind: type[Frame], count: int) -> None:
        """Waits until that many frames of a kind have arrived."""
        async with asyncio.timeout(WAIT):
            while len(self.of(kind)) < count:
                self._changed.clear()
                await self._changed.wait()


class Errors(FrameProcessor):  # type: ignore[misc]
    """Stands in front of the service, where its errors go."""

    def __init__(self, ear: Ear) -> None:
        super().__init__()
        self._ear = ear

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, ErrorFrame):
            self._ear.keep(frame)
        await self.push_frame(frame, direction)


class Call:
    """A pipeline that runs."""

    def __init__(self, worker: Any, ear: Ear, service: Any) -> None:
        self.ear, self.service = ear, service
        self._worker = worker

    async def send(self, *frames: Frame) -> None:
        await self._worker.queue_frames(list(frames))

    async def say(self, text: str) -> bytes:
        """Speaks one sentence, and waits until the pipeline says that it was."""
        number = len(self.ear.of(TTSStoppedFrame))
        await self.send(TTSSpeakFrame(text))
        await self.ear.until(TTSStoppedFrame, number + 1)
        return self.ear.heard[-1]

    async def answer(self, words: Iterable[str]) -> bytes:
        """Speaks what a language model writes, and waits for its end."""
        number = len(self.ear.of(TTSStoppedFrame))
        texts = map(LLMTextFrame, words)
        await self.send(LLMFullResponseStartFrame(), *texts, LLMFullResponseEndFrame())
        await self.ear.until(TTSStoppedFrame, number + 1)
        return self.ear.heard[-1]

    def spoken_text(self) -> list[str]:
        return [frame.text for frame in self.ear.of(TTSTextFrame)]


@asynccontextmanager
async def piped(service: Any, rate: int, last: type[Frame] = EndFrame) -> AsyncIterator[Call]:
    """A service in a pipeline that runs, until it is ended by a frame of that kind."""
    ear = Ear()
    worker = PipelineWorker(
        Pipeline([Errors(ear), service, ear]),
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
    running = asyncio.create_task(runner.run())
    await asyncio.wait_for(started.wait(), WAIT)
    talk = Call(worker, ear, service)
    try:
        yield talk
    finally:
        await (worker.cancel() if last is CancelFrame else talk.send(last()))
        await asyncio.wait_for(running, WAIT)
