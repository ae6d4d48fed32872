"""FrameStep: one frame for every active stream, from hidden state to codes and back.

``frame_step`` is the unit: draws, tower, embedding, backbone and norm on static tensors, without a
look at the host. ``FrameStep`` owns those tensors and runs the unit: eagerly, compiled ahead of
time (CPU, see ``compiled_step``) or captured as CUDA graphs (see ``captured_step``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from rt_drama3.config import SamplingConfig
from rt_drama3.model import SpeechModel, StreamState
from rt_drama3.model.ops import linear
from rt_drama3.model.sampling import FIRST_HEAD_DRAW, SlotSampling, draw_head, draw_main

# Attention reads the cache up to one of these lengths: few shapes to capture, and a short take does
# not pay for the whole context.
ATTENTION_LENGTHS = (256, 512, 1024, 2048, 4096, 8192)


@dataclass
class FrameOutput:
    """What one step produced, in static tensors.

    Attributes:
        codes: int64 ``[slots, num_codebooks]``.
        main: int64 ``[slots]``, the main token; eos ends the take and its codes mean nothing.
        finite: bool ``[slots]``, false where logits or hidden state held NaN or infinity.
    """

    codes: Tensor
    main: Tensor
    finite: Tensor

    @classmethod
    def allocate(cls, slots: int, num_codebooks: int, device: torch.device | str) -> FrameOutput:
        """Room for the frames of ``slots`` streams."""
        return cls(
            torch.zeros(slots, num_codebooks, dtype=torch.int64, device=device),
            torch.zeros(slots, dtype=torch.int64, device=device),
            torch.ones(slots, dtype=torch.bool, device=device),
        )

    def tensors(self) -> list[Tensor]:
        """Every tensor, in a fixed order."""
        return [getattr(self, field.name) for field in fields(self)]

    def view(self, start: int, end: int) -> FrameOutput:
        """A view of slots ``start .. end - 1``."""
        return FrameOutput(*(t[start:end] for t in self.tensors()))


@dataclass
class StepTensors:
    """Everything that ``frame_step`` reads and writes beside the weights.

    Attributes:
        state, sampling, output: of the B streams.
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
    """Makes one frame of B streams and reads it back in; everything advances in place."""
    config = model.config
    state, sampling, column = tensors.state, tensors.sampling, tensors.column
    # A free slot has no latest row; 0 keeps its attention finite.
    position, latest = state.position, (state.position - 1).clamp(min=0)
    seen = (column <= position.unsqueeze(-1))[:, None, None]  # [B, 1, 1, length]
    seen_before = (column <= latest.unsqueeze(-1))[:, None, None]
    stream = torch.arange(position.shape[0], device=position.device)
    noise = sampling.noise[stream, sampling.frame]
    # Twins stand side by side; the clamp only serves slots that idle at the edge of a batch.
    last_stream = position.shape[0] - 1
    directed = (stream + sampling.directed).clamp(0, last_stream)
    undirected = (stream + sampling.undirected).clamp(0, last_stream)

    def guided(logits: Tensor) -> Tensor:
        """Classifier-free guidance; without it both terms of the difference are the same row."""
        logits = logits.float()
        wanted = logits[directed]
        return wanted + sampling.guidance.unsqueeze(-1) * (wanted - logits[undirected])

    def draw(codebook: int, logits: Tensor) -> Tensor:
        logits = guided(logits)
        checked.append(logits)
        uniform = noise[:, FIRST_HEAD_DRAW + codebook - 1]
        return draw_head(logits, sampling, uniform)

    logits = guided(linear(state.hidden, model.head))
    checked = [logits]
    recent = state.recent[directed]
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


Runner = Callable[[int, int], None]  # (streams, attention length) -> None


class FrameStep:
    """Static tensors of ``slots`` streams and the step over them.

    Args:
        model: the checkpoint.
        slots: streams held at once (a guided stream takes two adjacent slots).
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

    def length_for(self, rows: int) -> int:
        """The shortest attention length that covers a stream of ``rows`` rows."""
        return next(n for n in self.lengths if n >= rows)

    def configure(
        self,
        slot: int,
        sampling: SamplingConfig,
        seed: int,
        first_frame: int = 0,
        guidance: float | None = None,
    ) -> None:
        """Prepares a prefilled slot for frames and activates it; with guidance also its twin.

        Args:
            slot: the stream; ``slot + 1`` holds the undirected prompt when guided.
            sampling: settings.
            seed: of the take.
            first_frame: frames that the take already has, whose noise is spent.
            guidance: strength, or None for a stream of one row.
        """
        candidates = self.model.config.candidates
        self._guided[slot] = guidance is not None
        for row in (slot,) if guidance is None else (slot, slot + 1):
            self.sampling.configure(row, sampling, seed, candidates, first_frame)
        if guidance is not None:
            self.sampling.guide(slot, guidance)
        self.activate(slot, True)

    def activate(self, slot: int, active: bool) -> None:
        """Whether the next steps advance the stream in ``slot`` (and its twin)."""
        end = slot + 1 + self._guided[slot]
        self.state.active[slot:end] = active
        self._active[slot:end] = [active] * (end - slot)

    def is_active(self, slot: int) -> bool:
        """Whether the next steps advance the stream in ``slot``."""
        return self._active[slot]

    def starts_pair(self, slot: int) -> bool:
        """Whether ``slot`` is the directed row of a guided stream, its twin in the next slot."""
        return self._guided[slot]

    @property
    def slots(self) -> int:
        """Streams held at once."""
        return self.state.slots

    def release(self, slot: int) -> None:
        """Frees a slot (and its twin) for another stream."""
        self.activate(slot, False)
        self._guided[slot] = False

    def move(self, source: int, target: int, rows: int) -> None:
        """Moves a stream of ``rows`` rows, without twin, into a free slot."""
        self.state.move(source, target, rows)
        self.sampling.move(source, target)
        self._active[target] = self._active[source]
        self.release(source)

    def use(self, runner: Runner | None) -> None:
        """Runs the unit through ``runner`` from now on; None goes back to eager."""
        self._runner = runner or self._eager

    def tensors(self, start: int, end: int, length: int) -> StepTensors:
        """What the unit needs for slots ``start .. end - 1``."""
        return StepTensors(
            self.state.view(start, end),
            self.sampling.view(start, end),
            self.output.view(start, end),
            self._ropes,
            self._column[:length],
        )

    @torch.inference_mode()
    def run(self, streams: int, length: int) -> None:
        """One frame for the active ones of the first ``streams`` slots, into ``output``.

        Args:
            streams: slots to look at.
            length: cached rows to read (``length_for`` the longest active stream).
        """
        self._runner(streams, length)

    def _eager(self, streams: int, length: int) -> None:
        # Stream by stream: a product over several rows may round differently than over one, and the
        # reference must not depend on who else is speaking.
        slot = 0
        while slot < streams:
            rows = 2 if self._guided[slot] else 1
            if self._active[slot]:
                frame_step(self.model, self.tensors(slot, slot + rows, length))
            slot += rows
