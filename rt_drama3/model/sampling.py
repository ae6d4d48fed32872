"""Drawing codes: top-p/top-k, repetition-aware redraw, seeded noise (docs/model.md, 7).

Draws use the inverse of the cumulative distribution over candidates sorted by probability, so one
uniform number decides one draw, and 0 always picks the most probable candidate: greedy decoding is
the same code with zero noise. The noise of a take is a table made up front from (seed, frame, draw)
alone; nothing here touches a random generator or the host while frames are made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rt_drama3.config import SamplingConfig

HEAD_CANDIDATES = 30  # the model spec caps the heads, and the redraw, at 30 candidates
MIN_TEMPERATURE = 1e-5
MAIN_DRAW, RAS_DRAW, FIRST_HEAD_DRAW = 0, 1, 2


def draws_per_frame(num_codebooks: int) -> int:
    """Returns the uniform numbers that one frame consumes: main, redraw, one per head."""
    return FIRST_HEAD_DRAW + num_codebooks - 1


def uniform_noise(
    seed: int, frames: int, draws: int, first_frame: int = 0
) -> npt.NDArray[np.float32]:
    """Returns uniform numbers in [0, 1) that depend on (seed, frame number, draw number) alone.

    Counter based: each number is the SplitMix64 finaliser (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", 2014) of its coordinates, mixed in one after another.

    Args:
        seed: any integer; taken modulo 2^64.
        frames, draws: size of the table.
        first_frame: frame number of the first row.

    Returns:
        float32 ``[frames, draws]``, 24 random bits each.
    """
    frame = np.arange(first_frame, first_frame + frames, dtype=np.uint64)[:, None]
    draw = np.arange(draws, dtype=np.uint64)[None]
    key = _mix(np.array([seed & (2**64 - 1)], dtype=np.uint64))
    bits = _mix(_mix(key + frame) + draw)
    return ((bits >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass
class SlotSampling:
    """Per-slot sampling settings and noise, as static tensors that a captured step reads.

    Attributes:
        temperature, head_temperature, top_p: float32 ``[slots]``.
        top_k, head_top_k: int64 ``[slots]``.
        redraw: bool ``[slots]``, repetition-aware sampling on.
        ras_temperature, ras_top_p: float32 ``[slots]``; ras_top_k: int64 ``[slots]``.
        noise: float32 ``[slots, frames, draws]``.
        frame: int64 ``[slots]``, number of the next frame of the take.
        conditional, unconditional: int64 ``[slots]``, offsets in slots to the rows of the stream's
            CFG pair: 0 and 1 for the conditional row, -1 and 0 for the unconditional one, 0 and 0
            without guidance.
        guidance: float32 ``[slots]``, CFG strength; 0 is off.
    """

    temperature: Tensor
    head_temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    head_top_k: Tensor
    redraw: Tensor
    ras_temperature: Tensor
    ras_top_k: Tensor
    ras_top_p: Tensor
    noise: Tensor
    frame: Tensor
    conditional: Tensor
    unconditional: Tensor
    guidance: Tensor

    @classmethod
    def allocate(
        cls, slots: int, frames: int, num_codebooks: int, device: torch.device | str
    ) -> SlotSampling:
        """Allocates greedy settings for ``slots`` streams of at most ``frames`` frames."""

        def full(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.full((slots,), value, device=device, dtype=dtype)

        return cls(
            temperature=full(1.0),
            head_temperature=full(1.0),
            top_p=full(1.0),
            top_k=full(1, torch.int64),
            head_top_k=full(1, torch.int64),
            redraw=full(0, torch.bool),
            ras_temperature=full(1.0),
            ras_top_k=full(1, torch.int64),
            ras_top_p=full(1.0),
            noise=torch.zeros(slots, frames, draws_per_frame(num_codebooks), device=device),
            frame=full(0, torch.int64),
            conditional=full(0, torch.int64),
            unconditional=full(0, torch.int64),
            guidance=full(0.0),
        )

    def tensors(self) -> list[Tensor]:
        """Every tensor, in a fixed order."""
        return [getattr(self, field.name) for field in fields(self)]

    def view(self, start: int, end: int) -> SlotSampling:
        """Returns a view of slots ``start .. end - 1``."""
        return SlotSampling(*(t[start:end] for t in self.tensors()))

    def configure(
        self,
        slot: int,
        config: SamplingConfig,
        seed: int,
        candidates: int,
        first_frame: int = 0,
    ) -> None:
        """Prepares a slot for new frames; temperature 0 zeroes the noise, which is greedy.

        Args:
            slot: the stream.
            config: its settings.
            seed: seed of the take.
            candidates: size of the main draw; ``top_k`` None allows all of them.
            first_frame: frames that the take already has, whose noise is used up.
        """
        _, frames, draws = self.noise.shape
        noise = uniform_noise(seed, frames, draws, first_frame)
        if config.temperature == 0:
            noise[:, :FIRST_HEAD_DRAW] = 0
        if config.head_temperature == 0:
            noise[:, FIRST_HEAD_DRAW:] = 0
        self.noise[slot] = torch.from_numpy(noise).to(self.noise.device)
        self.frame[slot] = 0
        heads = config.head_top_k if config.top_k is None else config.top_k
        for tensor, value in (
            (self.temperature, max(config.temperature, MIN_TEMPERATURE)),
            (self.head_temperature, max(config.head_temperature, MIN_TEMPERATURE)),
            (self.top_p, _nucleus(config.top_p)),
            (self.top_k, candidates if config.top_k is None else config.top_k),
            (self.head_top_k, min(heads, config.head_top_k, HEAD_CANDIDATES)),
            (self.redraw, config.repetition_aware),
            (self.ras_temperature, max(config.ras_temperature, MIN_TEMPERATURE)),
            (self.ras_top_k, min(config.ras_top_k, HEAD_CANDIDATES)),
            (self.ras_top_p, _nucleus(config.ras_top_p)),
            (self.conditional, 0),
            (self.unconditional, 0),
            (self.guidance, 0.0),
        ):
            tensor[slot] = value

    def guide(self, slot: int, strength: float) -> None:
        """Makes ``slot`` and ``slot + 1`` a CFG pair: conditional row, then unconditional row.

        Both must be configured alike: they then make the same draws from the same logits.
        """
        self.conditional[slot], self.unconditional[slot] = 0, 1
        self.conditional[slot + 1], self.unconditional[slot + 1] = -1, 0
        self.guidance[slot : slot + 2] = strength

    def move(self, source: int, target: int) -> None:
        """Copies a stream's settings into another slot."""
        for tensor in self.tensors():
            tensor[target] = tensor[source]


def _nucleus(top_p: float) -> float:
    # 1.0 keeps every candidate: a cumulative sum that rounds above 1 must not drop the tail.
    return top_p if top_p < 1.0 else float("inf")


def kept_prefix(
    probabilities: Tensor, top_p: Tensor, top_k: Tensor, keep_crossing: bool
) -> tuple[Tensor, Tensor]:
    """Returns how many of the sorted candidates stay, and their cumulative probability.

    Args:
        probabilities: float32 ``[B, K]``, descending, of the full distribution (they need not sum
            to 1 where K is a cut).
        top_p: ``[B, 1]``; the candidate whose cumulative sum first exceeds it crosses.
        top_k: int64 ``[B, 1]``; applies jointly, nothing is renormalised in between.
        keep_crossing: whether the crossing candidate stays (main token) or goes (heads). The
            most probable candidate always stays.

    Returns:
        int64 ``[B, 1]`` count of kept candidates, at least 1, and float32 ``[B, K]`` sums.
    """
    total = probabilities.cumsum(-1)
    passed = total - probabilities if keep_crossing else total
    rank = torch.arange(probabilities.shape[-1], device=probabilities.device)
    keep = (passed <= top_p) & (rank < top_k)
    return keep.sum(-1, keepdim=True).clamp(min=1), total


def pick(
    probabilities: Tensor, top_p: Tensor, top_k: Tensor, uniform: Tensor, keep_crossing: bool
) -> Tensor:
    """Rank ``[B, 1]`` drawn by ``uniform [B, 1]`` among sorted candidates; see ``kept_prefix``."""
    count, total = kept_prefix(probabilities, top_p, top_k, keep_crossing)
    threshold = uniform * total.gather(-1, count - 1)
    return torch.minimum((total <= threshold).sum(-1, keepdim=True), count - 1)


def draw_main(
    logits: Tensor, sampling: SlotSampling, noise: Tensor, recent: Tensor, semantic_start: int
) -> Tensor:
    """Draws the main token, with its repetition-aware second draw.

    Args:
        logits: float32 ``[B, codes + 1]`` over the semantic band and eos (last).
        sampling: settings of the B streams.
        noise: float32 ``[B, draws]`` of this frame.
        recent: int64 ``[B, 16]`` latest main tokens.
        semantic_start: token id of semantic code 0.

    Returns:
        int64 ``[B]`` candidate index; ``codes`` means eos.
    """
    ordered, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    ordered = ordered - ordered[:, :1]
    first = pick(
        torch.softmax(ordered / sampling.temperature.unsqueeze(-1), -1),
        sampling.top_p.unsqueeze(-1),
        sampling.top_k.unsqueeze(-1),
        noise[:, MAIN_DRAW, None],
        keep_crossing=True,
    )
    spread = torch.softmax(ordered / sampling.ras_temperature.unsqueeze(-1), -1)
    second = pick(
        spread[:, :HEAD_CANDIDATES],
        sampling.ras_top_p.unsqueeze(-1),
        sampling.ras_top_k.unsqueeze(-1),
        noise[:, RAS_DRAW, None],
        keep_crossing=True,
    )
    chosen = ids.gather(-1, first)
    # eos is never in the window: `recent` holds token ids, eos lies outside the semantic band.
    eos = logits.shape[-1] - 1
    repeated = (recent == chosen + semantic_start).any(-1, keepdim=True) & (chosen != eos)
    redraw = repeated & sampling.redraw.unsqueeze(-1)
    return torch.where(redraw, ids.gather(-1, second), chosen).squeeze(-1)


def draw_head(logits: Tensor, sampling: SlotSampling, uniform: Tensor) -> Tensor:
    """Draws one codebook's code.

    Args:
        logits: ``[B, codes]``.
        sampling: settings of the B streams.
        uniform: float32 ``[B]``.

    Returns:
        int64 ``[B]``.
    """
    scaled = logits.float()
    scaled = (scaled - scaled.amax(-1, keepdim=True)) / sampling.head_temperature.unsqueeze(-1)
    best, ids = scaled.topk(min(HEAD_CANDIDATES, scaled.shape[-1]), -1)
    rank = pick(
        torch.exp(best - torch.logsumexp(scaled, -1, keepdim=True)),
        sampling.top_p.unsqueeze(-1),
        sampling.head_top_k.unsqueeze(-1),
        uniform.unsqueeze(-1),
        keep_crossing=False,
    )
    return ids.gather(-1, rank).squeeze(-1)
