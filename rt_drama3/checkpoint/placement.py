"""Where each official tensor goes in ``SpeechModel``, and how it is changed on the way.

A plan is a list of placements, each filling one region of one parameter from one to three official
tensors. Together they fill every element of every parameter once and read every official tensor.
The functions at the end document each change and its reason; the layouts are those of
docs/model.md, 2, and of the modules in ``model/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rt_drama3.checkpoint.inventory import (
    BACKBONE,
    CODEBOOK_EMBED,
    EMBED,
    HEAD,
    expert_name,
    layer_prefix,
    tower_embedding,
    tower_head,
    tower_prefix,
)
from rt_drama3.config import AttentionShape, BackboneConfig, ModelConfig, TowerConfig
from rt_drama3.model.weights import dequantize

# (tensors in their stored dtype, dtype of the parameter) -> contents of the region
Change = Callable[[Sequence[Tensor], torch.dtype], Tensor]
Index = tuple[int | slice, ...]

_FOLD_ROWS = 512  # codes folded at a time: bounds the float64 temporaries


@dataclass(frozen=True)
class Source:
    """A stored tensor or a part of it."""

    name: str
    rows: slice | None = None
    columns: slice | None = None


@dataclass(frozen=True)
class Placement:
    """One region of one parameter.

    Attributes:
        sources: what is read.
        target: parameter of ``SpeechModel``, by its dotted name.
        index: region of the parameter, as an index of its leading dims; () is all of it.
        change: makes the region's contents; None copies the only source row by row, so that it may
            be read in chunks of any number of rows.
        order: int64 ``[rows]``: which row of the only source each row of the region is.
    """

    sources: tuple[Source, ...]
    target: str
    index: Index = ()
    change: Change | None = None
    order: Tensor | None = None


def plan(config: ModelConfig, *, trimmed_head: bool) -> list[Placement]:
    """All placements of a checkpoint.

    Args:
        config: sizes of the checkpoint.
        trimmed_head: ``lm_head`` holds only the rows that can be sampled, in our order.
    """
    backbone, tower = config.backbone, config.tower
    steps = [
        _copy(EMBED, "embed"),
        _copy(CODEBOOK_EMBED, "codebook_embed"),
        *_head(config, trimmed=trimmed_head),
        _shifted(f"{BACKBONE}.norm.weight", "backbone.norm"),
    ]
    for layer in range(backbone.layers):
        steps += _backbone_layer(backbone, layer)
        steps += _experts(backbone, layer, fp8=config.fp8_experts)
    for layer in range(tower.layers):
        steps += _tower_layer(tower, layer)
    for codebook in range(1, tower.num_codebooks):
        steps.append(_copy(tower_head(codebook), "tower.heads", (codebook - 1,)))
    return steps


def _copy(name: str, target: str, index: Index = (), rows: slice | None = None) -> Placement:
    return Placement((Source(name, rows),), target, index)


def _changed(
    name: str, target: str, change: Callable[[Tensor], Tensor], index: Index = ()
) -> Placement:
    return Placement((Source(name),), target, index, lambda tensors, _dtype: change(tensors[0]))


def _shifted(name: str, target: str) -> Placement:
    return _changed(name, target, one_plus)


def _stacked(names_rows: Sequence[tuple[str, int]], target: str) -> Iterator[Placement]:
    """Copies tensors below each other into one parameter."""
    start = 0
    for name, rows in names_rows:
        yield _copy(name, target, (slice(start, start + rows),))
        start += rows


def _head(config: ModelConfig, *, trimmed: bool) -> Iterator[Placement]:
    if trimmed:
        yield _copy(HEAD, "head")
        return
    codes = config.tower.codebook_size
    band = slice(config.semantic_start, config.semantic_end + 1)
    yield _copy(HEAD, "head", (slice(0, codes),), rows=band)
    eos = slice(config.eos, config.eos + 1)
    yield _copy(HEAD, "head", (slice(codes, codes + 1),), rows=eos)


def _backbone_layer(config: BackboneConfig, layer: int) -> Iterator[Placement]:
    official, ours = layer_prefix(layer), f"backbone.layers.{layer}"
    yield _shifted(f"{official}.input_layernorm.weight", f"{ours}.input_norm")
    yield _shifted(f"{official}.post_attention_layernorm.weight", f"{ours}.post_norm")
    if config.layer_types[layer] == "full_attention":
        yield from _attention(config.attention, f"{official}.self_attn", f"{ours}.mixer")
    else:
        yield from _delta_net(config, f"{official}.linear_attn", f"{ours}.mixer")
    mlp, shared = f"{official}.mlp", config.shared_expert_ffn
    yield from _stacked(
        [(f"{mlp}.gate.weight", config.experts[layer]), (f"{mlp}.shared_expert_gate.weight", 1)],
        f"{ours}.moe.router",
    )
    gate_up = [f"{mlp}.shared_expert.{part}_proj.weight" for part in ("gate", "up")]
    yield from _stacked([(name, shared) for name in gate_up], f"{ours}.moe.shared_gate_up")
    yield _copy(f"{mlp}.shared_expert.down_proj.weight", f"{ours}.moe.shared_down")


def _attention(shape: AttentionShape, official: str, ours: str) -> Iterator[Placement]:
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    queries, gates = Source(f"{official}.q_proj.weight"), (slice(0, 2 * query),)
    order = gates_order(shape.heads, shape.head_dim)
    yield Placement((queries,), f"{ours}.qkv", gates, order=order)
    start = 2 * query
    for part in ("k_proj", "v_proj"):
        yield _copy(f"{official}.{part}.weight", f"{ours}.qkv", (slice(start, start + key),))
        start += key
    yield _copy(f"{official}.o_proj.weight", f"{ours}.out")
    for norm in ("q_norm", "k_norm"):
        yield _shifted(f"{official}.{norm}.weight", f"{ours}.{norm}")


def _delta_net(config: BackboneConfig, official: str, ours: str) -> Iterator[Placement]:
    heads = config.linear_value_heads
    parts = [
        ("in_proj_qkv", config.linear_conv_dim),
        ("in_proj_z", heads * config.linear_value_dim),
        ("in_proj_b", heads),
        ("in_proj_a", heads),
    ]
    named = [(f"{official}.{part}.weight", rows) for part, rows in parts]
    yield from _stacked(named, f"{ours}.in_proj")
    yield _changed(f"{official}.conv1d.weight", f"{ours}.conv", depthwise)
    yield _changed(f"{official}.A_log", f"{ours}.decay", decay)
    yield _copy(f"{official}.dt_bias", f"{ours}.dt_bias")
    yield _copy(f"{official}.norm.weight", f"{ours}.norm")  # plain gamma, not zero-centred
    yield _copy(f"{official}.out_proj.weight", f"{ours}.out_proj")


def _experts(config: BackboneConfig, layer: int, *, fp8: bool) -> Iterator[Placement]:
    ours, ffn = f"backbone.layers.{layer}.moe", config.expert_ffn
    for expert in range(config.experts[layer]):
        for matrix, target, half in (
            ("gate_proj", "gate_up", 0),
            ("up_proj", "gate_up", 1),
            ("down_proj", "down", None),
        ):
            name = expert_name(layer, expert, matrix)
            index: Index = (expert,)
            if half is not None:
                index = (expert, slice(half * ffn, (half + 1) * ffn))
            if fp8:
                scale = expert_name(layer, expert, matrix, scale=True)
                both = (Source(name), Source(scale))
                yield Placement(both, f"{ours}.{target}", index, dequantized)
            else:
                yield _copy(name, f"{ours}.{target}", index)


def _tower_layer(config: TowerConfig, layer: int) -> Iterator[Placement]:
    official, ours = tower_prefix(config, layer), f"tower.layers.{layer}"
    inner, dim, shape = f"{official}.transformer_layer", config.dim, config.attention
    embedding = tower_embedding(config, layer)
    # eh_proj reads [enorm(e); hnorm(h)]: the embedding's half comes first.
    left = Source(f"{official}.eh_proj.weight", columns=slice(0, dim))
    right = Source(f"{official}.eh_proj.weight", columns=slice(dim, 2 * dim))
    if layer == 0:
        yield _copy(embedding, f"{ours}.embed")
        yield _shifted(f"{official}.enorm.weight", f"{ours}.enorm")
        yield Placement((left,), f"{ours}.embed_proj")
    else:
        folded = (Source(embedding), Source(f"{official}.enorm.weight"), left)
        yield Placement(folded, f"{ours}.table", change=partial(fold, eps=config.norm_eps))
    yield Placement((right,), f"{ours}.hidden_proj")
    yield _shifted(f"{official}.hnorm.weight", f"{ours}.hnorm")
    yield _shifted(f"{inner}.attention_norm.weight", f"{ours}.attn_norm")
    yield _shifted(f"{inner}.ffn_norm.weight", f"{ours}.ffn_norm")
    yield _shifted(f"{official}.final_layernorm.weight", f"{ours}.final_norm")
    rotary = config.rotary_dim
    qkv = Source(f"{inner}.attention.wqkv.weight")
    yield Placement((qkv,), f"{ours}.attention.qkv", order=qkv_order(shape))
    yield _copy(f"{inner}.attention.wo.weight", f"{ours}.attention.out")
    for norm in ("q_norm", "k_norm"):
        name = f"{inner}.attention.{norm}.weight"
        halved = partial(halved_norm, rotary=rotary)
        yield _changed(name, f"{ours}.attention.{norm}", halved)
    ffn_up = [(f"{inner}.feed_forward.{part}.weight", config.ffn) for part in ("w1", "w3")]
    yield from _stacked(ffn_up, f"{ours}.ffn_up")
    yield _copy(f"{inner}.feed_forward.w2.weight", f"{ours}.ffn_down")


def one_plus(weight: Tensor) -> Tensor:
    """The plain gamma of a zero-centred one, in float32 (docs/model.md, 4)."""
    return (weight.double() + 1).float()


def decay(a_log: Tensor) -> Tensor:
    """``exp(A_log)`` in float32: the rate that the delta net multiplies with softplus(a + dt)."""
    return a_log.double().exp().float()


def depthwise(weight: Tensor) -> Tensor:
    """``[channels, 1, kernel]`` -> ``[channels, kernel]``."""
    return weight.squeeze(1)


def gates_order(heads: int, head_dim: int) -> Tensor:
    """Rows query|gate per head -> all queries, then all gates (docs/model.md, 2.2)."""
    rows = torch.arange(2 * heads * head_dim).view(heads, 2, head_dim)
    return rows.transpose(0, 1).flatten()


def halves_order(head_dim: int, rotary: int) -> Tensor:
    """Order of a head's dims that turns interleaved rotary pairs into half-split ones.

    The tower rotates dims (2j, 2j + 1) together, ``model.ops.rotate`` dims (j, j + rotary/2);
    reordering queries and keys alike keeps their products (docs/model.md, 9.1).
    """
    dims = torch.arange(head_dim)
    return torch.cat((dims[0:rotary:2], dims[1:rotary:2], dims[rotary:]))


def qkv_order(shape: AttentionShape) -> Tensor:
    """Re-orders the Q and K rows of ``[Q|gates|K|V, dim]``; gates and V stay."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    order = halves_order(shape.head_dim, shape.rotary_dim)
    q, gates, k, v = torch.arange(2 * (query + key)).split((query, query, key, key))
    q, k = (part.unflatten(0, (-1, shape.head_dim))[:, order].flatten() for part in (q, k))
    return torch.cat((q, gates, k, v))


def halved_norm(weight: Tensor, rotary: int) -> Tensor:
    """``1 + w`` of a tower q or k norm, in the order of the re-ordered heads."""
    return one_plus(weight)[halves_order(weight.shape[0], rotary).to(weight.device)]


def dequantized(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """An FP8 matrix times its block scales, in float32, rounded once to ``dtype``."""
    weight, scale = tensors
    return dequantize(weight, scale, dtype)


def fold(tensors: Sequence[Tensor], dtype: torch.dtype, eps: float) -> Tensor:
    """``W_e @ enorm(embedding)`` of every code: the embedding half of ``eh_proj`` as a table.

    In float64, since the table stands for two roundings of the unfolded form (docs/model.md,
    9.1).

    Args:
        tensors: embedding ``[codes, dim]``, zero-centred enorm ``[dim]``, W_e ``[dim, dim]``.
        dtype: dtype of the table.
        eps: epsilon of the norm.

    Returns:
        ``[codes, dim]``.
    """
    embedding, norm, weight = tensors
    gamma, projection = norm.double() + 1, weight.double().t()
    table = torch.empty(embedding.shape, dtype=dtype, device=embedding.device)
    for start in range(0, embedding.shape[0], _FOLD_ROWS):
        rows = embedding[start : start + _FOLD_ROWS].double()
        rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * gamma
        table[start : start + _FOLD_ROWS] = (rows @ projection).to(dtype)
    return table
