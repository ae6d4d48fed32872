"""llama.cpp's names and changes: a text model of the architecture ``qwen35moe``, and its mmproj.

What its converter does to the backbone is undone here (docs/model.md, 12.4): zero-centred norms are
stored plus one, ``A_log`` as ``-exp(A_log)``, and value heads that share a key head are spread out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from rt_drama3.checkpoint.inventory import (
    BACKBONE,
    CODEBOOK_EMBED,
    EMBED,
    HEAD,
    layer_prefix,
    tower_embedding,
    tower_head,
    tower_prefix,
)
from rt_drama3.checkpoint.names import Claim
from rt_drama3.checkpoint.stored import Stored
from rt_drama3.checkpoint.views import ColumnOrder, Piece, RowOrder, Undo
from rt_drama3.config import BackboneConfig, ModelConfig

ARCHITECTURE = "qwen35moe"
TOWER = "a.gen.code."
_NAMES = {"token_embd.weight": EMBED, "output_norm.weight": f"{BACKBONE}.norm.weight"}
_NAMES["output.weight"] = HEAD
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
    "ffn_gate_exps.weight": "mlp.experts.gate_proj",
    "ffn_up_exps.weight": "mlp.experts.up_proj",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
}
# Names of the tower in an mmproj, as llama.cpp names the same parts of other models.
TOWER_LAYER = {
    "enorm": "enorm",
    "hnorm": "hnorm",
    "eh_proj": "eh_proj",
    "output_norm": "final_layernorm",
    "attn_norm": "transformer_layer.attention_norm",
    "attn_q": "transformer_layer.attention.q_proj",
    "attn_gate": "transformer_layer.attention.gate_proj",
    "attn_k": "transformer_layer.attention.k_proj",
    "attn_v": "transformer_layer.attention.v_proj",
    "attn_qkv": "transformer_layer.attention.wqkv",
    "attn_out": "transformer_layer.attention.wo",
    "attn_output": "transformer_layer.attention.wo",
    "attn_q_norm": "transformer_layer.attention.q_norm",
    "attn_k_norm": "transformer_layer.attention.k_norm",
    "ffn_norm": "transformer_layer.ffn_norm",
    "ffn_gate": "transformer_layer.feed_forward.w1",
    "ffn_up": "transformer_layer.feed_forward.w3",
    "ffn_down": "transformer_layer.feed_forward.w2",
}


def renamed(name: str, config: ModelConfig) -> str:
    """The official name of a tensor; its own if there is none."""
    if name in _NAMES:
        return _NAMES[name]
    match = _BLOCK.fullmatch(name.removeprefix(TOWER))
    if match is None:
        return CODEBOOK_EMBED if name == f"{TOWER}embd.weight" else name
    layer, tail = int(match[1]), match[2]
    if not name.startswith(TOWER):
        return f"{layer_prefix(layer)}.{LAYER[tail]}" if tail in LAYER else name
    part = tail.removesuffix(".weight")
    if layer >= config.tower.layers:
        return name
    if part == "embd":
        return tower_embedding(config.tower, layer)
    known = TOWER_LAYER.get(part)
    return f"{tower_prefix(config.tower, layer)}.{known}.weight" if known else name


def stacks(name: str, stored: Stored, config: ModelConfig) -> Iterator[Claim]:
    """Claims of a tensor that holds several official ones, other than experts."""
    if name == f"{TOWER}head.weight" and len(stored.shape) == 3:
        rows = stored.shape[1]
        for codebook in range(stored.shape[0]):
            piece = Piece(stored, slice(codebook * rows, (codebook + 1) * rows))
            yield Claim(tower_head(codebook + 1), piece)


def undo(name: str, config: BackboneConfig) -> Undo | None:
    """What the converter did to an official tensor of a delta net, undone."""
    match = re.fullmatch(rf"{re.escape(BACKBONE)}\.layers\.\d+\.linear_attn\.(.+)", name)
    part = match[1].removesuffix(".weight") if match else None
    groups, size = config.linear_key_heads, config.linear_value_dim
    per_group = config.linear_value_heads // groups
    heads = torch.arange(config.linear_value_heads).view(per_group, groups).t().flatten()
    wide = (heads[:, None] * size + torch.arange(size)).flatten()
    keys = 2 * groups * config.linear_key_dim
    channels = torch.cat((torch.arange(keys), keys + wide))
    if part == "A_log":
        return partial(_log_decay, order=heads)
    orders = {"in_proj_a": heads, "in_proj_b": heads, "dt_bias": heads, "in_proj_z": wide}
    orders |= {"in_proj_qkv": channels, "conv1d": channels}
    if part in orders:
        return RowOrder(orders[part])
    return ColumnOrder(heads) if part == "out_proj" else None


def _log_decay(rows: Tensor, order: Tensor) -> Tensor:
    """``A_log`` of ``-exp(A_log)``, in float64: its exponential is the stored number again."""
    return RowOrder(order)(-rows.double()).log()
