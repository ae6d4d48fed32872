"""A random checkpoint in the exact official layout, to test loaders with.

Nothing is trained, but the numbers are of a healthy size from end to end: norms near one, branches
that neither vanish nor take over, logits that depend on what was read. The same seed gives the same
files; a tensor depends on the seed and its own name alone, so that two checkpoints that differ in
one setting share every tensor of the same shape.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from rt_drama3.checkpoint.config_files import parse_codec_config, parse_model_config
from rt_drama3.checkpoint.files import CODEC, CODEC_CONFIG, CONFIG, INDEX, SINGLE, check_codec_fits
from rt_drama3.checkpoint.formats.fp8 import quantize_fp8
from rt_drama3.checkpoint.inventory import (
    DENSE,
    EXPERT,
    HEAD,
    SCALE,
    TensorSpec,
    inventory,
)
from rt_drama3.checkpoint.tiny_config import Settings, tiny_config
from rt_drama3.checkpoint.tiny_forms import PRUNED, check_form, form_settings, rewrite
from rt_drama3.checkpoint.tiny_tokenizer import base_tokens, write_tokenizer
from rt_drama3.codec import Codec, random_codec_state
from rt_drama3.config import CodecConfig, ModelConfig
from rt_drama3.errors import CheckpointError, ConfigError

_LICENSE = """CC0-1.0

These weights are random numbers made by 'rt-drama3 model make-tiny' to test software with. They
carry no rights and no speech.
"""
_README = """---
license: cc0-1.0
---

Random numbers in the layout of Drama 3, made by 'rt-drama3 model make-tiny' to test software with.
"""

CodecKind = Literal["tiny", "decode", "official", "none"]


def make_tiny(
    directory: Path | str,
    *,
    seed: int = 0,
    settings: Settings = (),
    codec: CodecKind = "tiny",
    experts: Literal["fp8", "bf16"] = "fp8",
    shards: int | None = 2,
    exact_scales: bool = False,
    form: str = "official",
) -> None:
    """Writes a random checkpoint.

    Args:
        directory: new or empty.
        seed: of the random numbers.
        settings: dotted keys of ``config.json`` and their values, as pairs such as
            ``("text_config.num_hidden_layers", 8)`` or as a mapping; keys of ``codec_config.json``
            start with ``codec.``. Keys that must agree with them follow.
        codec: "tiny" sizes with both halves, "decode" without the encode half, "official" sizes
            (1.9 GB), or "none".
        experts: "fp8" with 128x128 scales, or "bf16" as in a checkpoint that was dequantised.
        shards: number of safetensors files behind an index; None writes one file without an index.
        exact_scales: scales are powers of two, so that dequantised experts are exact in bfloat16.
        form: one of ``tiny_forms.FORMS``: the official layout, or one that others publish. Those
            are made of plain experts, in one file, and are somewhat larger.

    Raises:
        ConfigError: the form or a setting does not exist or cannot work, or the directory is not
            empty.
    """
    directory = Path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} exists and is not an empty folder; give another one.")
    if shards is not None and shards < 1:
        raise ConfigError(f"shards is {shards}; at least 1 is needed.")
    check_form(form)
    if form != "official":
        settings, shards = form_settings(dict(settings)), None
        experts = experts if form in PRUNED else "bf16"
    if experts == "bf16":
        settings = {**dict(settings), "quantization_config": None}
    values, codec_values = tiny_config(settings, base_tokens())
    config, codec_config = parse_model_config(values), parse_codec_config(codec_values)
    if codec == "official":
        codec_config = CodecConfig()
    try:
        Codec(codec_config, encoder=codec != "decode", device="meta")
        if codec != "none":
            check_codec_fits(config, codec_config)
    except CheckpointError as error:
        raise ConfigError(f"These settings give no valid codec: {error}") from error
    directory.mkdir(parents=True, exist_ok=True)
    values["audio_pad_token_id"] = write_tokenizer(
        directory,
        start=config.semantic_start,
        codes=config.tower.codebook_size,
        eos=config.eos,
    )
    _write_json(directory / CONFIG, values)
    (directory / "LICENSE").write_text(_LICENSE, encoding="utf-8")
    (directory / "README.md").write_text(_README, encoding="utf-8")
    _write_model(directory, config, seed, shards, exact_scales)
    if codec != "none":
        _write_codec(directory, codec_config, seed, encoder=codec != "decode")
        if codec_config != CodecConfig():
            _write_json(directory / CODEC_CONFIG, codec_values)
    rewrite(directory, form)


def _write_model(
    directory: Path, config: ModelConfig, seed: int, shards: int | None, exact: bool
) -> None:
    """Writes the tensors shard by shard, so that only one shard is in memory."""
    specs = inventory(config)
    total = sum(_nbytes(spec) for spec in specs.values())
    weight_map: dict[str, str] = {}
    for number, names in enumerate(_split(specs, shards or 1, total), 1):
        shard = SINGLE if shards is None else f"model-{number:05}-of-{shards:05}.safetensors"
        tensors: dict[str, Tensor] = {}
        for name in names:
            if specs[name].kind != SCALE:
                tensors.update(_tensors(name, specs[name], config, seed, exact))
        save_file(tensors, directory / shard, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, shard))
    if shards is not None:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(directory / INDEX, index)


def _nbytes(spec: TensorSpec) -> int:
    return torch.Size(spec.shape).numel() * {DENSE: 2, EXPERT: 1, SCALE: 4}[spec.kind]


def _split(specs: dict[str, TensorSpec], shards: int, total: int) -> Iterator[list[str]]:
    """Names in ``shards`` lists of about the same size; scales stay with their matrix."""
    names: list[str] = []
    done = number = 0
    for name, spec in specs.items():
        if spec.kind != SCALE and number < shards - 1 and done >= total * (number + 1) / shards:
            yield names
            names, number = [], number + 1
        names.append(name)
        done += _nbytes(spec)
    yield names
    for _ in range(number + 1, shards):  # more shards than tensors of that size
        yield []


def _tensors(
    name: str, spec: TensorSpec, config: ModelConfig, seed: int, exact: bool
) -> dict[str, Tensor]:
    """The tensor of a name, and of an FP8 expert its scales."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    values = _random(name, spec.shape, generator)
    if name == HEAD:
        values[config.eos] *= 0.25  # speech lasts a few seconds before eos is drawn
    if spec.kind != EXPERT:
        return {name: values.to(torch.bfloat16)}
    matrix, scales = quantize_fp8(values, exact=exact)
    return {name: matrix, f"{name}_scale_inv": scales}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Float32 values that suit the role of the tensor, taken from its name."""
    part = name.removesuffix(".weight").rpartition(".")[2]
    if part == "A_log":
        return torch.empty(shape).uniform_(1, 16, generator=generator).log()
    normal = torch.randn(shape, generator=generator)
    if part == "dt_bias":
        return normal - 4
    if len(shape) == 1:  # zero-centred gammas, but for the plain one of the delta net
        return 0.1 * normal + (1 if name.endswith("linear_attn.norm.weight") else 0)
    if "embed" in part:
        return normal
    # Outputs sum over columns; heads are larger, so that draws are neither flat nor certain.
    loud = 3.0 if name == HEAD or ".heads." in name else 1.0
    return normal.mul_(loud * torch.Size(shape[1:]).numel() ** -0.5)


def _write_codec(directory: Path, config: CodecConfig, seed: int, *, encoder: bool) -> None:
    state = random_codec_state(config, encoder, seed)
    # The official file also carries buffers that readers have to ignore.
    window = config.post.window
    state["quantizer.post_module.causal_mask"] = torch.ones(window, window).tril().bool()
    angles = torch.zeros(window, config.post.head_dim // 2, 2, dtype=torch.bfloat16)
    state["quantizer.post_module.freqs_cis"] = angles
    torch.save(state, directory / CODEC)


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
