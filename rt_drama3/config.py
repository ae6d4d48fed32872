"""Configuration of a checkpoint: sizes of model and codec, and sampling settings.

``checkpoint.config_files`` reads these from the checkpoint's JSON; nothing about the 35B model is
assumed, so the nano voice and pruned checkpoints use the same code with other sizes. No torch in
this file.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from rt_drama3.errors import RequestError

# Numbers of the largest model whose step is compiled for a CPU; beyond, arithmetic is not what
# takes the time, and matrices stay as they are stored.
LARGEST_COMPILED = 1_000_000_000


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one gated grouped-query attention layer, of the backbone or the tower."""

    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_base: float
    norm_eps: float


@dataclass(frozen=True)
class BackboneConfig:
    """``text_config``: the Qwen3.5-style hybrid of gated DeltaNet and full attention, with MoE."""

    hidden_size: int
    layer_types: tuple[str, ...]  # "linear_attention" | "full_attention", one per layer
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_base: float
    experts: tuple[int, ...]  # routed experts of each layer (pruned checkpoints vary by layer)
    experts_per_token: int
    expert_ffn: int
    shared_expert_ffn: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    linear_value_dim: int
    conv_kernel: int
    norm_eps: float
    vocab_size: int
    max_positions: int | None

    @property
    def layers(self) -> int:
        return len(self.layer_types)

    @property
    def attention(self) -> AttentionShape:
        return _attention(self, self.hidden_size)

    @property
    def linear_conv_dim(self) -> int:
        """Channels of the DeltaNet convolution: Q, K and V concatenated."""
        keys = self.linear_key_heads * self.linear_key_dim
        return 2 * keys + self.linear_value_heads * self.linear_value_dim


@dataclass(frozen=True)
class TowerConfig:
    """``audio_decoder_config``: the codebook tower that draws codebooks 1.. of each frame."""

    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_base: float
    shared_layers: int
    num_codebooks: int
    codebook_size: int
    ffn: int
    norm_eps: float
    backbone_codebooks: int  # k: codebooks 1..k enter the backbone input, the others the tower

    @property
    def residual_layers(self) -> int:
        return self.num_codebooks - 1

    @property
    def layers(self) -> int:
        return self.shared_layers + self.residual_layers

    @property
    def attention(self) -> AttentionShape:
        return _attention(self, self.dim)


def _attention(sizes: BackboneConfig | TowerConfig, dim: int) -> AttentionShape:
    heads = sizes.heads, sizes.kv_heads, sizes.head_dim
    return AttentionShape(dim, *heads, sizes.rotary_dim, sizes.rope_base, sizes.norm_eps)


@dataclass(frozen=True)
class ModelConfig:
    """``config.json`` of a Drama 3 checkpoint."""

    backbone: BackboneConfig
    tower: TowerConfig
    semantic_start: int
    semantic_end: int
    eos: int
    dtype: str
    fp8_experts: bool  # expert matrices are float8_e4m3fn with 128x128 block scales

    @property
    def num_codebooks(self) -> int:
        return self.tower.num_codebooks

    @property
    def candidates(self) -> int:
        """Number of main tokens that can be sampled: the semantic band, then eos."""
        return self.semantic_end - self.semantic_start + 2


@dataclass(frozen=True)
class SegmentConfig:
    """How a checkpoint divides a long text into segments.

    Attributes:
        longest: maximum UTF-8 bytes of a segment.
        remembered: a segment sees earlier ones of its text as previous turns.
    """

    longest: int = 300
    remembered: bool = True


@dataclass(frozen=True)
class WindowTransformerConfig:
    """A causal windowed transformer inside the codec (docs/model.md, 8.2)."""

    layers: int
    heads: int
    head_dim: int
    ffn: int
    window: int


@dataclass(frozen=True)
class CodecConfig:
    """Sizes of the codec. The defaults are the official 44.1 kHz codec of Drama 3 and S2-Pro."""

    sample_rate: int = 44_100
    latent: int = 1024
    num_codebooks: int = 10
    semantic_codebook_size: int = 4096
    residual_codebook_size: int = 1024
    codebook_dim: int = 8
    post: WindowTransformerConfig = WindowTransformerConfig(8, 16, 64, 3072, 128)
    upsample: tuple[int, ...] = (2, 2)
    decoder_dim: int = 1536
    decoder_rates: tuple[int, ...] = (8, 8, 4, 2)
    encoder_dim: int = 64
    encoder_rates: tuple[int, ...] = (2, 4, 8, 8)
    encoder_transformer: WindowTransformerConfig | None = WindowTransformerConfig(
        4, 16, 64, 3072, 512
    )
    pre: WindowTransformerConfig | None = WindowTransformerConfig(8, 16, 64, 3072, 128)
    rope_base: float = 10_000.0
    rope_table_dtype: str = "bfloat16"  # the reference keeps its cos/sin table in bf16

    @property
    def frame_samples(self) -> int:
        """PCM samples of one frame (2048 for the official codec)."""
        return math.prod(self.decoder_rates) * math.prod(self.upsample)

    @property
    def frame_rate(self) -> float:
        """Frames per second (21.533 for the official codec)."""
        return self.sample_rate / self.frame_samples


@dataclass(frozen=True)
class SamplingConfig:
    """How codes are drawn (docs/model.md, 7). Temperature 0 is greedy.

    Attributes:
        temperature: temperature of the main (semantic or eos) token.
        head_temperature: temperature of the codebook heads.
        top_p: nucleus of both; the main draw keeps the crossing token, the heads drop it.
        top_k: top-k of the main draw, if any; the heads use ``min(top_k, head_top_k)``.
        head_top_k: top-k of the codebook heads.
        repetition_aware: redraw a semantic token that occurs among the latest main tokens.
        ras_temperature, ras_top_k, ras_top_p: settings of that redraw.
    """

    temperature: float = 1.0
    head_temperature: float = 1.0
    top_p: float = 0.9
    top_k: int | None = None
    head_top_k: int = 30
    repetition_aware: bool = True
    ras_temperature: float = 1.0
    ras_top_k: int = 30
    ras_top_p: float = 0.95


@dataclass(frozen=True)
class VoiceConfig:
    """``generation_config.json``: how a checkpoint speaks. The defaults are those of Drama 3.

    Attributes:
        sampling: its sampling defaults.
        segments: how it divides a long text. A small voice that was trained on single sentences
            only gets lost in longer text.
        fixed_voice: it has one voice and ignores references.
        reads_directions: it understands directions and speaker tags. A small voice that would read
            them aloud declares false, and they are left out of its prompts.
        normalizes: text is normalised for it unless a request says otherwise. A voice that was
            trained on words needs it; Drama 3 reads numbers and signs by itself.
    """

    sampling: SamplingConfig = SamplingConfig()
    segments: SegmentConfig = SegmentConfig()
    fixed_voice: bool = False
    reads_directions: bool = True
    normalizes: bool = False


def resolve_sampling(
    defaults: SamplingConfig,
    temperature: float | None = None,
    head_temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    repetition_aware: bool = True,
) -> SamplingConfig:
    """Applies a request's sampling settings to the checkpoint's defaults; see ``Drama3.generate``.

    Raises:
        RequestError: a value is out of range.
    """
    for name, value in (("temperature", temperature), ("head_temperature", head_temperature)):
        if value is not None and not (is_number(value) and 0 <= value <= 10):
            raise RequestError(f"{name} is {value}; it must lie in 0..10 (0 is greedy).")
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise RequestError(f"top_p is {top_p}; it must lie above 0 and up to 1.")
    if top_k is not None and not (is_number(top_k) and top_k >= 1 and top_k == int(top_k)):
        raise RequestError(f"top_k is {top_k}; it must be at least 1.")
    if head_temperature is None:
        head_temperature = defaults.head_temperature if temperature is None else temperature
    return replace(
        defaults,
        temperature=float(defaults.temperature if temperature is None else temperature),
        head_temperature=float(head_temperature),
        top_p=float(defaults.top_p if top_p is None else top_p),
        top_k=defaults.top_k if top_k is None else int(top_k),
        repetition_aware=defaults.repetition_aware and repetition_aware,
    )


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a setting is a real number, numpy's included."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
