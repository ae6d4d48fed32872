"""The inventory and the plan: at full size, nothing missing, nothing twice."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest
import torch

from rt_drama3.checkpoint import inventory, read_config, resolve
from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.inventory import HEAD
from rt_drama3.checkpoint.placement import Index, plan
from rt_drama3.checkpoint.tensors import scan
from rt_drama3.config import ModelConfig
from rt_drama3.model import SpeechModel


def test_full_size_inventory_is_the_official_one(full_config: dict[str, Any]) -> None:
    specs = inventory(parse_model_config(full_config))
    assert len(specs) == 62_245
    kinds = [spec.kind for spec in specs.values()]
    assert kinds.count("expert") == kinds.count("scale") == 30_720
    width = {"dense": 2, "expert": 1, "scale": 4}
    assert sum(math.prod(s.shape) * width[s.kind] for s in specs.values()) == 39_594_895_616


def test_spot_checks_of_the_official_shapes(full_config: dict[str, Any]) -> None:
    specs = inventory(parse_model_config(full_config))
    layer = "model.language_model.layers"
    for name, shape in {
        "model.language_model.embed_tokens.weight": (252288, 2048),
        f"{layer}.3.self_attn.q_proj.weight": (8192, 2048),
        f"{layer}.39.self_attn.k_norm.weight": (256,),
        f"{layer}.0.linear_attn.in_proj_qkv.weight": (8192, 2048),
        f"{layer}.38.linear_attn.conv1d.weight": (8192, 1, 4),
        f"{layer}.0.linear_attn.A_log": (32,),
        f"{layer}.17.mlp.experts.255.down_proj.weight": (2048, 512),
        f"{layer}.17.mlp.experts.255.down_proj.weight_scale_inv": (16, 4),
        f"{layer}.17.mlp.experts.0.up_proj.weight_scale_inv": (4, 16),
        "audio_decoder.codebook_embeddings.weight": (40960, 2048),
        "audio_decoder_mtp_shared.layers.3.semantic_embedding.weight": (4096, 2048),
        "audio_decoder_mtp.layers.8.codebook_embedding.weight": (4096, 2048),
        "audio_decoder_mtp.layers.8.transformer_layer.attention.wqkv.weight": (9216, 2048),
        "audio_decoder_mtp.heads.8.weight": (4096, 2048),
    }.items():
        assert specs[name].shape == shape, name
    assert f"{layer}.3.linear_attn.A_log" not in specs
    assert f"{layer}.0.self_attn.q_proj.weight" not in specs
    assert "audio_decoder_mtp.heads.9.weight" not in specs


def test_full_size_plan_fills_the_meta_model(full_config: dict[str, Any]) -> None:
    config = parse_model_config(full_config)
    model = SpeechModel(config, "meta", torch.bfloat16, fp8=True)
    assert model.backbone.layers[0].moe.gate_up.dtype == torch.float8_e4m3fn
    _check_coverage(config, SpeechModel(config, "meta"), trimmed=False)


@pytest.mark.parametrize("trimmed", [False, True])
def test_dequantised_plan_fills_the_model(full_config: dict[str, Any], trimmed: bool) -> None:
    full_config = {**full_config, "text_config": {**full_config["text_config"], "num_experts": 9}}
    config = parse_model_config(full_config)
    _check_coverage(config, SpeechModel(config, "meta"), trimmed=trimmed)


def test_nano_holds_exactly_its_inventory() -> None:
    nano = resolve("nano")
    specs, stored = inventory(read_config(nano)), scan(nano).entries
    assert len(specs) == 296
    assert {n: s.shape for n, s in specs.items()} == {n: e.shape for n, e in stored.items()}


def _check_coverage(config: ModelConfig, model: SpeechModel, *, trimmed: bool) -> None:
    """Every element of every parameter once; every official one once, but for lm_head's rows."""
    parameters = {name: tuple(p.shape) for name, p in model.named_parameters()}
    specs = inventory(config)
    filled: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    used: defaultdict[str, list[tuple[slice, slice]]] = defaultdict(list)
    for step in plan(config, trimmed_head=trimmed):
        filled[step.target].append(_interval(parameters[step.target], step.index))
        for source in step.sources:
            rows = source.rows or slice(0, specs[source.name].shape[0])
            shape = specs[source.name].shape
            columns = source.columns or slice(0, math.prod(shape[1:]))
            used[source.name].append((rows, columns))
    assert filled.keys() == parameters.keys()
    for name, intervals in filled.items():
        ends = [0, *(stop for _, stop in sorted(intervals))]
        starts = [*(start for start, _ in sorted(intervals)), math.prod(parameters[name])]
        assert starts == ends, name
    assert used.keys() == specs.keys()
    head = [slice(0, config.backbone.vocab_size)]
    if not trimmed:
        head = [
            slice(config.semantic_start, config.semantic_end + 1),
            slice(config.eos, config.eos + 1),
        ]
    assert [rows for rows, _ in used.pop(HEAD)] == head
    for name, parts in used.items():
        area = sum((r.stop - r.start) * (c.stop - c.start) for r, c in parts)
        corners = {(r.start, c.start) for r, c in parts}
        assert area == math.prod(specs[name].shape), name
        assert len(corners) == len(parts), name


def _interval(shape: tuple[int, ...], index: Index) -> tuple[int, int]:
    """First and last element + 1 of a region, counted through the flattened parameter."""
    start, size = 0, math.prod(shape)
    for length, part in zip(shape, index, strict=False):
        size //= length
        if isinstance(part, slice):
            assert part is index[-1], "only the last index may be a range"
            assert 0 <= part.start < part.stop <= length
            return start + part.start * size, start + part.stop * size
        start += part * size
    return start, start + size
