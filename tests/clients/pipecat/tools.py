"""What the tests of the Pipecat service share: the service in a real pipeline that runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integrations.tools import FLUSH, SEED, Watched
from tests.small import WAIT, until

pytest.importorskip("pipecat", reason="needs pipecat-ai")
ours = pytest.importorskip("pipecat_rtdrama3", reason="needs clients/pipecat", exc_type=ImportError)

from pipecat.frames.frames import (  # noqa: E402
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
from pipecat.pipeline.pipeline import Pipeline  # noqa: E402
from pipecat.pipeline.worker import PipelineParams, PipelineWorker  # noqa: E402
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor  # noqa: E402
from pipecat.workers.runner import WorkerRunner  # noqa: E402

RATE = 24_000


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
        """Waits until so many frames of a kind have come."""
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
async def call(
    server: Watched | str, rate: int = RATE, last: type[Frame] = EndFrame, **settings: Any
) -> AsyncIterator[Call]:
    """The service, in a pipeline that runs; nothing of it is left afterwards."""
    url = server if isinstance(server, str) else server.url
    before = asyncio.all_tasks()
    chosen = settings.pop("settings", ours.RtDrama3TTSSettings(seed=SEED))
    service = ours.RtDrama3TTSService(url, settings=chosen, **settings)
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
        await asyncio.sleep(0)  # what was just told to end does
        left = [task for task in asyncio.all_tasks() - before if not task.done()]
        assert not left, left


def begun(server: Watched, number: int, pieces: int) -> None:
    """Waits until a stream has begun so many pieces of its text."""

    def is_so() -> bool:
        return len(server.speeches) > number and len(server.speeches[number].segments) >= pieces

    until(is_so, f"beginning piece {pieces} of stream {number}")


def replayed(server: Watched, number: int, text: str, rate: int = RATE) -> bytes:
    """The same utterance by the native dialect, one sentence after the other.

    Args:
        server: that spoke it.
        number: of the stream, oldest first.
        text: that it must have been.
        rate: Hz.
    """
    pieces = [piece for piece, _ in server.speeches[number].segments]
    assert " ".join(pieces) == " ".join(text.split())
    parts: list[Any] = []
    for piece in pieces:
        parts += [piece + " ", FLUSH]
    return server.native(*parts, sample_rate=rate)
