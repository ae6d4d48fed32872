"""What a checkpoint in another form holds, as official float32 tensors.

Written without a look at the loader: files are read by the libraries of their formats, codes are
unpacked bit by bit, names and changes are undone in plain loops.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor

from rt_drama3.config import ModelConfig
from tests.checkpoint.conftest import Tensors

Array = npt.NDArray[Any]
LAYERS = "model.language_model.layers"
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def rounded(form: str, directory: Path, official: Tensors, config: ModelConfig) -> Tensors:
    """The official tensors that a checkpoint in this form stands for."""
    out = {name: tensor.float() for name, tensor in official.items()}
    if form.startswith("mlx"):
        return out | mlx(load_file(directory / "model-00001.safetensors"), config, out)
    if form.startswith("gguf"):
        (path,) = directory.glob("*.gguf")
        return out | audio_cpp(path)
    if form == "llamacpp":
        return out | llama_cpp(directory, config, out)
    if form == "comfy":
        return out | comfy(load_file(directory / "drama3.safetensors"), config, out)
    stored = load_file(directory / "model.safetensors")
    if form.startswith("pruned"):
        return pruned(form, stored, config)
    decode = {"int4": gptq, "nvfp4": modelopt, "ct-nvfp4": ct_nvfp4, "ct-int4": ct_int4}[form]
    suffix = {"int4": "qweight", "nvfp4": "weight_scale_2"}.get(form, "weight_packed")
    for name in stored:
        base, _, last = name.rpartition(".")
        if last == suffix:
            out[f"{base}.weight"] = decode(stored, base)
    return out


def gptq(stored: Tensors, base: str) -> Tensor:
    words, scales = stored[f"{base}.qweight"], stored[f"{base}.scales"].float()
    inputs, outputs = 8 * words.shape[0], words.shape[1]
    out = torch.empty(outputs, inputs)
    for k in range(inputs):
        codes = words[k // 8] >> 4 * (k % 8) & 15
        out[:, k] = (codes - 8) * scales[k * scales.shape[0] // inputs]
    return out


def nibbles(codes: Tensor) -> Tensor:
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)


def e2m1(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    values = torch.tensor(E2M1)[nibbles(codes).long()]
    return values, scale.float().repeat_interleave(16, 1)


def modelopt(stored: Tensors, base: str) -> Tensor:
    values, scale = e2m1(stored[f"{base}.weight"], stored[f"{base}.weight_scale"])
    return values * scale * stored[f"{base}.weight_scale_2"]


def ct_nvfp4(stored: Tensors, base: str) -> Tensor:
    values, scale = e2m1(stored[f"{base}.weight_packed"], stored[f"{base}.weight_scale"])
    return values * scale / stored[f"{base}.weight_global_scale"]


def ct_int4(stored: Tensors, base: str) -> Tensor:
    words, scale = stored[f"{base}.weight_packed"], stored[f"{base}.weight_scale"].float()
    codes = torch.stack([words >> 4 * place & 15 for place in range(8)], -1).flatten(1)
    assert list(codes.shape) == stored[f"{base}.weight_shape"].tolist()
    return (codes - 8) * scale.repeat_interleave(codes.shape[1] // scale.shape[1], 1)


def affine(stored: Tensors, name: str) -> Tensor:
    base = name.removesuffix(".weight")
    words, scales = stored[name], stored[f"{base}.scales"].float()
    columns = 64 * scales.shape[-1]
    bits = np.unpackbits(words.numpy().view(np.uint8), axis=-1, bitorder="little")
    fields = bits.reshape(*words.shape[:-1], columns, -1).astype(np.int64)
    codes = torch.from_numpy(fields @ (1 << np.arange(fields.shape[-1]))).float()
    groups = codes.unflatten(-1, (-1, 64)) * scales[..., None]
    return (groups + stored[f"{base}.biases"].float()[..., None]).flatten(-2)


def mlx(stored: Tensors, config: ModelConfig, official: Tensors) -> Tensors:
    places = {
        "model.language_model.": "backbone.model.",
        "audio_decoder_mtp_shared.layers.": "tower.shared_layers.",
        "audio_decoder_mtp.layers.": "tower.residual_layers.",
        "audio_decoder_mtp.heads.": "tower.codebook_heads.",
        "audio_decoder.": "tower.",
    }

    def get(name: str) -> Tensor:
        quantised = f"{name.removesuffix('.weight')}.scales" in stored
        return affine(stored, name) if quantised else stored[name].double()

    out = {}
    for name, tensor in official.items():
        if name == "lm_head.weight":
            out[name] = whole_head(get("semantic_head.weight"), config, tensor)
            continue
        prefix = next(prefix for prefix in places if name.startswith(prefix))
        theirs = places[prefix] + name.removeprefix(prefix)
        if match := re.fullmatch(r"(.*)experts\.(\d+)(.*)", theirs):
            out[name] = get(f"{match[1]}switch_mlp{match[3]}")[int(match[2])]
            continue
        value = get(theirs)
        if tensor.ndim == 1 and "norm" in name and "linear_attn" not in name:
            value = value - 1
        out[name] = value.reshape(tensor.shape)
    return out


def whole_head(rows: Tensor, config: ModelConfig, like: Tensor) -> Tensor:
    """A head with the full vocabulary of one with the codes and eos."""
    out = torch.zeros_like(like)
    out[config.semantic_start : config.semantic_end + 1] = rows[:-1]
    out[config.eos] = rows[-1]
    return out


def read_gguf(path: Path) -> Tensors:
    """Every tensor by its logical name, read and dequantised by the gguf package."""
    import gguf

    reader = gguf.GGUFReader(path)
    names = reader.get_field("audiocpp.tensor_names")
    logical = names.contents() if names else [tensor.name for tensor in reader.tensors]
    out = {}
    for name, tensor in zip(logical, reader.tensors, strict=True):
        values: Array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(size) for size in reversed(tensor.shape)]
        out[name] = torch.from_numpy(np.array(values, dtype=np.float32)).reshape(shape)
    return out


def audio_cpp(path: Path) -> Tensors:
    out = {}
    for name, tensor in read_gguf(path).items():
        space, _, short = name.partition("/")
        if space != "model_weights":
            continue
        if match := re.fullmatch(r"(.*\.experts)\.(\w+_proj\.weight)", short):
            for expert, part in enumerate(tensor):
                out[f"{match[1]}.{expert}.{match[2]}"] = part
        elif short.endswith("conv1d.weight"):
            out[short] = tensor.reshape(-1, 1, tensor.shape[-1])
        else:
            out[short] = tensor
    return out


def llama_cpp(directory: Path, config: ModelConfig, official: Tensors) -> Tensors:
    import gguf

    back, tower = config.backbone, config.tower
    text = read_gguf(directory / "tiny.gguf")
    other = read_gguf(directory / "mmproj-tiny.gguf")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN35MOE, back.layers)
    groups, size = back.linear_key_heads, back.linear_value_dim
    per_group = back.linear_value_heads // groups

    def together(rows: Tensor, width: int) -> Tensor:
        """Value heads as they are stored -> those of one key head after the other."""
        heads = rows.split(width)
        order = [j * groups + g for g in range(groups) for j in range(per_group)]
        return torch.cat([heads[i] for i in order])

    out = {}
    for name, tensor in official.items():
        if name.startswith("audio_decoder"):
            continue
        theirs = name.replace("language_model.", "")
        expert = re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)\.weight", theirs)
        if expert:
            theirs = f"{expert[1]}.{expert[3]}.weight"
        # The map calls this one by the bias that it is used as.
        theirs = theirs.replace("linear_attn.dt_bias", "linear_attn.dt_proj.bias")
        found = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        value = text[found]
        part = name.partition("linear_attn.")[2].removesuffix(".weight")
        keys = 2 * groups * back.linear_key_dim
        if expert:
            value = value[int(expert[2])]
        elif name.endswith("norm.weight") and not part:
            value = value.double() - 1
        elif part in ("in_proj_qkv", "conv1d"):
            value = torch.cat((value[:keys], together(value[keys:], size)))
        elif part == "in_proj_z":
            value = together(value, size)
        elif part in ("in_proj_a", "in_proj_b", "dt_bias"):
            value = together(value, 1)
        elif part == "A_log":
            value = (-together(value, 1)).double().log()
        elif part == "out_proj":
            value = together(value.T, size).T
        out[name] = value.reshape(tensor.shape)
    spelled = {"attn_norm": "attention_norm", "attn_out": "attention.wo", "ffn_norm": "ffn_norm"}
    spelled |= {"attn_q_norm": "attention.q_norm", "attn_k_norm": "attention.k_norm"}
    spelled |= {f"ffn_{a}": f"feed_forward.{b}" for a, b in (("gate", "w1"), ("up", "w3"))}
    spelled |= {"ffn_down": "feed_forward.w2"}
    spelled = {a: f"transformer_layer.{b}" for a, b in spelled.items()}
    spelled |= {name: name for name in ("enorm", "hnorm", "eh_proj")}
    spelled |= {"output_norm": "final_layernorm"}
    for layer in range(tower.layers):
        shared = layer < tower.shared_layers
        number = layer if shared else layer - tower.shared_layers
        prefix = f"audio_decoder_mtp{'_shared' if shared else ''}.layers.{number}"
        ours = f"a.gen.code.blk.{layer}"
        for a, b in spelled.items():
            value = other[f"{ours}.{a}.weight"]
            out[f"{prefix}.{b}.weight"] = value.double() - 1 if value.ndim == 1 else value
        table = "semantic" if shared else "codebook"
        out[f"{prefix}.{table}_embedding.weight"] = other[f"{ours}.embd.weight"]
        parts = [other[f"{ours}.attn_{x}.weight"] for x in ("q", "gate", "k", "v")]
        out[f"{prefix}.transformer_layer.attention.wqkv.weight"] = torch.cat(parts)
    out["audio_decoder.codebook_embeddings.weight"] = other["a.gen.code.embd.weight"].flatten(0, 1)
    for codebook, head in enumerate(other["a.gen.code.head.weight"]):
        out[f"audio_decoder_mtp.heads.{codebook}.weight"] = head
    return out


def comfy(stored: Tensors, config: ModelConfig, official: Tensors) -> Tensors:
    out = {
        "lm_head.weight": whole_head(
            stored["lm_head.weight"].float(), config, official["lm_head.weight"]
        )
    }
    for layer in range(config.backbone.layers):
        experts = f"{LAYERS}.{layer}.mlp.experts"
        for matrix in ("gate_up_proj", "down_proj"):
            codes, scales = stored[f"{experts}.{matrix}"], stored[f"{experts}.{matrix}_scale_inv"]
            wide = scales.repeat_interleave(128, 1).repeat_interleave(128, 2)
            for expert, values in enumerate(codes.float() * wide):
                if matrix == "down_proj":
                    out[f"{experts}.{expert}.down_proj.weight"] = values
                    continue
                for part, half in zip(("gate", "up"), values.chunk(2), strict=True):
                    out[f"{experts}.{expert}.{part}_proj.weight"] = half
    return out


def pruned(form: str, stored: Tensors, config: ModelConfig) -> Tensors:
    """Experts that are left under new numbers, and their rows of the router."""
    out = {}
    for name, tensor in stored.items():
        match = re.fullmatch(rf"{LAYERS}\.(\d+)\.mlp\.(gate\.weight|experts\.(\d+)\.(.*))", name)
        if match is None or form == "pruned-uniform":
            out[name] = tensor
            continue
        ids = ([0, 2, 3], [1, 3])[int(match[1])]
        if match[3] is None:
            out[name] = tensor[ids]
        else:
            number = int(match[3]) if form == "pruned-renumbered" else ids.index(int(match[3]))
            out[f"{LAYERS}.{match[1]}.mlp.experts.{number}.{match[4]}"] = tensor
    return out
