"""Converts training weights to the official tensor names and back; new tokens get new rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.config import ModelConfig

_BACKBONE = "model.language_model."
_PREFIXES = (  # ours, official
    ("codebook_embeddings.", "audio_decoder.codebook_embeddings."),
    ("shared.", "audio_decoder_mtp_shared.layers."),
    ("residual.", "audio_decoder_mtp.layers."),
    ("heads.", "audio_decoder_mtp.heads."),
    ("lm_head.", "lm_head."),
    ("layers.", f"{_BACKBONE}layers."),
    ("embed_tokens.", f"{_BACKBONE}embed_tokens."),
    ("norm.", f"{_BACKBONE}norm."),
)
_EXPERT_PARTS = ("gate_proj", "up_proj", "down_proj")
_BY_TOKEN = (f"{_BACKBONE}embed_tokens.weight", "lm_head.weight")


def to_official(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, in the dtype they have."""
    back = config.backbone
    official: dict[str, Tensor] = {}
    for name, value in state.items():
        renamed = _renamed(name, 0, 1)
        part = name.split(".")[-2]
        if ".mlp." not in name or part not in _EXPERT_PARTS:
            official[renamed] = value
            continue
        layer = int(name.split(".")[1])
        dim = 1 if part == "down_proj" else 0
        sizes = [back.expert_ffn] * back.experts[layer] + [back.shared_expert_ffn]
        mlp = renamed.rsplit(".", 2)[0]
        *experts, shared = value.split(sizes, dim)
        for number, weight in enumerate(experts):
            official[f"{mlp}.experts.{number}.{part}.weight"] = weight
        official[f"{mlp}.shared_expert.{part}.weight"] = shared
    return {name: value.contiguous() for name, value in official.items()}


def from_official(config: ModelConfig, official: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The training state of a checkpoint's tensors, in float32."""
    state: dict[str, Tensor] = {}
    for name, value in official.items():
        if ".experts." in name:
            continue
        ours = _renamed(name, 1, 0).replace(".mlp.shared_expert.", ".mlp.")
        if ".mlp.shared_expert." in name:
            part, layer = name.split(".")[-2], int(ours.split(".")[1])
            stem = name.split("shared_expert.")[0]
            experts = [
                official[f"{stem}experts.{number}.{part}.weight"]
                for number in range(config.backbone.experts[layer])
            ]
            value = torch.cat([*experts, value], 1 if part == "down_proj" else 0)
        state[ours] = value.float()
    return state


def _renamed(name: str, source: int, target: int) -> str:
    for prefixes in _PREFIXES:
        if name.startswith(prefixes[source]):
            return prefixes[target] + name.removeprefix(prefixes[source])
    raise ValueError(f"{name} belongs to no part of the model")


def read_voice(folder: Path, config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """The training state of a checkpoint on disk, moved to a config that may have more text tokens.

    Text tokens keep their numbers, the semantic band moves behind the new ones, and those begin as
    the mean of the others with a little noise.

    Args:
        folder: with ``config.json`` and ``model.safetensors``.
        config: to train; as the checkpoint's but for the vocabulary.
        seed: of the noise.
    """
    old = parse_model_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    official = load_file(folder / "model.safetensors")
    missing = config.semantic_start - old.semantic_start
    if missing < 0:
        raise ValueError(f"{folder} has {-missing} text tokens more than the voice to train")
    random = torch.Generator().manual_seed(seed)
    for name in _BY_TOKEN:
        text, band = official[name].float().split((old.semantic_start, old.tower.codebook_size))
        noise = 0.1 * torch.randn(missing, text.shape[1], generator=random) * text.std()
        official[name] = torch.cat((text, text.mean(0) + noise, band))
    return from_official(config, official)
