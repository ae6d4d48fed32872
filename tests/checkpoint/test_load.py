"""Loaded parameters against ``expected.py``, for every kind of checkpoint that is accepted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rt_drama3.checkpoint import filling, load_model, make_tiny, read_config, resolve
from rt_drama3.checkpoint.formats.fp8 import quantize_fp8
from rt_drama3.config import ModelConfig
from rt_drama3.model import SpeechModel
from rt_drama3.model.weights import dequantize
from tests.checkpoint.conftest import INDEX, Tensors, edit_json, read_tensors, rewrite
from tests.checkpoint.expected import expected_parameters

PREFIX = "model.language_model.layers"


def check(
    directory: Path, dtype: torch.dtype = torch.float32, tensors: Tensors | None = None
) -> SpeechModel:
    """Loads a checkpoint on the CPU and compares every parameter with the expected one."""
    config = read_config(directory)
    model = load_model(directory, config, "cpu", dtype)
    wanted = expected_parameters(tensors or read_tensors(directory), config)
    parameters = dict(model.named_parameters())
    assert parameters.keys() == wanted.keys()
    for name, value in parameters.items():
        assert value.shape == wanted[name].shape, name
        assert value.dtype in (dtype, torch.float32), name
        near, tiny = torch.finfo(value.dtype).eps, torch.finfo(value.dtype).smallest_normal
        torch.testing.assert_close(
            value.double(),
            wanted[name],
            rtol=near,
            atol=max(1e-9, near * tiny),
            msg=lambda m, n=name: f"{n}: {m}",
        )
    return model


def test_fp8_checkpoint_is_dequantised_on_the_cpu(tiny: Path) -> None:
    model = check(tiny)
    assert isinstance(model.backbone.layers[0].moe.gate_up, torch.nn.Parameter)
    assert not model.training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_dtypes(tiny: Path, dtype: torch.dtype) -> None:
    model = check(tiny, dtype)
    assert model.head.dtype == model.tower.heads.dtype == dtype
    assert model.backbone.layers[0].input_norm.dtype == torch.float32
    assert model.backbone.layers[0].mixer.decay.dtype == torch.float32


def test_bf16_experts_and_odd_sizes_in_one_file(tiny_bf16: Path) -> None:
    assert sorted(p.name for p in tiny_bf16.glob("model*")) == ["model.safetensors"]
    check(tiny_bf16)


def test_nano() -> None:
    check(resolve("nano"))


def test_fp8_experts_are_kept_as_they_are(tiny: Path) -> None:
    config, tensors = read_config(tiny), read_tensors(tiny)
    kept = load_model(tiny, config, "cpu", torch.float32, keep=True)
    plain = load_model(tiny, config, "cpu", torch.float32)
    for layer, (ours, theirs) in enumerate(
        zip(kept.backbone.layers, plain.backbone.layers, strict=True)
    ):
        assert ours.moe.gate_up.dtype == ours.moe.down.dtype == torch.float8_e4m3fn
        for name in ("gate_up", "down"):
            weight = getattr(ours.moe, name)
            numbers = dequantize(weight.data, weight.scales, torch.float32)
            assert torch.equal(numbers, getattr(theirs.moe, name))
        stored = tensors[f"{PREFIX}.{layer}.mlp.experts.5.up_proj.weight"]
        ffn = config.backbone.expert_ffn
        mine = ours.moe.gate_up.data[5, ffn:]
        assert torch.equal(mine.view(torch.uint8), stored.view(torch.uint8))
    x = torch.randn(12, config.backbone.hidden_size, generator=torch.Generator().manual_seed(1))
    for rows in (2, 12):
        assert torch.allclose(
            kept.backbone.layers[1].moe(x[:rows]),
            plain.backbone.layers[1].moe(x[:rows]),
            atol=1e-5,
        )


def test_fp8_blocks_that_are_cut_short(tmp_path: Path) -> None:
    settings = {"text_config.hidden_size": 160, "text_config.moe_intermediate_size": 144}
    make_tiny(tmp_path / "odd", settings=settings)
    name = f"{PREFIX}.0.mlp.experts.0.gate_proj.weight_scale_inv"
    assert read_tensors(tmp_path / "odd")[name].shape == (2, 2)
    check(tmp_path / "odd")
    # Such blocks do not line up in the stacked parameter, so even a wish for FP8 is not granted.
    config = read_config(tmp_path / "odd")
    model = load_model(tmp_path / "odd", config, "cpu", torch.float32, keep=True)
    assert model.backbone.layers[0].moe.gate_up.dtype == torch.float32


def test_exact_scales_dequantise_exactly_in_bfloat16(tmp_path: Path) -> None:
    make_tiny(tmp_path / "exact", exact_scales=True)
    config = read_config(tmp_path / "exact")
    wide = load_model(tmp_path / "exact", config, "cpu", torch.float32)
    narrow = load_model(tmp_path / "exact", config, "cpu", torch.bfloat16)
    for ours, theirs in zip(narrow.backbone.layers, wide.backbone.layers, strict=True):
        assert torch.equal(ours.moe.gate_up.float(), theirs.moe.gate_up)
        assert torch.equal(ours.moe.down.float(), theirs.moe.down)


def _recast(dtype: torch.dtype, *parts: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name, value in tensors.items():
            if any(part in name for part in parts):
                tensors[name] = value.to(dtype)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _recast(torch.float32, "A_log", "dt_bias", "norm"),
        _recast(torch.bfloat16, "weight_scale_inv"),
        _recast(torch.float16, "self_attn", "linear_attn", "embed", "lm_head"),
        _recast(torch.float32, "audio_decoder", "mlp.gate."),
    ],
    ids=["float32 vectors", "bfloat16 scales", "float16 matrices", "float32 tower"],
)
def test_stored_dtypes_that_vary(tiny: Path, change: Callable[[Tensors], None]) -> None:
    rewrite(tiny, change)
    check(tiny)


def test_trimmed_head(tiny: Path) -> None:
    config, whole = read_config(tiny), load_model(tiny, read_config(tiny), "cpu", torch.float32)

    def trim(tensors: Tensors) -> None:
        head = tensors["lm_head.weight"]
        band = head[config.semantic_start : config.semantic_end + 1]
        tensors["lm_head.weight"] = torch.cat((band, head[config.eos, None]))

    rewrite(tiny, trim)
    assert torch.equal(check(tiny).head, whole.head)


@pytest.mark.parametrize("shards", [1, 8, 15])
def test_any_number_of_shards(tmp_path: Path, tiny: Path, shards: int) -> None:
    make_tiny(tmp_path / "sharded", shards=shards)
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) == shards
    one, other = (
        load_model(p, read_config(p), "cpu", torch.float32) for p in (tiny, tmp_path / "sharded")
    )
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_parts_of_one_change_may_lie_in_different_shards(tiny: Path) -> None:
    tensors = read_tensors(tiny)
    for shard in tiny.glob("*.safetensors"):
        shard.unlink()
    weight_map = {name: f"part {i % 7}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == shard}, tiny / shard)
    (tiny / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    check(tiny, tensors=tensors)


def test_reading_in_small_pieces_changes_nothing(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "CHUNK_BYTES", 1000)
    monkeypatch.setattr("rt_drama3.checkpoint.placement._FOLD_ROWS", 7)
    check(tiny)


def test_progress_counts_every_byte_once(tiny: Path) -> None:
    seen: list[tuple[int, int]] = []
    config = read_config(tiny)
    load_model(tiny, config, "cpu", torch.float32, lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(set(done))
    assert {total for _, total in seen} == {done[-1]}
    stored = sum(t.nbytes for t in read_tensors(tiny).values())
    row = 2 * config.backbone.hidden_size
    assert done[-1] == stored - (config.backbone.vocab_size - config.candidates) * row


def drop_experts(kept: dict[int, list[int]], rename: bool) -> Callable[[Tensors], None]:
    """Prunes layers to the kept experts, renumbered or under their old ids."""

    def change(tensors: Tensors) -> None:
        for layer, ids in kept.items():
            router = f"{PREFIX}.{layer}.mlp.gate.weight"
            tensors[router] = tensors[router][ids].clone()
            prefix = f"{PREFIX}.{layer}.mlp.experts."
            experts = {n: tensors.pop(n) for n in list(tensors) if n.startswith(prefix)}
            for name, value in experts.items():
                number, part = name.removeprefix(prefix).split(".", 1)
                if int(number) in ids:
                    new = ids.index(int(number)) if rename else number
                    tensors[f"{prefix}{new}.{part}"] = value

    return change


KEPT = {0: [6, 1, 3], 1: list(range(8)), 2: [7, 0], 3: [0, 1, 2, 3, 4]}


def test_experts_per_layer_from_the_files(tiny: Path) -> None:
    whole = load_model(tiny, read_config(tiny), "cpu", torch.float32)
    rewrite(tiny, drop_experts(KEPT, rename=True))
    assert read_config(tiny).backbone.experts == (3, 8, 2, 5)
    model = check(tiny)
    for layer, ids in KEPT.items():
        ours, theirs = model.backbone.layers[layer].moe, whole.backbone.layers[layer].moe
        assert torch.equal(ours.down, theirs.down[ids])


def test_experts_per_layer_from_the_config(tiny: Path) -> None:
    rewrite(tiny, drop_experts(KEPT, rename=True))
    edit_json(tiny / "config.json", lambda c: c["text_config"].update(num_experts=[3, 8, 2, 5]))
    assert read_config(tiny).backbone.experts == (3, 8, 2, 5)
    check(tiny)


@pytest.mark.parametrize("rename", [True, False], ids=["renumbered", "official ids"])
@pytest.mark.parametrize(
    "listed",
    [list, lambda kept: {str(k): v for k, v in enumerate(kept)}, json.dumps],
    ids=["list", "object", "string"],
)
def test_experts_per_layer_from_the_index(
    tiny: Path, rename: bool, listed: Callable[[list[list[int]]], Any]
) -> None:
    whole = load_model(tiny, read_config(tiny), "cpu", torch.float32)
    rewrite(tiny, drop_experts(KEPT, rename))
    weight_map = dict.fromkeys(read_tensors(tiny), "model.safetensors")
    metadata = {"drama_experts": listed([KEPT[layer] for layer in range(4)])}
    (tiny / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    config = read_config(tiny)
    assert config.backbone.experts == (3, 8, 2, 5)
    model = load_model(tiny, config, "cpu", torch.float32)
    for layer, ids in KEPT.items():
        ours, theirs = model.backbone.layers[layer].moe, whole.backbone.layers[layer].moe
        assert torch.equal(ours.gate_up, theirs.gate_up[ids])
        assert torch.equal(ours.router[:-1], theirs.router[:-1][ids])


def test_fewer_experts_than_a_token_takes(tiny: Path) -> None:
    rewrite(tiny, drop_experts({**KEPT, 1: [4]}, rename=True))
    moe = check(tiny).backbone.layers[1].moe
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(3))
    chosen, weights, _ = moe.route(x)
    assert (chosen.tolist(), weights.tolist()) == ([[0]] * 3, [[1.0]] * 3)


def test_fp8_is_known_by_the_tensors(tiny: Path) -> None:
    edit_json(tiny / "config.json", lambda c: c.pop("quantization_config"))
    assert read_config(tiny).fp8_experts
    check(tiny)


def test_matrices_that_are_stored_in_different_ways(tiny: Path) -> None:
    """Then all experts are kept alike, dequantised."""

    def change(tensors: Tensors) -> None:
        name = f"{PREFIX}.1.mlp.experts.3.down_proj.weight"
        scales = tensors.pop(f"{name}_scale_inv")
        tensors[name] = dequantize(tensors[name], scales, torch.bfloat16)
        tensors[shared], tensors[f"{shared}_scale_inv"] = quantize_fp8(tensors[shared].float())

    shared = f"{PREFIX}.0.mlp.shared_expert.down_proj.weight"
    rewrite(tiny, change)
    assert not read_config(tiny).fp8_experts
    tensors = read_tensors(tiny)
    scales = tensors.pop(f"{shared}_scale_inv")
    tensors[shared] = dequantize(tensors[shared], scales, torch.float32)
    check(tiny, tensors=tensors)


def test_interleaved_rotation_survives_the_reordering(tiny: Path) -> None:
    """Rotate-half on re-ordered heads gives the scores of interleaved pairs on stored ones."""
    config, tensors = read_config(tiny), read_tensors(tiny)
    shape = config.tower.attention
    size, rotary, heads = shape.head_dim, shape.rotary_dim, shape.heads
    model = load_model(tiny, config, "cpu", torch.float32)
    stored = tensors["audio_decoder_mtp.layers.1.transformer_layer.attention.wqkv.weight"].float()
    ours = model.tower.layers[config.tower.shared_layers + 1].attention.qkv
    x = torch.randn(2, shape.dim, generator=torch.Generator().manual_seed(2))
    angle = 0.7 * torch.arange(1, rotary // 2 + 1)

    def interleaved(v: Tensor) -> Tensor:
        pairs = torch.view_as_complex(v[..., :rotary].unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
        return torch.cat((turned, v[..., rotary:]), -1)

    def halves(v: Tensor) -> Tensor:
        a, b, rest = v.split((rotary // 2, rotary // 2, size - rotary), -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

    def score(weight: Tensor, rotate: Callable[[Tensor], Tensor]) -> Tensor:
        projected = x @ weight.T
        q = projected[0, : heads * size].unflatten(0, (heads, size))
        keys = projected[1, 2 * heads * size :].unflatten(0, (-1, size))[: shape.kv_heads]
        return rotate(q) @ keys.T

    torch.testing.assert_close(score(ours, halves), score(stored, interleaved))
    assert not torch.allclose(score(stored, halves), score(stored, interleaved), atol=1e-3)


@pytest.mark.gpu
def test_cuda_keeps_fp8_and_equals_the_cpu(tiny: Path) -> None:
    config = read_config(tiny)
    ours = load_model(tiny, config, "cuda", torch.bfloat16)
    theirs = load_model(tiny, config, "cpu", torch.bfloat16, keep=True)
    assert ours.backbone.layers[0].moe.gate_up.dtype == torch.float8_e4m3fn
    wanted = dict(theirs.named_parameters())
    for name, value in ours.named_parameters():
        assert value.device.type == "cuda"
        # The folded tables are summed in another order there; everything else is a copy.
        near = 2**-7 if name.endswith("table") else 0
        torch.testing.assert_close(
            value.float().cpu(), wanted[name].float(), rtol=near, atol=0, msg=name
        )


def test_config_of_a_folder_without_weights(tiny: Path) -> None:
    for file in [*tiny.glob("*.safetensors"), tiny / INDEX]:
        file.unlink()
    config: ModelConfig = read_config(tiny)
    assert config.backbone.experts == (8, 8, 8, 8)


def test_index_wins_over_a_stray_single_file(tiny: Path, tmp_path: Path) -> None:
    shutil.copy(resolve("nano") / "model.safetensors", tiny / "model.safetensors")
    config = read_config(tiny)
    load_model(tiny, config, "cpu", torch.float32)
