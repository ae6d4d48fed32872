"""Sizes at which a training step takes milliseconds."""

from __future__ import annotations

from typing import Any

from training.codec import codec_json
from training.vocabulary import config_json


def small_model() -> dict[str, Any]:
    """``config.json`` with two layers of 32 dims; the vocabulary is the nano voice's."""
    sizes = config_json()
    text, audio = sizes["text_config"], sizes["audio_decoder_config"]
    text |= {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["moe", "moe"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    }
    audio |= {
        "dim": 32,
        "text_dim": 32,
        "n_head": 2,
        "n_local_heads": 1,
        "head_dim": 16,
        "intermediate_size": 32,
    }
    return sizes


def small_codec() -> dict[str, Any]:
    """``codec_config.json`` with a thin latent."""
    return codec_json() | {
        "latent": 16,
        "codebook_dim": 4,
        "post": {"n_layer": 1, "n_head": 2, "head_dim": 8, "ffn": 16, "window": 8},
        "decoder_dim": 16,
        "encoder_dim": 2,
    }
