"""Every tensor of a Drama 3 language model: official name, shape, kind and family.

Source: docs/model.md, 2.2 and 2.3. The sizes come from ``config.json``; the full-size config
gives exactly 62,245 tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rt_drama3.config import AttentionShape, BackboneConfig, ModelConfig, TowerConfig

FP8_BLOCK = 128  # rows and columns that share one scale
BACKBONE = "model.language_model"
EMBED = f"{BACKBONE}.embed_tokens.weight"
HEAD = "lm_head.weight"
CODEBOOK_EMBED = "audio_decoder.codebook_embeddings.weight"

DENSE, EXPERT, SCALE = "dense", "expert", "scale"
EXPERT_MATRICES = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class TensorSpec:
    """The required form of one official tensor.

    Attributes:
        shape: as stored.
        kind: ``dense`` (bf16, fp16 or fp32), ``expert`` (float8_e4m3fn) or ``scale`` (fp32 or
            bf16). Experts of a checkpoint that is not FP8 are ``dense``.
        family: group that reports add up: embeddings, head, attention, delta net, experts,
            shared experts, routers, norms, tower.
        also: another shape that is accepted (an ``lm_head`` trimmed to the rows that are sampled).
    """

    shape: tuple[int, ...]
    kind: str
    family: str
    also: tuple[int, ...] | None = None


def layer_prefix(layer: int) -> str:
    """Official prefix of a backbone layer."""
    return f"{BACKBONE}.layers.{layer}"


def expert_name(layer: int, expert: int, matrix: str, *, scale: bool = False) -> str:
    """Official name of an expert's matrix, or of its block scales."""
    suffix = "weight_scale_inv" if scale else "weight"
    return f"{layer_prefix(layer)}.mlp.experts.{expert}.{matrix}.{suffix}"


def tower_prefix(config: TowerConfig, layer: int) -> str:
    """Official prefix of a tower layer; the shared layers come first."""
    if layer < config.shared_layers:
        return f"audio_decoder_mtp_shared.layers.{layer}"
    return f"audio_decoder_mtp.layers.{layer - config.shared_layers}"


def tower_embedding(config: TowerConfig, layer: int) -> str:
    """Official name of the code embedding of a tower layer."""
    kind = "semantic" if layer < config.shared_layers else "codebook"
    return f"{tower_prefix(config, layer)}.{kind}_embedding.weight"


def tower_head(codebook: int) -> str:
    """Official name of the head that draws ``codebook`` >= 1."""
    return f"audio_decoder_mtp.heads.{codebook - 1}.weight"


def scale_shape(rows: int, columns: int) -> tuple[int, int]:
    """Blocks of an FP8 matrix; a partial last block counts."""
    return -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)


def inventory(config: ModelConfig) -> dict[str, TensorSpec]:
    """Returns exactly the tensors that a checkpoint with this config holds.

    Returns:
        Official name -> ``TensorSpec``, in the order of the model.
    """
    backbone, tower = config.backbone, config.tower
    specs = {
        EMBED: TensorSpec((backbone.vocab_size, backbone.hidden_size), DENSE, "embeddings"),
        f"{BACKBONE}.norm.weight": TensorSpec((backbone.hidden_size,), DENSE, "norms"),
        HEAD: TensorSpec(
            (backbone.vocab_size, backbone.hidden_size),
            DENSE,
            "head",
            also=(config.candidates, backbone.hidden_size),
        ),
    }
    for layer in range(backbone.layers):
        prefix = layer_prefix(layer)
        for name, shape, family in _backbone_layer(backbone, layer):
            specs[f"{prefix}.{name}"] = TensorSpec(shape, DENSE, family)
        specs.update(_experts(backbone, layer, fp8=config.fp8_experts))
    codes, dim = tower.codebook_size, tower.dim
    specs[CODEBOOK_EMBED] = TensorSpec((tower.num_codebooks * codes, dim), DENSE, "embeddings")
    for layer in range(tower.layers):
        specs[tower_embedding(tower, layer)] = TensorSpec((codes, dim), DENSE, "tower")
        prefix = tower_prefix(tower, layer)
        for name, shape in _tower_layer(tower):
            specs[f"{prefix}.{name}.weight"] = TensorSpec(shape, DENSE, "tower")
    for codebook in range(1, tower.num_codebooks):
        specs[tower_head(codebook)] = TensorSpec((codes, dim), DENSE, "tower")
    return specs


def _backbone_layer(
    config: BackboneConfig, layer: int
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    dim, shared = config.hidden_size, config.shared_expert_ffn
    yield "input_layernorm.weight", (dim,), "norms"
    yield "post_attention_layernorm.weight", (dim,), "norms"
    if config.layer_types[layer] == "full_attention":
        yield from _attention(config.attention)
    else:
        yield from _delta_net(config)
    yield "mlp.gate.weight", (config.experts[layer], dim), "routers"
    yield "mlp.shared_expert_gate.weight", (1, dim), "routers"
    yield "mlp.shared_expert.gate_proj.weight", (shared, dim), "shared experts"
    yield "mlp.shared_expert.up_proj.weight", (shared, dim), "shared experts"
    yield "mlp.shared_expert.down_proj.weight", (dim, shared), "shared experts"


def _attention(shape: AttentionShape) -> Iterator[tuple[str, tuple[int, ...], str]]:
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "self_attn.q_proj.weight", (2 * query, shape.dim), "attention"
    yield "self_attn.k_proj.weight", (key, shape.dim), "attention"
    yield "self_attn.v_proj.weight", (key, shape.dim), "attention"
    yield "self_attn.o_proj.weight", (shape.dim, query), "attention"
    yield "self_attn.q_norm.weight", (shape.head_dim,), "norms"
    yield "self_attn.k_norm.weight", (shape.head_dim,), "norms"


def _delta_net(config: BackboneConfig) -> Iterator[tuple[str, tuple[int, ...], str]]:
    dim, heads = config.hidden_size, config.linear_value_heads
    values = heads * config.linear_value_dim
    yield "linear_attn.in_proj_qkv.weight", (config.linear_conv_dim, dim), "delta net"
    yield "linear_attn.in_proj_z.weight", (values, dim), "delta net"
    yield "linear_attn.in_proj_b.weight", (heads, dim), "delta net"
    yield "linear_attn.in_proj_a.weight", (heads, dim), "delta net"
    conv = (config.linear_conv_dim, 1, config.conv_kernel)
    yield "linear_attn.conv1d.weight", conv, "delta net"
    yield "linear_attn.A_log", (heads,), "delta net"
    yield "linear_attn.dt_bias", (heads,), "delta net"
    yield "linear_attn.norm.weight", (config.linear_value_dim,), "norms"
    yield "linear_attn.out_proj.weight", (dim, values), "delta net"


def _experts(config: BackboneConfig, layer: int, *, fp8: bool) -> Iterator[tuple[str, TensorSpec]]:
    dim, ffn = config.hidden_size, config.expert_ffn
    for expert in range(config.experts[layer]):
        for matrix in EXPERT_MATRICES:
            shape = (dim, ffn) if matrix == "down_proj" else (ffn, dim)
            kind = EXPERT if fp8 else DENSE
            yield expert_name(layer, expert, matrix), TensorSpec(shape, kind, "experts")
            if fp8:
                scales = TensorSpec(scale_shape(*shape), SCALE, "experts")
                yield expert_name(layer, expert, matrix, scale=True), scales


def _tower_layer(config: TowerConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    dim, shape = config.dim, config.attention
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    inner = "transformer_layer"
    yield "enorm", (dim,)
    yield "hnorm", (dim,)
    yield "final_layernorm", (dim,)
    yield "eh_proj", (dim, 2 * dim)
    yield f"{inner}.attention.wqkv", (2 * query + 2 * key, dim)
    yield f"{inner}.attention.wo", (dim, query)
    yield f"{inner}.attention.q_norm", (shape.head_dim,)
    yield f"{inner}.attention.k_norm", (shape.head_dim,)
    yield f"{inner}.attention_norm", (dim,)
    yield f"{inner}.ffn_norm", (dim,)
    yield f"{inner}.feed_forward.w1", (config.ffn, dim)
    yield f"{inner}.feed_forward.w3", (config.ffn, dim)
    yield f"{inner}.feed_forward.w2", (dim, config.ffn)
