"""Checkpoints to look at and to damage, and the official full-size config."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from rt_drama3.checkpoint import make_tiny
from rt_drama3.checkpoint.tiny_config import default_config

Tensors = dict[str, Tensor]
INDEX = "model.safetensors.index.json"


def read_tensors(directory: Path) -> Tensors:
    """Every tensor of a checkpoint, read by the safetensors library."""
    tensors: Tensors = {}
    for shard in sorted(directory.glob("*.safetensors")):
        tensors.update(load_file(shard))
    return tensors


def rewrite(directory: Path, change: Callable[[Tensors], object]) -> None:
    """Changes tensors of a checkpoint, which becomes a single file without an index."""
    tensors = read_tensors(directory)
    change(tensors)
    for shard in directory.glob("*.safetensors"):
        shard.unlink()
    (directory / INDEX).unlink(missing_ok=True)
    save_file(tensors, directory / "model.safetensors")


def edit_json(path: Path, change: Callable[[MutableMapping[str, Any]], object]) -> None:
    """Changes a JSON file."""
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.fixture
def tiny(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the default tiny checkpoint that a test may change."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "tiny"))


@pytest.fixture
def tiny_bf16(tmp_path: Path) -> Path:
    """A tiny checkpoint without FP8 and with odd sizes, in one file, that a test may change."""
    settings = {
        "text_config.hidden_size": 48,
        "text_config.num_attention_heads": 3,
        "text_config.num_key_value_heads": 1,
        "text_config.head_dim": 24,
        "text_config.rope_parameters.partial_rotary_factor": 0.5,
        "text_config.num_experts": 3,
        "text_config.moe_intermediate_size": 40,
        "text_config.shared_expert_intermediate_size": 24,
        "text_config.linear_num_key_heads": 3,
        "text_config.linear_num_value_heads": 6,
        "text_config.linear_key_head_dim": 8,
        "text_config.linear_value_head_dim": 12,
        "text_config.linear_conv_kernel_dim": 3,
        "audio_decoder_config.shared_enrichment_layers": 1,
        "audio_decoder_config.num_codebooks": 5,
        "audio_decoder_config.vocab_size": 37,
        "audio_decoder_config.intermediate_size": 56,
        "audio_decoder_config.rotary_percent": 0.25,
    }
    make_tiny(tmp_path / "odd", settings=settings, experts="bf16", shards=None)
    return tmp_path / "odd"


@pytest.fixture(scope="session")
def full_config() -> dict[str, Any]:
    """``config.json`` of the official checkpoint, as far as it is known."""
    config = default_config()
    config |= {
        "semantic_start_token_id": 248099,
        "semantic_end_token_id": 252194,
        "eos_token_id": 248046,
        "audio_pad_token_id": None,  # its number is not known
    }
    config["text_config"] |= {
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "mlp_layer_types": ["moe"] * 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "vocab_size": 252288,
    }
    config["audio_decoder_config"] |= {
        "dim": 2048,
        "text_dim": 2048,
        "n_head": 16,
        "n_local_heads": 2,
        "head_dim": 256,
        "n_layer": 4,
        "shared_enrichment_layers": 4,
        "num_codebooks": 10,
        "max_seq_len": 11,
        "vocab_size": 4096,
        "intermediate_size": 6144,
        "vq_feature_placement": "backbone_partial",
        "vq_backbone_codebooks": 1,
    }
    return config
