"""What SpeechModel's parameters must hold, computed from an official checkpoint one row at a time.

Written without a look at the loader's plan: plain loops over heads, pairs and blocks, in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rt_drama3.config import AttentionShape, ModelConfig

Tensors = dict[str, Tensor]


def expected_parameters(tensors: Tensors, config: ModelConfig) -> Tensors:
    """Dotted parameter name -> float64 value, FP8 experts multiplied with their scales."""
    back, tower = config.backbone, config.tower
    official = {name: value.double() for name, value in tensors.items()}
    head = official["lm_head.weight"]
    if head.shape[0] == back.vocab_size:
        sampled = [*range(config.semantic_start, config.semantic_end + 1), config.eos]
        head = torch.stack([head[i] for i in sampled])
    out = {
        "embed": official["model.language_model.embed_tokens.weight"],
        "codebook_embed": official["audio_decoder.codebook_embeddings.weight"],
        "head": head,
        "backbone.norm": 1 + official["model.language_model.norm.weight"],
        "tower.heads": torch.stack(
            [
                official[f"audio_decoder_mtp.heads.{j}.weight"]
                for j in range(tower.num_codebooks - 1)
            ]
        ),
    }
    for i, kind in enumerate(back.layer_types):
        old, new = f"model.language_model.layers.{i}", f"backbone.layers.{i}"
        out[f"{new}.input_norm"] = 1 + official[f"{old}.input_layernorm.weight"]
        out[f"{new}.post_norm"] = 1 + official[f"{old}.post_attention_layernorm.weight"]
        if kind == "full_attention":
            out.update(_full(official, back.attention, f"{old}.self_attn", f"{new}.mixer"))
        else:
            out.update(_linear(official, f"{old}.linear_attn", f"{new}.mixer"))
        out.update(_moe(official, back.experts[i], f"{old}.mlp", f"{new}.moe"))
    for i in range(tower.layers):
        shared = i < tower.shared_layers
        old = (
            f"audio_decoder_mtp_shared.layers.{i}"
            if shared
            else f"audio_decoder_mtp.layers.{i - tower.shared_layers}"
        )
        table = f"{old}.{'semantic' if shared else 'codebook'}_embedding.weight"
        out.update(_tower(official, config, i, old, table))
    return out


def _full(official: Tensors, shape: AttentionShape, old: str, new: str) -> Tensors:
    size = shape.head_dim
    projected = official[f"{old}.q_proj.weight"]
    queries, gates = [], []
    for head in range(shape.heads):
        for row in range(size):
            queries.append(projected[head * 2 * size + row])
            gates.append(projected[head * 2 * size + size + row])
    keys, values = official[f"{old}.k_proj.weight"], official[f"{old}.v_proj.weight"]
    return {
        f"{new}.qkv": torch.stack([*queries, *gates, *keys, *values]),
        f"{new}.out": official[f"{old}.o_proj.weight"],
        f"{new}.q_norm": 1 + official[f"{old}.q_norm.weight"],
        f"{new}.k_norm": 1 + official[f"{old}.k_norm.weight"],
    }


def _linear(official: Tensors, old: str, new: str) -> Tensors:
    parts = [official[f"{old}.in_proj_{part}.weight"] for part in ("qkv", "z", "b", "a")]
    return {
        f"{new}.in_proj": torch.cat(parts),
        f"{new}.conv": official[f"{old}.conv1d.weight"][:, 0],
        f"{new}.decay": torch.exp(official[f"{old}.A_log"]),
        f"{new}.dt_bias": official[f"{old}.dt_bias"],
        f"{new}.norm": official[f"{old}.norm.weight"],
        f"{new}.out_proj": official[f"{old}.out_proj.weight"],
    }


def _moe(official: Tensors, experts: int, old: str, new: str) -> Tensors:
    def matrix(expert: int, part: str) -> Tensor:
        name = f"{old}.experts.{expert}.{part}_proj.weight"
        weight, scales = official[name].clone(), official.get(f"{name}_scale_inv")
        if scales is not None:
            for row in range(weight.shape[0]):
                for block in range(scales.shape[1]):
                    weight[row, block * 128 : block * 128 + 128] *= scales[row // 128, block]
        return weight

    shared = f"{old}.shared_expert"
    return {
        f"{new}.router": torch.cat(
            (official[f"{old}.gate.weight"], official[f"{old}.shared_expert_gate.weight"])
        ),
        f"{new}.gate_up": torch.stack(
            [torch.cat((matrix(e, "gate"), matrix(e, "up"))) for e in range(experts)]
        ),
        f"{new}.down": torch.stack([matrix(e, "down") for e in range(experts)]),
        f"{new}.shared_gate_up": torch.cat(
            (official[f"{shared}.gate_proj.weight"], official[f"{shared}.up_proj.weight"])
        ),
        f"{new}.shared_down": official[f"{shared}.down_proj.weight"],
    }


def _tower(official: Tensors, config: ModelConfig, layer: int, old: str, table: str) -> Tensors:
    tower, new = config.tower, f"tower.layers.{layer}"
    shape, dim = tower.attention, tower.dim
    inner = f"{old}.transformer_layer"
    size, rotary = shape.head_dim, shape.rotary_dim
    order = [*range(0, rotary, 2), *range(1, rotary, 2), *range(rotary, size)]
    qkv, rows = official[f"{inner}.attention.wqkv.weight"], []
    query, key = shape.heads * size, shape.kv_heads * size
    for head in range(shape.heads):
        rows += [qkv[head * size + row] for row in order]
    rows += list(qkv[query : 2 * query])
    for head in range(shape.kv_heads):
        rows += [qkv[2 * query + head * size + row] for row in order]
    rows += list(qkv[2 * query + key :])
    ffn = f"{inner}.feed_forward"
    out = {
        f"{new}.hnorm": 1 + official[f"{old}.hnorm.weight"],
        f"{new}.hidden_proj": official[f"{old}.eh_proj.weight"][:, dim:],
        f"{new}.attn_norm": 1 + official[f"{inner}.attention_norm.weight"],
        f"{new}.ffn_norm": 1 + official[f"{inner}.ffn_norm.weight"],
        f"{new}.final_norm": 1 + official[f"{old}.final_layernorm.weight"],
        f"{new}.attention.qkv": torch.stack(rows),
        f"{new}.attention.out": official[f"{inner}.attention.wo.weight"],
        f"{new}.attention.q_norm": 1 + official[f"{inner}.attention.q_norm.weight"][order],
        f"{new}.attention.k_norm": 1 + official[f"{inner}.attention.k_norm.weight"][order],
        f"{new}.ffn_up": torch.cat((official[f"{ffn}.w1.weight"], official[f"{ffn}.w3.weight"])),
        f"{new}.ffn_down": official[f"{ffn}.w2.weight"],
    }
    left, enorm = official[f"{old}.eh_proj.weight"][:, :dim], official[f"{old}.enorm.weight"]
    if layer == 0:
        return out | {
            f"{new}.embed": official[table],
            f"{new}.enorm": 1 + enorm,
            f"{new}.embed_proj": left,
        }
    codes = []
    for code in official[table]:
        normed = code / torch.sqrt((code * code).mean() + tower.norm_eps) * (1 + enorm)
        codes.append(left @ normed)
    return out | {f"{new}.table": torch.stack(codes)}
