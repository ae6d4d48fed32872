"""StepRunner: prefill chunks and frames, as the engine makes them, and results on the host.

On CUDA, codes reach the host one frame later than they are made, so that the host handles frame n
while n + 1 runs, and never makes the device wait. All of it belongs to the engine's device thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rt_drama3.config import SamplingConfig
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.scheduling import Costs, Estimate
from rt_drama3.engine.stream import Stream
from rt_drama3.graph_step import FrameOutput, FrameStep
from rt_drama3.model import LayerHook, Snapshot, SpeechModel
from rt_drama3.text.rules import MAX_FRAMES

CPU_CHUNK, CUDA_CHUNK = 128, 256  # rows
WARM_UP_ROWS, WARM_UP_FRAMES = 8, 4


@dataclass(frozen=True)
class FrameResult:
    """One stream's share of a frame.

    Attributes:
        stream, epoch: the stream, and which segment of its text.
        main: the main token.
        codes: int64 ``[num_codebooks]``.
        finite: false if there were NaN or infinite values.
        sampled: when it reached the host.
        seconds: duration of the step.
    """

    stream: Stream
    epoch: int
    main: int
    codes: npt.NDArray[np.int64]
    finite: bool
    sampled: float
    seconds: float


Entry = tuple[Stream, int, int, int]  # stream, epoch, slot, rows after the frame


def make_step(model: SpeechModel, config: EngineConfig) -> FrameStep:
    """The step for an engine: its slots, and a spare one that no frame is made for.

    Raises:
        ConfigError: the context does not fit the checkpoint.
    """
    context = min(config.context, model.config.backbone.max_positions or config.context)
    frames = min(MAX_FRAMES, context)
    return FrameStep(model, config.slots + 1, context, frames, config.attention_lengths)


class StepRunner:
    """See the module docstring.

    Args:
        step: with one slot more than streams may hold.
        config: settings.
        costs: measured durations go here.
        clock: seconds.

    Attributes:
        context: rows that a slot holds.
        chunk: rows of a prefill chunk.
        spare: the slot to read prompts ahead in.
        last_batch: rows of the latest frame.
    """

    def __init__(
        self,
        step: FrameStep,
        config: EngineConfig,
        costs: Costs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.step = step
        self.context = step.state.context
        self.spare = config.slots
        self.last_batch = 1
        self._config, self._costs, self._clock = config, costs, clock
        self._cuda = step.model.device.type == "cuda"
        self.chunk = config.prefill_block or (CUDA_CHUNK if self._cuda else CPU_CHUNK)
        self._host = _HostCopy(step.output, self._cuda)
        self._pending: tuple[list[Entry], set[int], _Copy, float] | None = None
        self._collected = 0.0
        self._alone = True  # no chunk was read since the pending frame began

    @property
    def idle(self) -> bool:
        """Whether no frame is pending."""
        return self._pending is None

    def warm_up(self) -> None:
        """Runs everything once and measures it."""
        rows = torch.zeros(WARM_UP_ROWS, 1 + self.step.model.config.num_codebooks).long()
        rows = rows.to(self.step.model.device)
        self._costs.step.clear()
        for streams in sorted({1, self._config.slots}):
            for slot in range(streams):
                self.begin(slot, None)
                self.prefill(slot, rows, 0)
                self.step.configure(slot, SamplingConfig(), 0)
            for frame in range(WARM_UP_FRAMES):
                started = self._clock()
                self.step.run(streams, self.step.length_for(WARM_UP_ROWS + frame + 1))
                self._host.start(streams).wait()
                if frame:  # the first one meets cold caches
                    self._costs.step.setdefault(streams, Estimate()).add(self._clock() - started)
            for slot in range(streams):
                self.step.release(slot)
                self.step.state.scrub(slot)
        self._costs.chunk = Estimate()
        whole = rows[:1].expand(min(self.chunk, self.context), -1)
        for _ in range(2):
            self.prefill(0, whole, self.begin(0, None))
        self.step.state.scrub(0)

    def begin(self, slot: int, snapshot: Snapshot | None) -> int:
        """Clears a slot for a new prompt; returns the rows that the snapshot covers."""
        self.step.state.reset(slot)
        if snapshot is None:
            return 0
        self.step.state.restore(slot, snapshot)
        return snapshot.rows

    def prefill(self, slot: int, rows: Tensor, start: int, hook: LayerHook | None = None) -> int:
        """Reads the first chunk of ``rows [T, 1 + num_codebooks]``; returns its size.

        Chunks have the same borders whatever else runs: they affect the last bits of the result.
        """
        started = self._clock()
        self._alone = False
        chunk = rows[: self.chunk]
        self.step.model.prefill(chunk, self.step.state, slot, start, self.chunk, hook)
        if self._cuda:
            torch.cuda.current_stream().synchronize()
        seconds = self._clock() - started
        if len(chunk) == self.chunk or seconds > self._costs.chunk.or_else(0.0):
            self._costs.chunk.add(seconds)  # a shorter one says little about a whole one
        return len(chunk)

    def frame(self, entries: Sequence[Entry]) -> list[FrameResult]:
        """Makes one frame for the given streams, which must be all active ones.

        Returns:
            Results of this frame, or on CUDA of the one before; some of their streams may have
            ended meanwhile.
        """
        before, self._pending = self._pending, None
        alone, self._alone = self._alone, True
        if entries:
            pairs = {slot for _, _, slot, _ in entries if self.step.starts_pair(slot)}
            rows = 1 + max(slot + (slot in pairs) for _, _, slot, _ in entries)
            length = self.step.length_for(max(position for *_, position in entries))
            started = self._clock()
            self.step.run(rows, length)
            self._pending = (list(entries), pairs, self._host.start(rows), started)
            self.last_batch = len(entries) + len(pairs)
        if not self._cuda:
            before, self._pending = self._pending, None
            alone = True
        return [] if before is None else self._collect(*before, alone)

    def _collect(
        self, entries: list[Entry], pairs: set[int], copy: _Copy, started: float, alone: bool
    ) -> list[FrameResult]:
        main, codes, finite = copy.wait()
        for slot in pairs:
            finite[slot] &= finite[slot + 1]
        now = self._clock()
        seconds = now - max(started, self._collected)
        self._collected = now
        size = len(entries) + len(pairs)
        if alone:
            self._costs.step.setdefault(size, Estimate()).add(seconds)
        else:  # the time includes the prefill chunk after the frame
            seconds = min(seconds, self._costs.step_seconds(size))
        return [
            FrameResult(
                stream, epoch, int(main[slot]), codes[slot], bool(finite[slot]), now, seconds
            )
            for stream, epoch, slot, _ in entries
        ]


class _Copy:
    """Results of one frame that are being copied to the host."""

    def __init__(self, tensors: tuple[Tensor, Tensor, Tensor], event: torch.Event | None) -> None:
        self._tensors, self._event = tensors, event

    def wait(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Main tokens ``[rows]``, codes ``[rows, num_codebooks]``, finite ``[rows]``."""
        if self._event is not None:
            self._event.synchronize()
        main, codes, finite = (t.numpy().copy() for t in self._tensors)
        return main, codes, finite


class _HostCopy:
    """Copies a step's output to the host without a sync.

    On CUDA two sets of pinned buffers alternate: one is read while the next is being written.
    """

    def __init__(self, output: FrameOutput, cuda: bool) -> None:
        self._output = (output.main, output.codes, output.finite)
        self._buffers = [
            tuple(torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in self._output)
            for _ in range(2 if cuda else 0)
        ]

    def start(self, rows: int) -> _Copy:
        """The first ``rows`` slots of the latest step."""
        main, codes, finite = (t[:rows] for t in self._output)
        if not self._buffers:
            return _Copy((main, codes, finite), None)
        buffers = self._buffers.pop(0)
        self._buffers.append(buffers)
        targets = [b[:rows] for b in buffers]
        for target, source in zip(targets, (main, codes, finite), strict=True):
            target.copy_(source, non_blocking=True)
        event = torch.Event("cuda")
        event.record()
        return _Copy((targets[0], targets[1], targets[2]), event)
