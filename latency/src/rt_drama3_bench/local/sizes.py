"""Model sizes to measure: the official checkpoint's, and smaller ones of the same kind."""

from __future__ import annotations

from typing import Any

from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.tiny_config import tiny_config
from rt_drama3.config import ModelConfig

TEXT, AUDIO = "text_config.", "audio_decoder_config."
# The 35B model (docs/model.md, 1) in the keys of its config.json, but for layers and vocabulary.
OFFICIAL = {
    TEXT + "hidden_size": 2048,
    TEXT + "num_attention_heads": 16,
    TEXT + "head_dim": 256,
    TEXT + "num_experts": 256,
    TEXT + "num_experts_per_tok": 8,
    TEXT + "moe_intermediate_size": 512,
    TEXT + "shared_expert_intermediate_size": 512,
    TEXT + "linear_num_key_heads": 16,
    TEXT + "linear_num_value_heads": 32,
    TEXT + "linear_key_head_dim": 128,
    TEXT + "linear_value_head_dim": 128,
    AUDIO + "vocab_size": 4096,
    AUDIO + "intermediate_size": 6144,
    AUDIO + "num_codebooks": 10,
    AUDIO + "shared_enrichment_layers": 4,
}
_MIDDLE = {
    TEXT + "hidden_size": 512,
    TEXT + "num_attention_heads": 8,
    TEXT + "head_dim": 64,
    TEXT + "num_experts": 32,
    TEXT + "num_experts_per_tok": 4,
    TEXT + "moe_intermediate_size": 256,
    TEXT + "shared_expert_intermediate_size": 256,
    TEXT + "linear_num_key_heads": 4,
    TEXT + "linear_num_value_heads": 8,
    TEXT + "linear_key_head_dim": 64,
    TEXT + "linear_value_head_dim": 64,
    AUDIO + "vocab_size": 1024,
    AUDIO + "intermediate_size": 1024,
    AUDIO + "num_codebooks": 6,
}


def official(layers: int = 40) -> ModelConfig:
    """The 35B model, with fewer backbone layers when asked."""
    return _model(252_288, {**OFFICIAL, TEXT + "num_hidden_layers": layers})


def middle() -> ModelConfig:
    """Some 100 million parameters, every part of the official model in it."""
    return _model(8192, {**_MIDDLE, TEXT + "num_hidden_layers": 8})


def tiny() -> ModelConfig:
    """As small as FP8 blocks allow, as ``make_tiny`` writes it; runs on any CPU."""
    types = ["linear_attention", "full_attention"]
    layers = {TEXT + "num_hidden_layers": 2, TEXT + "layer_types": types}
    tower = {AUDIO + "num_codebooks": 3, AUDIO + "shared_enrichment_layers": 1}
    return _model(512, layers | tower)


def _model(vocabulary: int, settings: dict[str, Any]) -> ModelConfig:
    settings = {**settings, TEXT + "max_position_embeddings": None}
    codes = settings.get(AUDIO + "vocab_size", 64)
    values, _ = tiny_config(settings, base_tokens=vocabulary - codes)
    return parse_model_config(values)
