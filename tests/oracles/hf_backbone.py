"""transformers' Qwen3.5-MoE as oracle of the backbone: same random weights in both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

from rt_drama3.config import BackboneConfig
from rt_drama3.model.attention import Attention
from rt_drama3.model.backbone import Backbone


@dataclass
class Pair:
    """The oracle and our backbone with its weights."""

    oracle: Qwen3_5MoeForCausalLM
    ours: Backbone
    config: BackboneConfig


def random_pair(config: BackboneConfig, seed: int) -> Pair:
    """Builds both models; every weight is random, norms and decays included."""
    torch.manual_seed(seed)
    oracle = Qwen3_5MoeForCausalLM(
        Qwen3_5MoeTextConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            layer_types=list(config.layer_types),
            linear_conv_kernel_dim=config.conv_kernel,
            linear_key_head_dim=config.linear_key_dim,
            linear_value_head_dim=config.linear_value_dim,
            linear_num_key_heads=config.linear_key_heads,
            linear_num_value_heads=config.linear_value_heads,
            moe_intermediate_size=config.expert_ffn,
            shared_expert_intermediate_size=config.shared_expert_ffn,
            num_experts=config.experts[0],
            num_experts_per_tok=config.experts_per_token,
            rms_norm_eps=config.norm_eps,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": config.rope_base,
                "partial_rotary_factor": config.rotary_dim / config.head_dim,
            },
            attn_implementation="eager",
        )
    ).eval()
    with torch.no_grad():
        for name, weight in oracle.named_parameters():
            if name.endswith(("norm.weight", "dt_bias")):
                weight.add_(torch.randn_like(weight) * 0.3)
            elif name.endswith("A_log"):
                weight.copy_(torch.empty_like(weight).uniform_(-2, 1))
            else:
                weight.copy_(torch.randn_like(weight) * weight.shape[-1] ** -0.5)
    ours = Backbone(config, "cpu", torch.float32, fp8=False)
    with torch.no_grad():
        _copy(oracle.model.state_dict(), ours, config)
    return Pair(oracle, ours, config)


def _copy(source: dict[str, Tensor], ours: Backbone, config: BackboneConfig) -> None:
    ours.norm.copy_(1 + source["norm.weight"])
    for i, layer in enumerate(ours.layers):
        get = {k.removeprefix(f"layers.{i}."): v for k, v in source.items()}
        layer.input_norm.copy_(1 + get["input_layernorm.weight"])
        layer.post_norm.copy_(1 + get["post_attention_layernorm.weight"])
        if isinstance(layer.mixer, Attention):
            per_head = get["self_attn.q_proj.weight"].view(config.heads, 2, config.head_dim, -1)
            query, gate = per_head[:, 0].flatten(0, 1), per_head[:, 1].flatten(0, 1)
            key, value = get["self_attn.k_proj.weight"], get["self_attn.v_proj.weight"]
            layer.mixer.qkv.copy_(torch.cat((query, gate, key, value)))
            layer.mixer.out.copy_(get["self_attn.o_proj.weight"])
            layer.mixer.q_norm.copy_(1 + get["self_attn.q_norm.weight"])
            layer.mixer.k_norm.copy_(1 + get["self_attn.k_norm.weight"])
        else:
            parts = [get[f"linear_attn.in_proj_{p}.weight"] for p in ("qkv", "z", "b", "a")]
            layer.mixer.in_proj.copy_(torch.cat(parts))
            layer.mixer.conv.copy_(get["linear_attn.conv1d.weight"][:, 0])
            layer.mixer.decay.copy_(get["linear_attn.A_log"].exp())
            layer.mixer.dt_bias.copy_(get["linear_attn.dt_bias"])
            layer.mixer.norm.copy_(get["linear_attn.norm.weight"])
            layer.mixer.out_proj.copy_(get["linear_attn.out_proj.weight"])
        shared = [get[f"mlp.shared_expert.{p}_proj.weight"] for p in ("gate", "up", "down")]
        layer.moe.router.copy_(
            torch.cat((get["mlp.gate.weight"], get["mlp.shared_expert_gate.weight"]))
        )
        layer.moe.gate_up.copy_(get["mlp.experts.gate_up_proj"])
        layer.moe.down.copy_(get["mlp.experts.down_proj"])
        layer.moe.shared_gate_up.copy_(torch.cat(shared[:2]))
        layer.moe.shared_down.copy_(shared[2])
