"""A tiny checkpoint as mlx-audio's converter writes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rt_drama3.checkpoint.files import CODEC, CODEC_SAFETENSORS, CONFIG
from rt_drama3.checkpoint.inventory import BACKBONE, HEAD, layer_prefix
from rt_drama3.checkpoint.opened import MLX_TYPE
from rt_drama3.config import ModelConfig

_GROUP = 64
_PREFIXES = {
    f"{BACKBONE}.": "backbone.model.",
    "audio_decoder.codebook_embeddings.": "tower.codebook_embeddings.",
    "audio_decoder_mtp_shared.layers.": "tower.shared_layers.",
    "audio_decoder_mtp.layers.": "tower.residual_layers.",
    "audio_decoder_mtp.heads.": "tower.codebook_heads.",
    "lm_head.": "semantic_head.",
}
_SHIFTED = re.compile(r".*(?:norm|_norm|layernorm)\.weight")
_DENSE = re.compile(
    r".*(?:self_attn\.[qkvo]_proj|in_proj_qkv|in_proj_z|out_proj|shared_expert\.\w+_proj"
    r"|switch_mlp\.\w+_proj|semantic_head)\.weight"
)
_TOWER = re.compile(r"tower\..*(?:wqkv|wo|w1|w2|w3|eh_proj|codebook_heads\.\d+)\.weight")


def write_mlx(
    directory: Path,
    tensors: dict[str, Tensor],
    values: dict[str, Any],
    config: ModelConfig,
    bits: int,
) -> None:
    """Writes experts and dense matrices with ``bits`` bits, and the tower with 8."""
    written: dict[str, Tensor] = {}
    quantised: dict[str, Any] = {"group_size": _GROUP, "bits": bits}
    for name, tensor in _renamed(tensors, config).items():
        width = 8 if _TOWER.fullmatch(name) else bits if _DENSE.fullmatch(name) else None
        if width is None:
            written[name] = tensor.contiguous()
            continue
        module = name.removesuffix(".weight")
        codes, scales, biases = quantize_affine(tensor.float(), width)
        written |= {name: codes, f"{module}.scales": scales, f"{module}.biases": biases}
        quantised[module] = {"group_size": _GROUP, "bits": width}
    save_file(written, directory / "model-00001.safetensors", metadata={"format": "mlx"})
    values.pop("quantization_config", None)
    values |= {"model_type": MLX_TYPE, "quantization": quantised}
    (directory / CONFIG).write_text(json.dumps(values, indent=2), encoding="utf-8")
    state = torch.load(directory / CODEC, weights_only=True)
    (directory / CODEC).unlink()
    floats = {n: t.float().contiguous() for n, t in state.items() if not n.endswith("causal_mask")}
    save_file(floats, directory / CODEC_SAFETENSORS)


def _renamed(tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Names, stacks and changes of the converter, before anything is quantised."""
    found = {}
    for name, tensor in tensors.items():
        if ".mlp.experts." in name:
            continue
        if name == HEAD:
            band = tensor[config.semantic_start : config.semantic_end + 1]
            tensor = torch.cat((band, tensor[config.eos, None]))
        elif _SHIFTED.fullmatch(name) and "linear_attn" not in name:
            tensor = tensor.float() + 1
        elif name.endswith("conv1d.weight"):
            tensor = tensor.transpose(1, 2)
        prefix = next(prefix for prefix in _PREFIXES if name.startswith(prefix))
        found[_PREFIXES[prefix] + name.removeprefix(prefix)] = tensor
    for layer, count in enumerate(config.backbone.experts):
        for part in ("gate", "up", "down"):
            names = [
                f"{layer_prefix(layer)}.mlp.experts.{e}.{part}_proj.weight" for e in range(count)
            ]
            bank = f"backbone.model.layers.{layer}.mlp.switch_mlp.{part}_proj.weight"
            found[bank] = torch.stack([tensors[name] for name in names])
    return found


def quantize_affine(weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rounds each group between its smallest and largest weight.

    Args:
        weight: float32 ``[..., columns]``.
        bits: of a code.

    Returns:
        uint32 ``[..., columns * bits / 32]``, and bfloat16 scales and biases ``[..., groups]``.
    """
    groups = weight.unflatten(-1, (-1, _GROUP))
    biases = groups.amin(-1).bfloat16()
    scales = ((groups.amax(-1) - biases.float()) / ((1 << bits) - 1)).bfloat16()
    steps = (groups - biases.float()[..., None]) / scales.float()[..., None]
    codes = steps.round().clamp(0, (1 << bits) - 1).flatten(-2).long()
    places = torch.arange(bits)
    stream = (codes[..., None] >> places & 1).flatten(-2).unflatten(-1, (-1, 32))
    words = (stream << torch.arange(32)).sum(-1)
    return words.to(torch.uint32), scales, biases
