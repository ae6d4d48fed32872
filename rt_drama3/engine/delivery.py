"""Delivery: decodes each stream's frames in batches and puts their audio into its events.

Collecting frames belongs to the device thread; decoding to that of the codec (``codec_stream``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from rt_drama3.codec import Codec
from rt_drama3.codec_stream import CodecWorker, Decode, DecodeBatch
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.events import Audio, Idle, Segment, SpeechSummary, Stamps
from rt_drama3.engine.scheduling import Costs, Estimate, batch_size, may_prefill
from rt_drama3.engine.slots import SlotTable
from rt_drama3.engine.step_runner import StepRunner
from rt_drama3.engine.stream import Codes, Phase, Stream
from rt_drama3.errors import RtDrama3Error


class Delivery:
    """See the module docstring.

    Args:
        codec: of the checkpoint.
        config: settings.
        costs: measured durations of decoding go here.
        slots: the holders of the slots.
        runner: the step.
        worker: runs what belongs to the codec's thread.
        clock: seconds.
    """

    def __init__(
        self,
        codec: Codec,
        config: EngineConfig,
        costs: Costs,
        slots: SlotTable,
        runner: StepRunner,
        worker: CodecWorker,
        clock: Callable[[], float],
    ) -> None:
        self._config, self._costs, self._clock = config, costs, clock
        self._slots, self._runner, self._worker = slots, runner, worker
        self._sample_rate = codec.config.sample_rate
        self._shares_memory = codec.device.type == "cpu"

    # Device thread.

    def add(self, stream: Stream, codes: Codes, sampled: float) -> None:
        """Takes one frame of a stream: its codes ``[num_codebooks]``, and when it was sampled."""
        playout = stream.playout
        if not playout.audio:
            return
        playout.codec.add(codes, len(stream.segments) - 1, stream.prefill.finished, sampled)
        wanted = batch_size(
            playout.buffered(self._clock()),
            self._config.codec_batch_frames,
            playout.codec.last_size,
            self._costs.step_seconds(self._runner.last_batch),
            self._costs,
            self._config.codec_batch_min,
        )
        if playout.codec.gathered >= wanted:
            self.decode_rest(stream)

    def decode_rest(self, stream: Stream) -> None:
        """Has the collected frames decoded; may wait a moment for the first audio of a stream."""
        codec = stream.playout.codec
        if not codec.gathered:
            return
        due, batch, decoded = stream.playout.due(), codec.take(), threading.Event()
        self._worker.submit(due, partial(self._decode, stream, batch, decoded))
        if batch.first_frame == 0 and self._may_wait(stream):
            decoded.wait(2 * self._costs.decode_seconds(1))

    def report_idle(self, stream: Stream) -> None:
        """Puts ``Idle`` after everything that was made so far."""
        self._worker.submit(stream.playout.due(), partial(_report_idle, stream))

    def finish(
        self, stream: Stream, summary: SpeechSummary, error: RtDrama3Error | None = None
    ) -> None:
        """Delivers the rest of a stream and then ends it.

        A cancelled stream waits for nothing, not even for the decode that is running, so that the
        client gets its answer immediately.
        """
        if stream.cancelled:
            _end(stream, summary, error)
        else:
            self.decode_rest(stream)
            self._worker.submit(stream.playout.due(), partial(_end, stream, summary, error))

    def measure(self, codec: Codec, decode: Decode) -> None:
        """Learns the cost of decoding, unless it is known."""
        if self._costs.decode:
            return
        state, size = codec.new_state(1), 1
        while size <= self._config.codec_batch_frames:
            codes = torch.zeros(1, codec.config.num_codebooks, size, dtype=torch.int64)
            for attempt in range(2):
                started = self._clock()
                decode(codes.to(codec.device), state).cpu()
                if attempt:
                    self._costs.decode[size] = Estimate(self._clock() - started)
            size *= 2

    def _may_wait(self, stream: Stream) -> bool:
        """Whether the next step may wait a moment for the first audio of a stream.

        On a CPU that step would share memory with the decode, and delay it. The other listeners
        must have enough audio buffered.
        """
        if not self._shares_memory:
            return False
        now = self._clock()
        others = [s for s in self._slots.in_phase(Phase.SPEAKING) if s is not stream]
        buffered = [s.playout.buffered(now) for s in others if s.paused_since is None]
        step = self._costs.step_seconds(self._runner.last_batch)
        return may_prefill(buffered, self._costs.decode_seconds(1), step, 0.0)

    # The codec's thread.

    def _decode(self, stream: Stream, batch: DecodeBatch, decoded: threading.Event) -> None:
        with stream.isolated():
            if not (stream.cancelled or stream.playout.codec.broken):
                self._deliver(stream, batch)
        decoded.set()

    def _deliver(self, stream: Stream, batch: DecodeBatch) -> None:
        playout, started = stream.playout, self._clock()
        pcm = playout.codec.decode(batch)
        decoded = self._clock()
        stream.durations.codec += decoded - started
        self._costs.decode.setdefault(batch.frames, Estimate()).add(decoded - started)
        _announce(stream, batch.segment)
        stamps = Stamps(stream.accepted, batch.prefilled, batch.sampled, decoded)
        rate, first, frames = self._sample_rate, batch.first_frame, batch.frames
        if stream.speech.put(Audio(pcm, first, frames, rate, batch.segment, stamps)):
            playout.play(frames, self._clock())


def _announce(stream: Stream, last: int) -> None:
    """Puts the ``Segment`` events up to segment ``last``; thousands may be silent."""
    playout = stream.playout
    begun = stream.segments[playout.announced :]
    waiting = stream.text.waiting + sum(len(text) for text, _ in begun)
    for text, first_frame in begun[: last + 1 - playout.announced]:
        waiting -= len(text)
        count, unspoken = stream.text.count, stream.text.take_unspoken()
        stream.speech.put(Segment(playout.announced, text, first_frame, waiting, count, unspoken))
        playout.announced += 1


def _report_idle(stream: Stream) -> None:
    if stream.text.empty and not stream.text.final:
        stream.speech.put(Idle(stream.text.begun))


def _end(stream: Stream, summary: SpeechSummary, error: RtDrama3Error | None) -> None:
    # The rest may have failed to decode meanwhile.
    failure = error if stream.cancelled else error or stream.failure
    rest = stream.text.take_unspoken()
    summary = replace(summary, delivered=stream.playout.delivered, unspoken=rest)
    stream.speech.end(summary, failure)
