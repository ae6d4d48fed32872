"""FrameMaker: the step as the engine uses it, with its slots, its results and its fastest form.

It prefills slots block by block, runs one frame for the active ones, and brings codes to the host:
on CUDA one frame later than they are made, so that the host looks at frame n while n + 1 runs, and
never makes the device wait. All of it belongs to the engine's device thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rt_drama3.aot.builder import PackageBuilder
from rt_drama3.aot.codec import CompiledCodec
from rt_drama3.aot.packages import BrokenPackageError
from rt_drama3.aot.step import CompiledStep
from rt_drama3.codec import Codec, CodecState
from rt_drama3.config import SamplingConfig
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.scheduling import Costs, Estimate
from rt_drama3.engine.stream import EngineStream
from rt_drama3.errors import ConfigError, DeviceError
from rt_drama3.graph_step import CapturedStep, FrameOutput, FrameStep
from rt_drama3.model import LayerHook, Snapshot, SpeechModel
from rt_drama3.text.rules import MAX_FRAMES

log = logging.getLogger(__name__)

CPU_BLOCK, CUDA_BLOCK = 128, 256
WARM_UP_ROWS, WARM_UP_FRAMES = 8, 4


@dataclass(frozen=True)
class FrameResult:
    """One stream's share of a frame.

    Attributes:
        stream, epoch: whose it is, and of which piece of its text.
        main: the main token.
        codes: int64 ``[num_codebooks]``.
        finite: false if the numbers went bad.
        sampled: when it reached the host.
        seconds: that the step took.
    """

    stream: EngineStream
    epoch: int
    main: int
    codes: npt.NDArray[np.int64]
    finite: bool
    sampled: float
    seconds: float


Entry = tuple[EngineStream, int, int, int]  # stream, epoch, slot, rows after the frame


class FrameMaker:
    """See the module docstring.

    Args:
        model, codec: the checkpoint.
        config: settings.
        costs: where measured durations go.

    Raises:
        ConfigError: the context does not fit the checkpoint, or the step mode cannot be had.
        DeviceError: capture failed although it was asked for.
    """

    def __init__(
        self, model: SpeechModel, codec: Codec, config: EngineConfig, costs: Costs
    ) -> None:
        limit = model.config.backbone.max_positions
        self.context = min(config.context, limit or config.context)
        self.mode = "eager"
        self.last_batch = 1
        self._config, self._costs, self._model, self._codec = config, costs, model, codec
        self._cuda = model.device.type == "cuda"
        self.block = config.prefill_block or (CUDA_BLOCK if self._cuda else CPU_BLOCK)
        frames = min(MAX_FRAMES, self.context)
        self.spare = config.slots  # a slot that no step looks at, to read prompts ahead in
        self._step = FrameStep(
            model, config.slots + 1, self.context, frames, config.attention_lengths
        )
        self._reader = _Reader(self._step.output, self._cuda)
        self._pending: tuple[list[Entry], set[int], _Copy, float] | None = None
        self._collected = 0.0
        self._alone = True  # no prompt was read since the frame on its way began
        self._builder: PackageBuilder | None = None
        self._compiled_codec: CompiledCodec | None = None
        self._compiled: CompiledStep | None = None
        self._choose_step()

    @property
    def idle(self) -> bool:
        """Whether no frame is on its way."""
        return self._pending is None

    def warm_up(self) -> None:
        """Runs everything once and learns what it costs."""
        rows = torch.zeros(WARM_UP_ROWS, 1 + self._model.config.num_codebooks, dtype=torch.int64)
        rows = rows.to(self._model.device)
        self._costs.step.clear()
        for streams in sorted({1, self._config.slots}):
            for slot in range(streams):
                self.begin(slot, None)
                self.read_block(slot, rows, 0)
                self.start(slot, SamplingConfig(), 0, 0)
            for frame in range(WARM_UP_FRAMES):
                started = time.monotonic()
                self._step.run(streams, self._step.length_for(WARM_UP_ROWS + frame + 1))
                self._reader.read(streams).wait()
                if frame:  # the first one meets cold caches
                    self._costs.step.setdefault(streams, Estimate()).add(time.monotonic() - started)
            for slot in range(streams):
                self.release(slot)
                self.scrub(slot)
        self._costs.block = Estimate()
        whole = rows[:1].expand(min(self.block, self.context), -1)
        for _ in range(2):
            self.read_block(0, whole, self.begin(0, None))
        self.scrub(0)
        if not self._costs.decode:
            self._measure_codec()

    def _measure_codec(self) -> None:
        state, size = self._codec.new_state(1), 1
        while size <= self._config.codec_batch_frames:
            shape = (1, self._model.config.num_codebooks, size)
            codes = torch.zeros(shape, dtype=torch.int64, device=self._codec.device)
            for attempt in range(2):
                started = time.monotonic()
                self.decode(codes, state).cpu()
                if attempt:
                    self._costs.decode[size] = Estimate(time.monotonic() - started)
            size *= 2

    # Prompts.

    def begin(self, slot: int, snapshot: Snapshot | None) -> int:
        """Prepares a slot for a new prompt; returns the rows that the snapshot covers."""
        self._step.state.reset(slot)
        if snapshot is None:
            return 0
        self._step.state.restore(slot, snapshot)
        return snapshot.rows

    def read_block(
        self, slot: int, rows: Tensor, start: int, watch: LayerHook | None = None
    ) -> int:
        """Reads the first block of ``rows [T, 1 + num_codebooks]``; returns how many those were.

        Blocks have one size whatever else runs: their borders touch the last bits of the result.
        """
        started = time.monotonic()
        self._alone = False
        block = rows[: self.block]
        self._model.prefill(block, self._step.state, slot, start, self.block, watch)
        if self._cuda:
            torch.cuda.current_stream().synchronize()
        seconds = time.monotonic() - started
        if block.shape[0] == self.block or seconds > self._costs.block.or_else(0.0):
            self._costs.block.add(seconds)  # a shorter block tells nothing about a whole one
        return block.shape[0]

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Puts a snapshot into a slot."""
        self._step.state.restore(slot, snapshot)

    def move(self, source: int, target: int, rows: int) -> None:
        """Copies what was read of a prompt, ``rows`` rows, into another slot."""
        self._step.state.move(source, target, rows)

    def snapshot(self, slot: int, rows: int) -> Snapshot:
        """A copy of a slot that has read ``rows`` rows."""
        return self._step.state.snapshot(slot, rows)

    # Frames.

    def start(
        self,
        slot: int,
        sampling: SamplingConfig,
        seed: int,
        first_frame: int,
        guidance: float | None = None,
    ) -> None:
        """Lets a prefilled slot take part in the next frames; with guidance also the next slot."""
        self._step.configure(slot, sampling, seed, first_frame, guidance)

    def relocate(self, source: int, target: int, rows: int) -> None:
        """Moves a stream of one slot and ``rows`` rows, in whatever it is doing, to a free one."""
        self._step.move(source, target, rows)

    def activate(self, slot: int, active: bool) -> None:
        """Pauses a slot, or lets it go on."""
        self._step.activate(slot, active)

    def release(self, slot: int) -> None:
        """Frees a slot."""
        self._step.release(slot)

    def scrub(self, slot: int) -> None:
        """Clears a slot whose numbers went bad."""
        self._step.state.scrub(slot)

    def frame(self, entries: Sequence[Entry]) -> list[FrameResult]:
        """Makes one frame for the given streams, which must be all active ones.

        Returns:
            Results of this frame, or on CUDA of the one before; some of their streams may have
            ended meanwhile.
        """
        before, self._pending = self._pending, None
        alone, self._alone = self._alone, True
        if entries:
            twins = {slot for _, _, slot, _ in entries if self._step.starts_pair(slot)}
            rows = 1 + max(slot + (slot in twins) for _, _, slot, _ in entries)
            length = self._step.length_for(max(position for *_, position in entries))
            started = time.monotonic()
            self._step.run(rows, length)
            self._pending = (list(entries), twins, self._reader.read(rows), started)
            self.last_batch = len(entries) + len(twins)
        if not self._cuda:
            before, self._pending = self._pending, None
            alone = True
        return [] if before is None else self._collect(*before, alone)

    def _collect(
        self, entries: list[Entry], twins: set[int], copy: _Copy, started: float, alone: bool
    ) -> list[FrameResult]:
        main, codes, finite = copy.wait()
        for slot in twins:
            finite[slot] &= finite[slot + 1]
        now = time.monotonic()
        seconds = now - max(started, self._collected)
        self._collected = now
        size = len(entries) + len(twins)
        if alone:
            self._costs.step.setdefault(size, Estimate()).add(seconds)
        else:  # the prompt block behind the frame was waited for as well
            seconds = min(seconds, self._costs.step_seconds(size))
        return [
            FrameResult(
                stream, epoch, int(main[slot]), codes[slot], bool(finite[slot]), now, seconds
            )
            for stream, epoch, slot, _ in entries
        ]

    # The fastest form of the step.

    def decode(self, codes: Tensor, state: CodecState) -> Tensor:
        """Decodes the next frames of one stream, compiled where that is ready (codec thread)."""
        compiled = self._compiled_codec
        return (self._codec if compiled is None else compiled).decode_step(codes, state)

    def _choose_step(self) -> None:
        wanted = self._config.step_mode
        if wanted == "eager":
            return
        if self._cuda:
            self._capture(wanted)
        elif wanted == "cudagraph":
            raise ConfigError("step_mode is cudagraph, but the model is on a CPU; use auto.")
        else:
            self._use_packages(wanted)

    def _capture(self, wanted: str) -> None:
        capture = wanted != "compile"
        try:
            self._step.use(CapturedStep(self._step, self._config.sizes, capture=capture))
        except DeviceError as error:
            if wanted != "auto":
                raise
            log.warning("the step stays eager: %s", error)
        else:
            self.mode = "cudagraph" if capture else "compile"

    def _use_packages(self, wanted: str) -> None:
        groups = [1]
        while 2 * groups[-1] <= self._config.codec_batch_frames:
            groups.append(2 * groups[-1])
        self._builder = PackageBuilder(self._model, self._codec, self._config.sizes, groups)
        for _ in range(2):  # a package that does not load is built anew
            if wanted == "compile" and not self._builder.ready():
                self._builder.start()
                self._builder.wait()
            self.look_for_faster_step(idle=True)
            if wanted != "compile" or self._compiled is not None or self._builder is None:
                break
        if wanted == "compile" and self._compiled is None:
            raise ConfigError("the compiled step does not load; use step mode eager or auto.")
        builder = self._builder
        if builder is not None:
            builder.start()
            if builder.obstacle:
                log.warning("the step stays eager: %s", builder.obstacle)
                self._builder = None

    def look_for_faster_step(self, idle: bool) -> bool:
        """Takes compiled packages over once they are built; a step never under a running take.

        A decode agrees with the eager one to rounding, and a step of another batch size exactly
        with the one in use, so these may join at any time.

        Args:
            idle: no take is under way.

        Returns:
            Whether something is compiled now that was not, to be warmed up.
        """
        builder = self._builder
        if builder is None:
            return False
        before = (self._compiled, self._compiled_codec)
        try:
            if self._compiled is None and idle and 1 in builder.steps():
                self._compiled = CompiledStep(self._step, builder.steps())
                self._step.use(self._compiled)
                self.mode = "compile"
            elif self._compiled is not None:
                for size in set(builder.steps()) - set(self._compiled.sizes):
                    self._compiled.add(size)
            if self._compiled_codec is None and idle and 1 in builder.codecs():
                self._compiled_codec = CompiledCodec(self._codec, builder.codecs())
            elif self._compiled_codec is not None:
                for size in set(builder.codecs()) - set(self._compiled_codec.sizes):
                    self._compiled_codec.add(size)
        except BrokenPackageError as error:
            if builder.rebuild(error):
                log.warning("%s; it is built anew", error)
                return (self._compiled, self._compiled_codec) != before
            failure: str | None = str(error)
        except RuntimeError as error:
            failure = f"a package does not load: {error}"
        else:
            failure = builder.failure()
        if failure:
            log.warning("compiling the step failed, it goes on as it is: %s", failure)
            self._builder = None
        elif builder.ready() and self._compiled is not None and self._compiled_codec is not None:
            self._builder = None
        return (self._compiled, self._compiled_codec) != before


class _Copy:
    """Results of one frame on their way to the host."""

    def __init__(self, tensors: tuple[Tensor, Tensor, Tensor], event: torch.Event | None) -> None:
        self._tensors, self._event = tensors, event

    def wait(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Main tokens ``[rows]``, codes ``[rows, num_codebooks]``, finite ``[rows]``."""
        if self._event is not None:
            self._event.synchronize()
        main, codes, finite = (t.numpy().copy() for t in self._tensors)
        return main, codes, finite


class _Reader:
    """Copies a step's output to the host without making anybody wait.

    On CUDA two sets of pinned buffers take turns: one is read while the next is being written.
    """

    def __init__(self, output: FrameOutput, cuda: bool) -> None:
        self._output = (output.main, output.codes, output.finite)
        self._buffers = [
            tuple(torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in self._output)
            for _ in range(2 if cuda else 0)
        ]

    def read(self, rows: int) -> _Copy:
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
