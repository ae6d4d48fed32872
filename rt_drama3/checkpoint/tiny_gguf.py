"""Tiny checkpoints as GGUF files: audio.cpp's single one, and llama.cpp's pair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rt_drama3.checkpoint import audio_cpp, llama_cpp
from rt_drama3.checkpoint.files import CODEC, CODEC_CONFIG, CONFIG, TOKENIZER, read_codec_config
from rt_drama3.checkpoint.formats import FORMATS, quantize
from rt_drama3.checkpoint.gguf import Planned, Writer, embedded_files, logical_names
from rt_drama3.checkpoint.gguf.contents import ARCHITECTURE
from rt_drama3.checkpoint.inventory import (
    BACKBONE,
    CODEBOOK_EMBED,
    EMBED,
    EXPERT_MATRICES,
    HEAD,
    expert_name,
    layer_prefix,
    tower_embedding,
    tower_head,
    tower_prefix,
)
from rt_drama3.codec.official import folded_codec_state
from rt_drama3.config import ModelConfig

Tensors = Mapping[str, Tensor]
_EMBEDDED = (CONFIG, TOKENIZER, CODEC_CONFIG, "LICENSE")


def write_audio_cpp(
    directory: Path, tensors: Tensors, config: ModelConfig, bank: str, head: Tensor | None = None
) -> None:
    """Writes one file with everything in it; the small files next to it go.

    Args:
        directory: the official checkpoint, without its weights.
        tensors: official ones.
        config: sizes.
        bank: type of the experts.
        head: another ``lm_head``, for one without the text's tokens.
    """
    stored: dict[str, tuple[Tensor, str]] = {}
    for name, tensor in (tensors if head is None else {**tensors, HEAD: head}).items():
        if ".mlp.experts." not in name:
            stored[f"{audio_cpp.MODEL}/{name}"] = (tensor, _dense_type(name, tensor))
    for layer, count in enumerate(config.backbone.experts):
        for matrix in EXPERT_MATRICES:
            parts = [tensors[expert_name(layer, expert, matrix)] for expert in range(count)]
            name = f"{audio_cpp.MODEL}/{audio_cpp.bank_name(layer, matrix)}"
            stored[name] = (torch.stack(parts), bank)
    state = torch.load(directory / CODEC, weights_only=True)
    for name, tensor in folded_codec_state(read_codec_config(directory), state).items():
        names = audio_cpp.codec_parts(name)
        for part, rows in zip(names, tensor.chunk(len(names)), strict=True):
            stored[f"{audio_cpp.CODEC}/{part}"] = (rows, audio_cpp.CODEC_TYPE)
    values = audio_cpp.file_values("tiny", bank.lower())
    files = {n: directory / n for n in _EMBEDDED if (directory / n).is_file()}
    values |= embedded_files({name: path.read_bytes() for name, path in files.items()})
    for path in (*files.values(), directory / CODEC):
        path.unlink()
    _write(directory / f"tiny-{bank}.gguf", values, stored)


def _dense_type(name: str, tensor: Tensor) -> str:
    """What audio.cpp stores a tensor as: backbone Q8_0, tower F16, small ones F32."""
    if audio_cpp.is_small(name, tensor.shape):
        return "F32"
    if name.startswith("audio_decoder"):
        return "F32" if "embedding" in name or ".heads." in name else "F16"
    return "Q8_0"


def write_llama_cpp(directory: Path, tensors: Tensors, config: ModelConfig) -> None:
    """Writes the text model and its mmproj, with what the converter does to the tensors."""
    text: dict[str, tuple[Tensor, str]] = {}
    for ours, official in _llama_names(config).items():
        tensor = _changed(official, tensors, config)
        type_name = "Q8_0" if tensor.ndim > 1 and tensor.shape[-1] % 32 == 0 else "F32"
        text[ours] = (tensor, type_name)
    tower: dict[str, tuple[Tensor, str]] = {}
    for name, tensor in _tower(tensors, config).items():
        tower[llama_cpp.TOWER + name] = (tensor, "F32" if tensor.ndim == 1 else "F16")
    _write(directory / "tiny.gguf", {ARCHITECTURE: llama_cpp.ARCHITECTURE}, text, aliases=False)
    values = {ARCHITECTURE: "clip", "general.type": "mmproj"}
    _write(directory / "mmproj-tiny.gguf", values, tower, aliases=False)


def _llama_names(config: ModelConfig) -> dict[str, str]:
    found = {"token_embd.weight": EMBED, "output.weight": HEAD}
    found["output_norm.weight"] = f"{BACKBONE}.norm.weight"
    for layer, kind in enumerate(config.backbone.layer_types):
        other = "self_attn." if kind == "linear_attention" else "linear_attn."
        for ours, tail in llama_cpp.LAYER.items():
            if not tail.startswith(other) and "gate_up" not in tail:
                found[f"blk.{layer}.{ours}"] = f"{layer_prefix(layer)}.{tail}"
    return found


def _changed(name: str, tensors: Tensors, config: ModelConfig) -> Tensor:
    """An official tensor as the converter stores it."""
    back = config.backbone
    if ".mlp.experts." in name:
        layer, matrix = int(name.split(".")[3]), name.rpartition(".")[2]
        count = back.experts[layer]
        return torch.stack([tensors[expert_name(layer, e, matrix)] for e in range(count)])
    tensor = tensors[name].float()
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return tensor + 1
    part = name.partition("linear_attn.")[2].removesuffix(".weight")
    if part == "A_log":
        tensor = -tensor.exp()
    if part == "conv1d":
        tensor = tensor.squeeze(1)
    keys, size = 2 * back.linear_key_heads * back.linear_key_dim, back.linear_value_dim
    if part in ("in_proj_qkv", "conv1d"):
        return torch.cat((tensor[:keys], _spread(tensor[keys:], size, config)))
    if part == "out_proj":
        return _spread(tensor.t(), size, config).t()
    if part in ("in_proj_z", "in_proj_a", "in_proj_b", "A_log", "dt_bias"):
        return _spread(tensor, size if part == "in_proj_z" else 1, config)
    return tensor


def _spread(rows: Tensor, size: int, config: ModelConfig) -> Tensor:
    """Value heads by key head -> the first of every key head, then the second of each."""
    groups = config.backbone.linear_key_heads
    heads: Tensor = rows.unflatten(0, (groups, -1, size))
    return heads.transpose(0, 1).flatten(0, 2)


def _tower(tensors: Tensors, config: ModelConfig) -> dict[str, Tensor]:
    tower = config.tower
    found = {"embd.weight": tensors[CODEBOOK_EMBED].unflatten(0, (tower.num_codebooks, -1))}
    heads = [tensors[tower_head(codebook)] for codebook in range(1, tower.num_codebooks)]
    found["head.weight"] = torch.stack(heads)
    query, key = tower.heads * tower.head_dim, tower.kv_heads * tower.head_dim
    for layer in range(tower.layers):
        prefix = tower_prefix(tower, layer)
        found[f"blk.{layer}.embd.weight"] = tensors[tower_embedding(tower, layer)]
        for ours, tail in llama_cpp.TOWER_LAYER.items():
            tensor = tensors.get(f"{prefix}.{tail}.weight")
            if tensor is not None and ours not in ("attn_qkv", "attn_output"):
                found[f"blk.{layer}.{ours}.weight"] = (
                    tensor if tensor.ndim > 1 else tensor.float() + 1
                )
        whole = tensors[f"{prefix}.transformer_layer.attention.wqkv.weight"]
        parts = whole.split((query, query, key, key))
        for ours, tensor in zip(("q", "gate", "k", "v"), parts, strict=True):
            found[f"blk.{layer}.attn_{ours}.weight"] = tensor
    return found


def _write(
    path: Path,
    values: dict[str, Any],
    stored: Mapping[str, tuple[Tensor, str]],
    *,
    aliases: bool = True,
) -> None:
    """Writes tensors of any shape; each is quantised when its turn comes."""
    shapes = [tuple(tensor.shape) for tensor, _ in stored.values()]
    names, extra = logical_names(list(stored), shapes)
    planned = [
        Planned(name, shape, kind)
        for name, shape, (_, kind) in zip(names, shapes, stored.values(), strict=True)
    ]
    with Writer(path, values | (extra if aliases else {}), planned) as writer:
        for tensor, kind in stored.values():
            columns = tensor.shape[-1] if tensor.ndim else 1
            writer.write(quantize(tensor.float().reshape(-1, columns), FORMATS[kind.lower()]))
