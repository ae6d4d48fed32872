"""The frame step, eager or as CUDA graphs: one frame for every active stream, fed back in.

``frame_step`` is the unit: draws, tower, embedding, backbone and norm on static tensors, without a
host sync. ``FrameStep`` owns those tensors and runs the unit eagerly, which is the reference, or
through a runner: ``CapturedStep`` on CUDA, the packages of ``aot.step`` on a CPU.

A frame of the full model is about a thousand kernels that take longer to launch one by one than to
run. So ``CapturedStep`` compiles the unit (which fuses the small ones) and records it as one CUDA
graph per batch size and attention length; a frame is then a single ``replay()``. All graphs share
one memory pool: only one runs at a time and none leaves results behind, since the unit reads and
writes static tensors.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from rt_drama3.config import SamplingConfig
from rt_drama3.errors import DeviceError
from rt_drama3.model import SpeechModel, StreamState, kernels
from rt_drama3.model.ops import linear
from rt_drama3.model.sampling import FIRST_HEAD_DRAW, SlotSampling, draw_head, draw_main

log = logging.getLogger(__name__)

# Attention reads the cache up to one of these lengths: few shapes to capture, and a short take does
# not pay for the whole context.
ATTENTION_LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
WARM_UPS = 3  # runs before a capture: compilation, loading of kernels, library workspaces


@dataclass
class FrameOutput:
    """What one step produced, in static tensors.

    Attributes:
        codes: int64 ``[slots, num_codebooks]``.
        main: int64 ``[slots]``, the main token; eos ends the take, and its codes are undefined.
        finite: bool ``[slots]``, false where logits or hidden state held NaN or infinity.
    """

    codes: Tensor
    main: Tensor
    finite: Tensor

    @classmethod
    def allocate(cls, slots: int, num_codebooks: int, device: torch.device | str) -> FrameOutput:
        """Allocates the output of ``slots`` streams."""
        return cls(
            torch.zeros(slots, num_codebooks, dtype=torch.int64, device=device),
            torch.zeros(slots, dtype=torch.int64, device=device),
            torch.ones(slots, dtype=torch.bool, device=device),
        )

    def tensors(self) -> list[Tensor]:
        """Every tensor, in a fixed order."""
        return [getattr(self, field.name) for field in fields(self)]

    def view(self, start: int, end: int) -> FrameOutput:
        """Returns a view of slots ``start .. end - 1``."""
        return FrameOutput(*(t[start:end] for t in self.tensors()))


@dataclass
class StepTensors:
    """Everything that ``frame_step`` reads and writes besides the weights.

    Attributes:
        state, sampling, output: views of the B streams' slots.
        ropes: rotary tables of backbone and tower.
        column: int64 ``[length]``, 0, 1, ..: the cached rows that attention reads; ``length`` is
            above every stream's position.
    """

    state: StreamState
    sampling: SlotSampling
    output: FrameOutput
    ropes: tuple[Tensor, Tensor]
    column: Tensor


def frame_step(model: SpeechModel, tensors: StepTensors) -> None:
    """Makes one frame of B streams and feeds it back in; everything advances in place."""
    config = model.config
    state, sampling, column = tensors.state, tensors.sampling, tensors.column
    # A free slot has no latest row; 0 keeps its attention finite.
    position, latest = state.position, (state.position - 1).clamp(min=0)
    seen = (column <= position.unsqueeze(-1))[:, None, None]  # [B, 1, 1, length]
    seen_before = (column <= latest.unsqueeze(-1))[:, None, None]
    stream = torch.arange(position.shape[0], device=position.device)
    noise = sampling.noise[stream, sampling.frame]
    # The rows of a CFG pair are adjacent; the clamp only serves idle slots at the edge of a batch.
    last_stream = position.shape[0] - 1
    conditional = (stream + sampling.conditional).clamp(0, last_stream)
    unconditional = (stream + sampling.unconditional).clamp(0, last_stream)

    def guided(logits: Tensor) -> Tensor:
        """Classifier-free guidance; without it both terms of the difference are the same row."""
        logits = logits.float()
        wanted = logits[conditional]
        return wanted + sampling.guidance.unsqueeze(-1) * (wanted - logits[unconditional])

    def draw(codebook: int, logits: Tensor) -> Tensor:
        logits = guided(logits)
        checked.append(logits)
        uniform = noise[:, FIRST_HEAD_DRAW + codebook - 1]
        return draw_head(logits, sampling, uniform)

    logits = guided(linear(state.hidden, model.head))
    checked = [logits]
    recent = state.recent[conditional]
    choice = draw_main(logits, sampling, noise, recent, config.semantic_start)
    last_code = config.tower.codebook_size - 1
    main = torch.where(choice <= last_code, choice + config.semantic_start, config.eos)
    codes = model.tower.step(
        state.hidden,
        state.extra,
        choice.clamp(max=last_code),
        draw,
        tensors.ropes[1][:, latest],
        state,
        latest,
        seen_before,
    )
    x, extra = model.embed_rows(main, codes)
    hidden = model.backbone.step(x, tensors.ropes[0][:, position], state, position, seen)

    tensors.output.codes.copy_(codes)
    tensors.output.main.copy_(main)
    tensors.output.finite.copy_(torch.isfinite(torch.cat((*checked, hidden.float()), -1)).all(-1))
    moving = state.active.unsqueeze(-1)
    window = torch.cat((state.recent[:, 1:], main.unsqueeze(-1)), -1)
    state.hidden.copy_(torch.where(moving, hidden, state.hidden))
    state.extra.copy_(torch.where(moving, extra, state.extra))
    state.recent.copy_(torch.where(moving, window, state.recent))
    # The limits are never reached by a take that respects the context; they keep indices valid.
    state.position.copy_((position + state.active).clamp(max=state.context - 1))
    sampling.frame.copy_((sampling.frame + state.active).clamp(max=sampling.noise.shape[1] - 1))


Unit = Callable[[SpeechModel, StepTensors], None]  # frame_step, or a compiled form of it
Runner = Callable[[int, int], None]  # (slots, attention length) -> None


class FrameStep:
    """The static tensors of all slots, and the step over them.

    Args:
        model: the language model.
        slots: streams held concurrently (a guided stream takes two adjacent slots).
        context: rows (prompt and frames) that a stream can hold.
        max_frames: frames that a take can have.
        lengths: attention lengths besides the whole context.
    """

    def __init__(
        self,
        model: SpeechModel,
        slots: int,
        context: int,
        max_frames: int,
        lengths: Sequence[int] = ATTENTION_LENGTHS,
    ) -> None:
        config, device = model.config, model.device
        self.model = model
        self.state = StreamState.allocate(config, slots, context, device, model.dtype)
        self.sampling = SlotSampling.allocate(slots, max_frames, config.num_codebooks, device)
        self.output = FrameOutput.allocate(slots, config.num_codebooks, device)
        self.lengths = (*sorted(n for n in lengths if n < context), context)
        self._ropes = model.ropes(context)
        self._column = torch.arange(context, device=device)
        self._guided = [False] * slots
        self._active = [False] * slots  # what the device holds in state.active
        self._runner: Runner = self._eager

    @property
    def slots(self) -> int:
        """Streams held concurrently."""
        return self.state.slots

    def length_for(self, rows: int) -> int:
        """Returns the shortest attention length that covers a stream of ``rows`` rows."""
        return next(n for n in self.lengths if n >= rows)

    def configure(
        self,
        slot: int,
        sampling: SamplingConfig,
        seed: int,
        first_frame: int = 0,
        guidance: float | None = None,
    ) -> None:
        """Prepares a prefilled slot (with guidance a CFG pair) for frames and activates it.

        Args:
            slot: the stream; when guided, ``slot + 1`` holds the unconditional prompt.
            sampling: settings.
            seed: seed of the take.
            first_frame: frames that the take already has, whose noise is used up.
            guidance: CFG strength, or None for a stream of one row.
        """
        candidates = self.model.config.candidates
        self._guided[slot] = guidance is not None
        for row in (slot,) if guidance is None else (slot, slot + 1):
            self.sampling.configure(row, sampling, seed, candidates, first_frame)
        if guidance is not None:
            self.sampling.guide(slot, guidance)
        self.activate(slot, True)

    def activate(self, slot: int, active: bool) -> None:
        """Sets whether the next steps advance the stream in ``slot`` (both rows of a CFG pair)."""
        end = slot + 1 + self._guided[slot]
        self.state.active[slot:end] = active
        self._active[slot:end] = [active] * (end - slot)

    def is_active(self, slot: int) -> bool:
        """Whether the next steps advance the stream in ``slot``."""
        return self._active[slot]

    def starts_pair(self, slot: int) -> bool:
        """Whether ``slot`` is the conditional row of a CFG pair; the other row is ``slot + 1``."""
        return self._guided[slot]

    def release(self, slot: int) -> None:
        """Frees a slot (both slots of a CFG pair) for another stream."""
        self.activate(slot, False)
        self._guided[slot] = False

    def move(self, source: int, target: int, rows: int) -> None:
        """Moves a stream of ``rows`` rows, without guidance, into a free slot."""
        self.state.move(source, target, rows)
        self.sampling.move(source, target)
        self._active[target] = self._active[source]
        self.release(source)

    def use(self, runner: Runner | None) -> None:
        """Runs the unit through ``runner`` from now on; None switches back to eager."""
        self._runner = runner or self._eager

    def tensors(self, start: int, end: int, length: int) -> StepTensors:
        """Returns what the unit needs for slots ``start .. end - 1``."""
        return StepTensors(
            self.state.view(start, end),
            self.sampling.view(start, end),
            self.output.view(start, end),
            self._ropes,
            self._column[:length],
        )

    @torch.inference_mode()
    def run(self, slots: int, length: int) -> None:
        """Makes one frame for the active streams in the leading ``slots`` slots, into ``output``.

        Args:
            slots: leading slots to run.
            length: cached rows to read (``length_for`` the longest active stream).
        """
        self._runner(slots, length)

    def _eager(self, slots: int, length: int) -> None:
        # Stream by stream: a product over several rows may round differently than over one, and the
        # reference must not depend on which other streams are active.
        slot = 0
        while slot < slots:
            rows = 2 if self._guided[slot] else 1
            if self._active[slot]:
                frame_step(self.model, self.tensors(slot, slot + rows, length))
            slot += rows


class CapturedStep:
    """A runner that replays CUDA graphs of the step, one per batch size and attention length.

    Construction compiles and captures every graph (about a minute each for the full model; the
    compiler's cache makes it seconds the next time) and advances no stream.

    Args:
        step: owns the tensors that are advanced.
        batch_sizes: ascending. Fewer streams than a size leave its last slots idle. Products round
            differently at different sizes: with a single size, a stream's codes do not depend on
            the number of other streams.
        lengths: attention lengths, ascending; None takes those of ``step``, or the whole context
            alone where attention reads only each stream's own rows anyway.
        unit: what is captured; None compiles ``frame_step``.
        capture: False runs the unit without CUDA graphs.

    Raises:
        DeviceError: the model is not on a CUDA device, or compilation or capture failed.
    """

    def __init__(
        self,
        step: FrameStep,
        batch_sizes: Sequence[int],
        lengths: Sequence[int] | None = None,
        *,
        unit: Unit | None = None,
        capture: bool = True,
    ) -> None:
        if capture and step.model.device.type != "cuda":
            raise DeviceError(
                f"CUDA graphs need a CUDA device, but the model is on {step.model.device}; "
                'use step_mode = "eager" or "compile".'
            )
        if lengths is None:
            own = kernels.usable(step.state.hidden)  # these kernels stop at each stream's position
            lengths = step.lengths[-1:] if own else step.lengths
        self._sizes, self._lengths = tuple(batch_sizes), tuple(lengths)
        self._unit = compile_step() if unit is None else unit  # graphs read constants it owns
        self._runs: dict[tuple[int, int], Callable[[], None]] = {}
        # With every slot inactive, a run only changes outputs, and cached rows that the next frame
        # overwrites.
        active = step.state.active.clone()
        step.state.active.zero_()
        try:
            self._prepare(step, capture)
        finally:
            step.state.active.copy_(active)

    def __call__(self, slots: int, length: int) -> None:
        """Makes one frame for the leading ``slots`` slots; see ``FrameStep.run``."""
        size = next(n for n in self._sizes if n >= slots)
        self._runs[size, next(n for n in self._lengths if n >= length)]()

    @torch.inference_mode()
    def _prepare(self, step: FrameStep, capture: bool) -> None:
        pool, stream = None, None
        if capture:
            # Warm-up and capture share a stream, and with it the libraries' workspaces.
            pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(step.model.device)
            stream.wait_stream(torch.cuda.current_stream(step.model.device))
        # The largest graph first: the smaller ones then fit into the memory it left in the pool.
        for size, length in itertools.product(reversed(self._sizes), reversed(self._lengths)):
            started, stage = time.perf_counter(), "compiled"
            run = functools.partial(self._unit, step.model, step.tensors(0, size, length))
            try:
                with torch.cuda.stream(stream):  # None: the current one
                    for _ in range(WARM_UPS if capture else 1):
                        run()
                if capture:
                    stage, graph = "captured as a CUDA graph", torch.cuda.CUDAGraph()
                    # Other threads (the codec's) keep allocating while this one records.
                    with torch.cuda.graph(
                        graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                    ):
                        run()
            except Exception as error:
                others = '"eager"' if stage == "compiled" else '"compile" or "eager"'
                cause = (str(error).strip().splitlines() or [""])[0]
                raise DeviceError(
                    f"the frame step for {size} slots and {length} rows could not be {stage} "
                    f"({type(error).__name__}: {cause}); use step_mode = {others}."
                ) from error
            self._runs[size, length] = graph.replay if capture else run
            seconds = time.perf_counter() - started
            log.info("step for %d slots, %d rows: %.1f s", size, length, seconds)


def compile_step(backend: str = "inductor") -> Unit:
    """Returns ``frame_step`` compiled; a part that cannot be compiled is an error, not a slow path.

    Args:
        backend: backend of ``torch.compile``.
    """
    import torch._dynamo.config

    options: dict[str, Any] = {
        "triton.cudagraphs": False,  # CapturedStep captures: one graph, one pool, fixed addresses
        # Fused operations round to bfloat16 where separate ones would, as the eager step does.
        "emulate_precision_casts": True,
        "shape_padding": False,  # it would time products and choose by the clock
    }
    compiled = torch.compile(
        frame_step,
        fullgraph=True,
        dynamic=False,
        backend=backend,
        options=options if backend == "inductor" else None,
    )
    # Every batch size with every length is one compilation; by default dynamo gives up after 8.
    unlimited = {"recompile_limit": 1 << 16, "accumulated_recompile_limit": 1 << 16}
    unit: Unit = torch._dynamo.config.patch(unlimited)(compiled)
    return unit
