"""Delivery: the frames of every stream to PCM in groups, and the PCM to who listens.

``frame`` and ``finish`` belong to the device thread, decoding to the codec's (``codec_stream``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rt_drama3.codec import Codec
from rt_drama3.codec_stream import CodecWorker, FrameGroup
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.scheduling import Costs, Estimate, group_size, may_prefill
from rt_drama3.engine.speech import Audio, Idle, Segment, SpeechSummary, Stamps
from rt_drama3.engine.stream import Codes, EngineStream
from rt_drama3.errors import RtDrama3Error


class Delivery:
    """See the module docstring.

    Args:
        codec: of the checkpoint.
        config: settings.
        costs: what decoding is known to cost, and where it is noted.
        speaking: tells the streams that make frames now.
        step_seconds: tells what the next step will cost.
    """

    def __init__(
        self,
        codec: Codec,
        config: EngineConfig,
        costs: Costs,
        speaking: Callable[[], list[EngineStream]],
        step_seconds: Callable[[], float],
    ) -> None:
        self._codec, self._config, self._costs = codec, config, costs
        self._frame_seconds = 1 / codec.config.frame_rate
        self._speaking, self._step_seconds = speaking, step_seconds
        self._worker = CodecWorker(codec.device, config.codec_async)

    def frame(self, stream: EngineStream, codes: Codes, sampled: float) -> None:
        """Takes one frame of a stream: its codes ``[num_codebooks]``, and when they were drawn."""
        if not stream.request.audio:
            return
        stream.codec.add(codes, len(stream.segments) - 1, stream.prefilled, sampled)
        wanted = group_size(
            stream.lead(time.monotonic(), self._frame_seconds),
            self._config.codec_batch_frames,
            stream.codec.last_size,
            self._step_seconds(),
            self._costs,
            self._config.codec_batch_min,
        )
        if stream.codec.gathered >= wanted:
            self.flush(stream)

    def flush(self, stream: EngineStream) -> None:
        """Sends what was gathered off to be decoded."""
        if not stream.codec.gathered:
            return
        due = self._due(stream)
        group = stream.codec.take()
        decoded = threading.Event()

        def job() -> None:
            stream.attempt(lambda s: self._deliver(s, group))
            decoded.set()

        self._worker.submit(due, job)
        if group.first_frame == 0 and self._may_wait(stream):
            decoded.wait(2 * self._costs.decode_seconds(1))

    def finish(
        self, stream: EngineStream, summary: SpeechSummary, error: RtDrama3Error | None
    ) -> None:
        """Delivers what is left and tells the client the end after its last samples.

        Of a cancelled stream nothing is waited for, not even the decode that runs: whoever barges
        in is told at once.
        """
        if stream.cancelled:
            stream.speech.end(stream.tell(summary), error)
            return
        self.flush(stream)

        def last() -> None:
            # What was still to be decoded may have failed meanwhile.
            stream.speech.end(stream.tell(summary), error or stream.failure)

        self._worker.submit(self._due(stream), last)

    def idle(self, stream: EngineStream) -> None:
        """Reports, behind what was made so far, that nothing more is left to speak."""

        def report() -> None:
            if stream.text.empty() and not stream.text.final:
                stream.speech.put(Idle())

        self._worker.submit(self._due(stream), report)

    def _due(self, stream: EngineStream) -> float:
        """When a listener needs the next frame to be decoded."""
        if stream.playing_since is None:
            return 0.0
        return stream.playing_since + stream.codec.submitted * self._frame_seconds

    def close(self) -> None:
        """Finishes what was submitted and ends the codec's thread."""
        self._worker.close()

    def _may_wait(self, stream: EngineStream) -> bool:
        """Whether the next step may wait a moment for the first audio of a stream.

        On a CPU that step would share memory with the decode, and delay it. Others must have the
        lead to wait.
        """
        if self._codec.device.type != "cpu":
            return False
        now, frame = time.monotonic(), self._frame_seconds
        others = [s for s in self._speaking() if s is not stream]
        leads = [s.lead(now, frame) for s in others if s.paused_since is None]
        return may_prefill(leads, self._costs.decode_seconds(1), self._step_seconds(), 0.0)

    def _deliver(self, stream: EngineStream, group: FrameGroup) -> None:
        """Decodes a group and hands it over (codec thread)."""
        if stream.cancelled or stream.codec.broken:
            return
        started = time.monotonic()
        pcm = stream.codec.decode(group)
        decoded = time.monotonic()
        stream.durations.codec += decoded - started
        self._costs.decode.setdefault(group.frames, Estimate()).add(decoded - started)
        stamps = Stamps(stream.accepted, group.prefilled, group.sampled, decoded)
        rate = self._codec.config.sample_rate
        chunk = Audio(pcm, group.first_frame, group.frames, rate, group.segment, stamps)
        while stream.announced <= group.segment:
            stream.speech.put(self._segment(stream, stream.announced))
            stream.announced += 1
        if stream.speech.put(chunk):
            stream.play(group.frames, time.monotonic(), self._frame_seconds)

    def _segment(self, stream: EngineStream, index: int) -> Segment:
        """The event of a segment (codec thread)."""
        text, first_frame = stream.segments[index]
        later = stream.segments[index + 1 :]
        waiting = stream.text.waiting + sum(len(text) for text, _ in later)
        return Segment(index, text, first_frame, waiting, stream.text.count)
