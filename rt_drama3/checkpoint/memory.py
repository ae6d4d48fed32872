"""What a model costs: bytes it occupies, bytes a stream adds, bytes a frame moves, and the floor.

A frame of few streams multiplies every weight it touches by one row or a few, so it cannot be
faster than memory delivers those weights: the floor. Everything here is counted from the sizes in
the config; no model is built. Only tensors count, not the overhead of allocators and libraries.
"""

from __future__ import annotations

from dataclasses import dataclass

from rt_drama3.config import AttentionShape, ModelConfig
from rt_drama3.errors import ConfigError
from rt_drama3.model.sampling import draws_per_frame
from rt_drama3.model.state import RAS_WINDOW

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_F32, _I64 = 4, 8
_FP8_BLOCK = 128


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of memory; see ``plan`` for what is assumed.

    Attributes:
        weights: all weights.
        stream: state of one stream, its table of noise included.
        dense: weights that every frame reads, whatever the number of streams.
        experts: weights of the routed experts that a frame is expected to read.
        cached: attention keys and values that a frame reads, of all streams.
        recurrent: DeltaNet state that a frame reads and writes back, of all streams.
        streams: concurrent streams.
    """

    weights: int
    stream: int
    dense: int
    experts: int
    cached: int
    recurrent: int
    streams: int

    @property
    def resident(self) -> int:
        """Weights and the state of all streams."""
        return self.weights + self.streams * self.stream

    @property
    def frame(self) -> int:
        """Bytes that one frame of all streams moves, at least."""
        return self.dense + self.experts + self.cached + self.recurrent

    def floor_ms(self, bandwidth: float) -> float:
        """Milliseconds that one frame of all streams takes at least.

        Args:
            bandwidth: memory bandwidth in bytes per second.
        """
        return 1e3 * self.frame / bandwidth


def plan(
    config: ModelConfig,
    *,
    dtype: str = "bfloat16",
    fp8: bool = False,
    context: int = 4096,
    max_frames: int = 2048,
    streams: int = 1,
    position: int | None = None,
    all_experts: bool = False,
) -> MemoryPlan:
    """Counts a model's bytes.

    Args:
        config: sizes.
        dtype: dtype of matrices, activations and caches.
        fp8: routed experts stay in FP8.
        context: rows that a stream can hold.
        max_frames: frames that a take can have.
        streams: concurrent streams.
        position: rows that every stream has read, as seen by the frame that is counted; None is
            half the context.
        all_experts: every routed expert is read (small models on a CPU) instead of those that are
            chosen. Choices are taken to be uniform and independent between streams.

    Raises:
        ConfigError: the dtype is unknown.
    """
    if dtype not in _BYTES:
        raise ConfigError(f"dtype is {dtype!r}; it must be one of {', '.join(_BYTES)}.")
    size, position = _BYTES[dtype], context // 2 if position is None else position
    back, tower = config.backbone, config.tower
    dim, linear = back.hidden_size, back.layer_types.count("linear_attention")
    full = back.layers - linear

    expert = 3 * back.expert_ffn * dim
    expert = expert + expert // _FP8_BLOCK**2 * _F32 if fp8 else expert * size
    chosen = sum(
        count
        if all_experts
        else count * (1 - (1 - min(1.0, back.experts_per_token / count)) ** streams)
        for count in back.experts
    )

    matrices = config.candidates * dim
    matrices += full * _attention(back.attention) + linear * _delta_net(config)
    matrices += sum((count + 1) * dim for count in back.experts)  # routers
    matrices += back.layers * 3 * back.shared_expert_ffn * dim
    matrices += (tower.layers + 1) * dim * dim  # hidden_proj, and embed_proj of the first layer
    matrices += tower.layers * (_attention(tower.attention) + 3 * tower.ffn * dim)
    matrices += tower.residual_layers * tower.codebook_size * dim
    vectors = (2 * back.layers + 1 + 4 * tower.layers + 1) * dim
    vectors += 2 * full * back.head_dim + 2 * tower.layers * tower.head_dim
    vectors += linear * (
        back.linear_conv_dim * back.conv_kernel
        + 2 * back.linear_value_heads
        + back.linear_value_dim
    )
    # One row per stream of each table: main token, later codebooks, and one of every tower layer.
    tables = back.vocab_size + (tower.num_codebooks + tower.layers) * tower.codebook_size
    looked_up = 1 + tower.num_codebooks - 1 + tower.layers
    dense = matrices * size + vectors * _F32

    row = 2 * back.kv_heads * back.head_dim * size  # key and value of one position in one layer
    matrix = back.linear_value_heads * back.linear_key_dim * back.linear_value_dim * _F32
    tail = back.linear_conv_dim * (back.conv_kernel - 1) * size
    fixed = linear * (matrix + tail)
    state = (full + tower.layers) * context * row + fixed + 2 * dim * size
    state += (1 + RAS_WINDOW) * _I64 + 1
    sampling = max_frames * draws_per_frame(tower.num_codebooks) * _F32 + 6 * _F32 + 6 * _I64 + 1
    return MemoryPlan(
        weights=dense + tables * dim * size + sum(back.experts) * expert,
        stream=state + sampling,
        dense=dense + streams * looked_up * dim * size,
        experts=round(chosen * expert),
        cached=streams * (full * (position + 1) + tower.layers * position) * row,
        recurrent=streams * 2 * fixed,
        streams=streams,
    )


def _attention(shape: AttentionShape) -> int:
    """Elements of the matrices of one attention layer: Q, gate and output, K and V."""
    return shape.dim * shape.head_dim * (3 * shape.heads + 2 * shape.kv_heads)


def _delta_net(config: ModelConfig) -> int:
    """Elements of the two matrices of one DeltaNet layer."""
    back = config.backbone
    values = back.linear_value_heads * back.linear_value_dim
    rows = back.linear_conv_dim + values + 2 * back.linear_value_heads
    return back.hidden_size * (rows + values)
