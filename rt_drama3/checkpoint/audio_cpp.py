"""audio.cpp's conventions for a GGUF file: its values, names and types (docs/model.md, 12.3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rt_drama3.checkpoint.gguf.contents import ARCHITECTURE
from rt_drama3.checkpoint.inventory import layer_prefix

MODEL, CODEC = "model_weights", "codec_weights"  # what precedes the / of a tensor's name
CODEC_TYPE = "F16"
# Matrices that decide much and weigh little, which are never quantised.
_SMALL = ("mlp.gate.", "shared_expert_gate", "in_proj_a", "in_proj_b", "conv1d")


def file_values(name: str, weight_type: str) -> dict[str, Any]:
    """What a file says of itself.

    Args:
        name: of the model.
        weight_type: of most weights, as ggml spells it, or "orig".
    """
    spaces = {space: {"prefix": space} for space in (MODEL, CODEC)}
    return {
        ARCHITECTURE: "audiocpp",
        "general.name": name,
        "audiocpp.tensor_name_format": "native",
        "audiocpp.source_format": "packed",
        "audiocpp.weight_type": weight_type,
        "audiocpp.model_spec.version": 1,
        "audiocpp.model_spec.family": "fish_drama3",
        "audiocpp.model_spec.json": json.dumps({"family": "fish_drama3", "tensors": spaces}),
    }


def bank_name(layer: int, matrix: str) -> str:
    """The stack of a matrix of all experts."""
    return f"{layer_prefix(layer)}.mlp.experts.{matrix}.weight"


def is_small(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor stays in F32."""
    return len(shape) < 2 or any(part in name for part in _SMALL)


def codec_parts(name: str) -> list[str]:
    """Names of equal parts of a codec's tensor: queries, keys and values stand apart."""
    if not name.endswith("attention.wqkv.weight"):
        return [name]
    base = name.removesuffix("wqkv.weight")
    return [f"{base}{part}_proj.weight" for part in "qkv"]
