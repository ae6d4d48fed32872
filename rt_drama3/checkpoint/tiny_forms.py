"""Tiny checkpoints in the forms that others publish, to test loaders with.

Each is made of a tiny official one, and is what the program would write whose form it is, as far as
that is known (docs/model.md, 12). Where it is not, it is what the loader assumes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.files import CONFIG, INDEX, SINGLE, read_json
from rt_drama3.checkpoint.formats import FORMATS
from rt_drama3.checkpoint.formats.fp8 import quantize_fp8
from rt_drama3.checkpoint.formats.int4 import quantize_gptq, quantize_packed
from rt_drama3.checkpoint.formats.nvfp4 import FACTOR_RANGE, quantize_nvfp4
from rt_drama3.checkpoint.inventory import layer_prefix
from rt_drama3.checkpoint.tiny_gguf import write_audio_cpp, write_llama_cpp
from rt_drama3.checkpoint.tiny_mlx import write_mlx
from rt_drama3.config import ModelConfig
from rt_drama3.errors import ConfigError

Tensors = dict[str, Tensor]
KEPT_EXPERTS = ([0, 2, 3], [1, 3])  # of four, by layer
PRUNED = ("pruned-masked", "pruned-listed", "pruned-renumbered", "pruned-uniform")
MLX = tuple(f"mlx{bits}" for bits in (3, 4, 5, 6, 8))
GGUF = tuple(f"gguf-{name}" for name in FORMATS)
FORMS = (
    "official",
    "int4",
    "nvfp4",
    "ct-nvfp4",
    "ct-int4",
    *MLX,
    *GGUF,
    "llamacpp",
    "comfy",
    *PRUNED,
)
# Rows of 256 weights, which ggml's larger blocks need; and layers of both kinds.
SETTINGS: dict[str, Any] = {
    "text_config.hidden_size": 256,
    "text_config.num_hidden_layers": 2,
    "text_config.layer_types": ["linear_attention", "full_attention"],
    "text_config.num_experts": 4,
    "text_config.moe_intermediate_size": 256,
}
_GROUP = 128
_EXPERT = re.compile(r"(.*\.mlp\.experts\.\d+)\.(gate|up|down)_proj\.weight")
_DENSE = re.compile(
    r".*\.(?:self_attn\.[qkvo]_proj|linear_attn\.(?:in_proj_qkv|in_proj_z|out_proj))\.weight"
)
_TARGETS = [f"self_attn.{part}_proj" for part in "qkvo"]
_TARGETS += [f"linear_attn.{part}" for part in ("in_proj_qkv", "in_proj_z", "out_proj")]


def check_form(form: str) -> None:
    """Refuses what is not a form.

    Raises:
        ConfigError: naming those that are.
    """
    if form not in FORMS:
        raise ConfigError(f"form {form!r} does not exist; use one of {', '.join(FORMS)}.")


def form_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a checkpoint in another form than the official one, and what a caller sets."""
    base = dict(SETTINGS)
    if "text_config.num_hidden_layers" in settings:
        del base["text_config.layer_types"]
    return {**base, **settings}


def rewrite(directory: Path, form: str) -> None:
    """Turns an official checkpoint in one file into another form."""
    if form == "official":
        return
    tensors = load_file(directory / SINGLE)
    values = read_json(directory / CONFIG)
    assert isinstance(values, dict)
    config = parse_model_config(values)
    (directory / SINGLE).unlink()
    if form in PRUNED:
        _write_pruned(directory, tensors, values, form)
    elif form in MLX:
        write_mlx(directory, tensors, values, config, int(form.removeprefix("mlx")))
    elif form in GGUF:
        write_audio_cpp(directory, tensors, config, form.removeprefix("gguf-").upper())
    elif form == "llamacpp":
        write_llama_cpp(directory, tensors, config)
    elif form == "comfy":
        _write_comfy(directory, tensors, config)
    else:
        _write_packed(directory, tensors, values, form)


def _write_packed(directory: Path, tensors: Tensors, values: dict[str, Any], form: str) -> None:
    """GPTQ, NVFP4 and compressed-tensors: other tensors in the official layout."""
    packs: dict[str, Callable[[str, Tensor, Tensors], Tensors]]
    packs = {"int4": _gptq, "nvfp4": _modelopt, "ct-nvfp4": _ct_nvfp4, "ct-int4": _ct_int4}
    written: Tensors = {}
    for name, tensor in tensors.items():
        if _EXPERT.fullmatch(name) or (form == "int4" and _DENSE.fullmatch(name)):
            written |= packs[form](name.removesuffix(".weight"), tensor.float(), tensors)
        else:
            written[name] = tensor
    common = {"bits": 4, "group_size": _GROUP, "sym": True}
    dense = {"quant_method": "gptq_marlin", **common, "desc_act": False, "targets": _TARGETS}
    packed = {"num_bits": 4, "group_size": _GROUP, "symmetric": True, "type": "int"}
    values["quantization_config"] = {
        "int4": {
            "quant_method": "drama3-int4",
            "experts": {"quant_method": "gptq", **common},
            "dense": dense,
        },
        "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
        "ct-nvfp4": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
        "ct-int4": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": packed}},
        },
    }[form]
    _write_json(directory / CONFIG, values)
    save_file(_contiguous(written), directory / SINGLE, metadata={"format": "pt"})


def _gptq(base: str, weight: Tensor, _: Tensors) -> Tensors:
    group = min(_GROUP, weight.shape[1])
    qweight, scales = quantize_gptq(weight, group)
    packed = {f"{base}.qweight": qweight, f"{base}.scales": scales}
    if ".experts." not in base:
        # Some writers add what a symmetric file does not need.
        zeros = torch.full((scales.shape[0], weight.shape[0] // 8), 0x77777777, dtype=torch.int32)
        index = torch.arange(weight.shape[1], dtype=torch.int32) // group
        packed |= {f"{base}.qzeros": zeros, f"{base}.g_idx": index}
    return packed


def _factor(base: str, tensors: Tensors) -> Tensor | None:
    """One factor for gate and up of an expert."""
    if base.endswith("down_proj"):
        return None
    pair = [tensors[f"{base.rpartition('.')[0]}.{part}_proj.weight"] for part in ("gate", "up")]
    return torch.cat(pair).float().abs().amax() / FACTOR_RANGE


def _modelopt(base: str, weight: Tensor, tensors: Tensors) -> Tensors:
    codes, scale, factor = quantize_nvfp4(weight, factor=_factor(base, tensors))
    return {
        f"{base}.weight": codes,
        f"{base}.weight_scale": scale,
        f"{base}.weight_scale_2": factor.reshape(()),
        f"{base}.input_scale": torch.ones(()),
    }


def _ct_nvfp4(base: str, weight: Tensor, tensors: Tensors) -> Tensors:
    codes, scale, factor = quantize_nvfp4(weight, factor=_factor(base, tensors))
    return {
        f"{base}.weight_packed": codes,
        f"{base}.weight_scale": scale,
        f"{base}.weight_global_scale": 1 / factor.reshape(1),
    }


def _ct_int4(base: str, weight: Tensor, _: Tensors) -> Tensors:
    codes, scale = quantize_packed(weight, min(_GROUP, weight.shape[1]))
    shape = torch.tensor(weight.shape)
    return {
        f"{base}.weight_packed": codes,
        f"{base}.weight_scale": scale.bfloat16(),
        f"{base}.weight_shape": shape,
    }


def _write_comfy(directory: Path, tensors: Tensors, config: ModelConfig) -> None:
    """One file: banks of FP8 experts, gate and up joined, a head without the text's tokens."""
    written = {name: t for name, t in tensors.items() if not _EXPERT.fullmatch(name)}
    for layer, count in enumerate(config.backbone.experts):
        mlp = f"{layer_prefix(layer)}.mlp"
        gate, up, down = (
            [tensors[f"{mlp}.experts.{e}.{part}_proj.weight"].float() for e in range(count)]
            for part in ("gate", "up", "down")
        )
        joined = [torch.cat(pair) for pair in zip(gate, up, strict=True)]
        for name, parts in (
            (f"{mlp}.experts.gate_up_proj", joined),
            (f"{mlp}.experts.down_proj", down),
        ):
            pairs = [quantize_fp8(part) for part in parts]
            written[name] = torch.stack([codes for codes, _ in pairs])
            written[f"{name}_scale_inv"] = torch.stack([scales for _, scales in pairs])
    for name in list(written):
        for first, second, both in (
            (
                ".shared_expert.gate_proj.",
                ".shared_expert.up_proj.",
                ".shared_expert.gate_up_proj.",
            ),
            (".feed_forward.w1.", ".feed_forward.w3.", ".feed_forward.w13."),
        ):
            if first in name:
                pair = written.pop(name), written.pop(name.replace(first, second))
                written[name.replace(first, both)] = torch.cat(pair)
    written["lm_head.weight"] = trimmed_head(tensors["lm_head.weight"], config)
    save_file(_contiguous(written), directory / "drama3.safetensors")
    state = torch.load(directory / "codec.pth", weights_only=True)
    (directory / "codec.pth").unlink()
    floats = {name: t for name, t in state.items() if t.is_floating_point()}
    save_file(_contiguous(floats), directory / "drama3_codec.safetensors")


def trimmed_head(head: Tensor, config: ModelConfig) -> Tensor:
    """The rows of a head that can be sampled: the codes, then eos."""
    band = head[config.semantic_start : config.semantic_end + 1]
    return torch.cat((band, head[config.eos, None]))


def _write_pruned(directory: Path, tensors: Tensors, values: dict[str, Any], form: str) -> None:
    """The ways in which pruned checkpoints say which experts they keep."""
    text = values["text_config"]
    kept = [KEPT_EXPERTS[layer % 2] for layer in range(text["num_hidden_layers"])]
    if form == "pruned-uniform":
        kept = [[0, 2, 3]] * len(kept)
        text["num_experts"] = 3
        _write_json(directory / CONFIG, values)
    for layer, ids in enumerate(kept):
        prefix = f"{layer_prefix(layer)}.mlp.experts."
        experts = {name: tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
        for name, tensor in experts.items():
            number, part = name.removeprefix(prefix).split(".", 1)
            if int(number) not in ids:
                continue
            renumbered = form in ("pruned-renumbered", "pruned-uniform")
            new = ids.index(int(number)) if renumbered else int(number)
            tensors[f"{prefix}{new}.{part}"] = tensor
        if form == "pruned-uniform":
            router = f"{layer_prefix(layer)}.mlp.gate.weight"
            tensors[router] = tensors[router][ids]
    save_file(_contiguous(tensors), directory / SINGLE)
    if form in ("pruned-listed", "pruned-renumbered"):
        metadata = {"drama_experts": {str(layer): ids for layer, ids in enumerate(kept)}}
        weight_map = dict.fromkeys(tensors, SINGLE)
        _write_json(directory / INDEX, {"metadata": metadata, "weight_map": weight_map})


def _contiguous(tensors: Mapping[str, Tensor]) -> Tensors:
    """Copies, since a view of another tensor cannot be saved."""
    return {
        name: tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
