"""Every published form of a checkpoint speaks as its numbers do in the official layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import rt_drama3
from rt_drama3.checkpoint import (
    inspect,
    list_tensors,
    load_codec,
    load_model,
    make_tiny,
    read_config,
)
from rt_drama3.checkpoint.tiny_forms import FORMS, GGUF, MLX, PRUNED, SETTINGS
from rt_drama3.codec.official import folded_codec_state
from rt_drama3.model import SpeechModel
from rt_drama3.model.weights import Weight, dequantize, matrices
from tests.checkpoint.conftest import Tensors, read_tensors
from tests.checkpoint.rounded import mlx, rounded
from tests.small import GREEDY, prompt_rows, solo

FRAMES = 6
# Formats of matrices that can stay as they are stored.
KEPT = {
    "int4": {"int4"},
    "nvfp4": {"nvfp4"},
    "ct-nvfp4": {"nvfp4_divided"},
    "ct-int4": {"int4"},
    **{form: {form.replace("mlx", "affine"), "affine8"} for form in MLX},
    **{form: {form.removeprefix("gguf-"), "q8_0"} for form in GGUF},
    **dict.fromkeys(("gguf-f32", "gguf-f16", "gguf-bf16", "llamacpp"), frozenset({"q8_0"})),
    "gguf-nvfp4": {"ggml_nvfp4", "q8_0"},
    "comfy": {"fp8"},
    **{form: {"fp8"} for form in PRUNED},
}
TEXT = "Every form says the same."


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint that all forms are made of, with plain experts."""
    directory = tmp_path_factory.mktemp("forms") / "official"
    make_tiny(directory, settings=SETTINGS, experts="bf16", shards=None)
    return directory


def reference(official: Path, tensors: Tensors, target: Path) -> Path:
    """The same numbers in the official layout."""
    shutil.copytree(official, target)
    stored = {
        name: tensor.float().contiguous() if tensor.dtype == torch.float64 else tensor.contiguous()
        for name, tensor in tensors.items()
    }
    save_file(stored, target / "model.safetensors")
    return target


def loaded(directory: Path) -> SpeechModel:
    return load_model(directory, read_config(directory), "cpu", torch.float32)


def same_parameters(ours: SpeechModel, theirs: SpeechModel, form: str) -> None:
    wanted = dict(theirs.named_parameters())
    for name, value in ours.named_parameters():
        if form == "llamacpp" and name.endswith("decay"):  # a logarithm is in between
            torch.testing.assert_close(value, wanted[name], rtol=1e-6, atol=0)
        else:
            assert torch.equal(value, wanted[name]), name


def same_numbers(kept: SpeechModel, plain: SpeechModel) -> set[str]:
    """Names of the formats that are kept; all numbers are those of the other model."""
    wanted, formats = dict(plain.named_parameters()), set()
    found = dict(matrices(kept))
    assert found.keys() == wanted.keys()
    for name, matrix in found.items():
        first = 0
        for part in [matrix] if isinstance(matrix, torch.Tensor) else matrix.parts():
            rows = part.shape[-2] if part.dim() > 1 else 0
            theirs = wanted[name][..., first : first + rows, :] if rows else wanted[name]
            if isinstance(part, Weight):
                formats.add(part.format.name)
                stack = range(part.shape[0]) if part.dim() == 3 else [None]
                numbers = torch.stack([torch.cat(list(part.tiles(n))) for n in stack])
                assert torch.equal(numbers.view(part.shape), theirs), name
            else:
                assert torch.equal(part, theirs), name
            first += rows
    return formats


@pytest.mark.parametrize("form", FORMS)
def test_a_form_speaks_as_its_numbers_do(form: str, official: Path, tmp_path: Path) -> None:
    if form in GGUF or form == "llamacpp":
        pytest.importorskip("gguf")
    directory = tmp_path / "form"
    make_tiny(directory, form=form)
    listing = list_tensors(directory)
    assert listing.problems == listing.missing == []
    assert [tensor.name for tensor in listing.tensors if tensor.slot is None] == []
    info = inspect(directory)
    assert info.problems == []
    assert info.codec is not None
    assert info.licence == "CC0-1.0"

    if form == "official":
        return
    tensors = rounded(form, directory, read_tensors(official), read_config(official))
    target = reference(official, tensors, tmp_path / "reference")
    if form in PRUNED:  # with experts in FP8
        shutil.copy(directory / "config.json", target / "config.json")
    ours, theirs = rt_drama3.load(directory, device="cpu", dtype="float32"), loaded(target)
    same_parameters(ours.model, theirs, form)
    counts = {"pruned-uniform": (3, 3)}.get(form, (3, 2) if form in PRUNED else (4, 4))
    assert ours.config.backbone.experts == counts
    rows = prompt_rows(ours, TEXT)
    codes = solo(ours.model, rows, GREEDY, 0, FRAMES)
    assert codes == solo(theirs, rows, GREEDY, 0, FRAMES)
    kept = load_model(directory, ours.config, "cpu", torch.float32, keep=True)
    formats = same_numbers(kept, ours.model)
    assert formats == KEPT[form]
    assert solo(kept, rows, GREEDY, 0, FRAMES) == codes


@pytest.mark.parametrize("form", ["mlx4", "comfy", "gguf-q8_0"])
def test_codec_of_a_form(form: str, official: Path, tmp_path: Path) -> None:
    """With weight norm folded or not, in one file with the model or in its own."""
    make_tiny(tmp_path / "form", form=form)
    ours = load_codec(tmp_path / "form", "cpu", torch.float32)
    theirs = load_codec(official, "cpu", torch.float32)
    wanted = dict(theirs.named_parameters())
    assert ours.has_encoder
    near = 2**-9 if form.startswith("gguf") else 0  # half precision
    for name, value in ours.named_parameters():
        torch.testing.assert_close(value, wanted[name], rtol=near, atol=near, msg=name)


def test_a_folded_codec_is_the_same(official: Path) -> None:
    state = torch.load(official / "codec.pth", weights_only=True)
    config = load_codec(official, "cpu", torch.float32).config
    folded = folded_codec_state(config, state)
    assert not any("original" in name or "weight_" in name for name in folded)
    assert folded["decoder.model.0.conv.weight"].shape == (64, 64, 7)
    torch.testing.assert_close(
        folded["quantizer.quantizer.quantizers.0.in_proj.weight"],
        torch._weight_norm(
            state["quantizer.quantizer.quantizers.0.in_proj.weight_v"],
            state["quantizer.quantizer.quantizers.0.in_proj.weight_g"],
        ),
    )


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_what_mlx_audio_writes(bits: int, tmp_path: Path) -> None:
    """Its own converter, its own dequantisation; experts of one layer with other bits."""
    mx = pytest.importorskip("mlx.core", reason="mlx has no build for this machine")
    converter = pytest.importorskip("mlx_audio.tts.models.fish_drama3.convert")
    make_tiny(tmp_path / "official", settings=SETTINGS, codec="none")
    source, target = tmp_path / "official", tmp_path / "mlx"
    converter.convert(
        *(source, target),
        expert_bits=bits,
        dense_bits=bits,
        tower_bits=8,
        expert_bits_map={1: 5},
        codec=False,
    )
    stored = mx.load(str(target / "model-00001.safetensors"))
    modules = json.loads((target / "config.json").read_text())["quantization"]
    tensors = {}
    for name, value in stored.items():
        module = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if module in modules:
            parts = [stored[f"{module}.{part}"].astype(mx.float32) for part in ("scales", "biases")]
            value = mx.dequantize(value, *parts, **modules[module])
        tensors[name] = torch.from_numpy(np.array(value.astype(mx.float32)))
    official = {
        name: tensor.float()
        for name, tensor in read_tensors(source).items()
        if not name.endswith("scale_inv")
    }
    wanted = mlx(tensors, read_config(source), official)
    ours = loaded(target)
    assert modules["backbone.model.layers.1.mlp.switch_mlp.up_proj"]["bits"] == 5
    values = json.loads((source / "config.json").read_text()) | {"quantization_config": None}
    (source / "config.json").write_text(json.dumps(values))
    for shard in source.glob("*.safetensors*"):
        shard.unlink()
    save_file({n: t.float().contiguous() for n, t in wanted.items()}, source / "model.safetensors")
    same_parameters(ours, loaded(source), "mlx")


def test_fp8_banks_stay_fp8(tmp_path: Path) -> None:
    make_tiny(tmp_path / "form", form="comfy")
    config = read_config(tmp_path / "form")
    assert config.fp8_experts
    kept = load_model(tmp_path / "form", config, "cpu", torch.float32, keep=True)
    plain = load_model(tmp_path / "form", config, "cpu", torch.float32)
    for ours, theirs in zip(kept.backbone.layers, plain.backbone.layers, strict=True):
        for name in ("gate_up", "down"):
            weight = getattr(ours.moe, name)
            assert weight.dtype == torch.float8_e4m3fn
            numbers = dequantize(weight.data, weight.scales, torch.float32)
            assert torch.equal(numbers, getattr(theirs.moe, name))
