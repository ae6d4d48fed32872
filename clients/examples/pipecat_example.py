"""Pipecat's Fish Audio service in a pipeline of its own: says two sentences into a file."""

from __future__ import annotations

import asyncio
import os
import wave

from pipecat.frames.frames import EndFrame, Frame, TTSAudioRawFrame, TTSSpeakFrame, TTSStoppedFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.fish.tts import FishAudioTTSService
from pipecat.workers.runner import WorkerRunner

URL = os.environ.get("RT_DRAMA3_CLIENT_URL", "http://127.0.0.1:8035")
RATE = 16_000


class ToFile(FrameProcessor):
    """The place of a transport: writes what is said."""

    def __init__(self, file: wave.Wave_write) -> None:
        super().__init__()
        self._file = file
        self.stopped = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Takes a frame."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self._file.writeframes(frame.audio)
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped.set()
        await self.push_frame(frame, direction)


async def main() -> None:
    """Runs the pipeline."""
    with wave.open("pipecat.wav", "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        tts = FishAudioTTSService(api_key="any", stop_frame_timeout_s=0.5)
        # The service's address is written into it; this is all that points it elsewhere.
        tts._base_url = f"{URL.replace('http', 'ws', 1)}/v1/tts/live"
        ear = ToFile(file)
        worker = PipelineWorker(
            Pipeline([tts, ear]),
            params=PipelineParams(audio_out_sample_rate=RATE, enable_metrics=True),
            enable_rtvi=False,
        )
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)

        async def talk() -> None:
            for text in ["Sure, one moment.", "Your order arrives on Monday."]:
                ear.stopped.clear()
                await worker.queue_frame(TTSSpeakFrame(text))
                await ear.stopped.wait()
            await worker.queue_frame(EndFrame())

        await asyncio.gather(runner.run(), talk())


asyncio.run(main())
