"""Model sizes to measure: the official checkpoint's, and smaller ones of the same kind."""

from __future__ import annotations

from dataclasses import replace

from rt_drama3.config import BackboneConfig, ModelConfig, TowerConfig

_FOUR = ("linear_attention", "linear_attention", "linear_attention", "full_attention")


def official(layers: int = 40) -> ModelConfig:
    """The 35B model (docs/model.md, 1), with fewer backbone layers when asked."""
    return _model(
        BackboneConfig(
            hidden_size=2048,
            layer_types=tuple(_FOUR[i % 4] for i in range(layers)),
            heads=16,
            kv_heads=2,
            head_dim=256,
            rotary_dim=64,
            rope_base=1e7,
            experts=(256,) * layers,
            experts_per_token=8,
            expert_ffn=512,
            shared_expert_ffn=512,
            linear_key_heads=16,
            linear_value_heads=32,
            linear_key_dim=128,
            linear_value_dim=128,
            conv_kernel=4,
            norm_eps=1e-6,
            vocab_size=252_288,
            max_positions=None,
        ),
        shared_layers=4,
        num_codebooks=10,
        codebook_size=4096,
        ffn=6144,
    )


def middle() -> ModelConfig:
    """Some 100 million parameters, every part of the official model in it."""
    back = replace(
        official(8).backbone,
        hidden_size=512,
        heads=8,
        head_dim=64,
        rotary_dim=16,
        experts=(32,) * 8,
        experts_per_token=4,
        expert_ffn=256,
        shared_expert_ffn=256,
        linear_key_heads=4,
        linear_value_heads=8,
        linear_key_dim=64,
        linear_value_dim=64,
        vocab_size=8192,
    )
    return _model(back, shared_layers=2, num_codebooks=6, codebook_size=1024, ffn=1024)


def tiny() -> ModelConfig:
    """As small as FP8 blocks allow; runs on any CPU."""
    back = replace(
        middle().backbone,
        hidden_size=128,
        layer_types=("linear_attention", "full_attention"),
        heads=4,
        head_dim=32,
        rotary_dim=8,
        experts=(8, 8),
        experts_per_token=2,
        expert_ffn=128,
        shared_expert_ffn=128,
        linear_key_heads=2,
        linear_value_heads=4,
        linear_key_dim=32,
        linear_value_dim=32,
        vocab_size=512,
    )
    return _model(back, shared_layers=1, num_codebooks=3, codebook_size=64, ffn=256)


def _model(
    back: BackboneConfig, shared_layers: int, num_codebooks: int, codebook_size: int, ffn: int
) -> ModelConfig:
    start = back.vocab_size - codebook_size
    return ModelConfig(
        backbone=back,
        tower=TowerConfig(
            dim=back.hidden_size,
            heads=back.heads,
            kv_heads=back.kv_heads,
            head_dim=back.head_dim,
            rotary_dim=back.rotary_dim,
            rope_base=back.rope_base,
            shared_layers=shared_layers,
            num_codebooks=num_codebooks,
            codebook_size=codebook_size,
            ffn=ffn,
            norm_eps=back.norm_eps,
            backbone_codebooks=1,
        ),
        semantic_start=start,
        semantic_end=back.vocab_size - 1,
        eos=start - 2,
        dtype="bfloat16",
        fp8_experts=True,
    )
