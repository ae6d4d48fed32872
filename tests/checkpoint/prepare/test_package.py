"""Packages hold the source's numbers, as far as their types allow, and speak as these do."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rt_drama3.checkpoint import (
    Checkpoint,
    inspect,
    list_tensors,
    load_codec,
    load_tokenizer,
    make_tiny,
    read_config,
)
from rt_drama3.checkpoint.gguf import read_embedded, scan_gguf
from rt_drama3.checkpoint.prepare.targets import read_kept
from rt_drama3.model.weights import dequantize
from tests.checkpoint.conftest import Tensors, read_tensors, rewrite
from tests.checkpoint.prepare.packages import (
    HEAD,
    LAYERS,
    SIZES,
    as_official,
    loaded,
    packed,
    relative,
    source,
    spoken,
)
from tests.checkpoint.rounded import audio_cpp, rounded

pytest.importorskip("gguf")


def plain(form: str = "official") -> Tensors:
    """What a source holds, read without the loader: official names, float32."""
    if form != "official":
        numbers = read_tensors(source("plain"))
        return rounded(form, source(form), numbers, read_config(source("plain")))
    stored = read_tensors(source())
    scales = {name: stored.pop(name) for name in list(stored) if name.endswith("_scale_inv")}
    for name, scale in scales.items():
        matrix = name.removesuffix("_scale_inv")
        stored[matrix] = dequantize(stored[matrix], scale, torch.float32)
    return {name: tensor.float() for name, tensor in stored.items()}


def sampled(head: Tensor, place: Path) -> Tensor:
    """The rows of a head that can be drawn."""
    config = read_config(place)
    return head[[*range(config.semantic_start, config.semantic_end + 1), config.eos]]


RECIPES = {
    "defaults": {"experts": "q4_k"},
    "others": {"experts": "q3_k", "backbone": "q4_0", "tower": "f16", "embedding": "keep"},
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_package_speaks_as_its_numbers_do(recipe: dict[str, str], tmp_path: Path) -> None:
    """Its numbers are those that the gguf package reads; their errors are those reported."""
    out = tmp_path / "package.gguf"
    report = packed(out, **recipe)
    tensors, wanted = audio_cpp(out), plain()
    assert tensors.keys() == wanted.keys()
    for tensor in report.tensors:
        if tensor.group in ("experts", "codec"):
            continue
        ours, theirs = tensors[tensor.name], wanted[tensor.name]
        assert tensor.rmse == pytest.approx(relative(ours, theirs), rel=1e-3, abs=1e-9)
        assert tensor.shape == tuple(theirs.shape)
    for layer in range(2):
        for matrix in ("gate_proj", "up_proj", "down_proj"):
            names = [f"{LAYERS}.{layer}.mlp.experts.{i}.{matrix}.weight" for i in range(4)]
            stacks = (torch.cat([values[name] for name in names]) for values in (tensors, wanted))
            name = f"{LAYERS}.{layer}.mlp.experts.{matrix}.weight"
            (tensor,) = (each for each in report.tensors if each.name == name)
            assert tensor.rmse == pytest.approx(relative(*stacks), rel=1e-3)
            assert tensor.shape == (4, 256, 256)
            assert tensor.type == recipe["experts"]

    target = as_official(tensors, [4, 4], tmp_path / "reference")
    ours, theirs = loaded(out), loaded(target)
    for name, parameter in theirs.named_parameters():
        assert torch.equal(ours.get_parameter(name), parameter), name
    assert spoken(ours, out) == spoken(theirs, out)


@pytest.mark.parametrize("form", ["int4", "mlx4", "llamacpp"])
def test_from_every_form(form: str, tmp_path: Path) -> None:
    out = tmp_path / "package.gguf"
    place = source(form)
    report = packed(out, place)
    tensors, wanted = audio_cpp(out), plain(form)
    assert tensors.keys() == wanted.keys()
    if form == "mlx4":
        wanted[HEAD] = sampled(wanted[HEAD], place)
    for name, tensor in tensors.items():
        assert relative(tensor, wanted[name]) < 0.01, name
    assert max(tensor.rmse for tensor in report.tensors) < 0.01
    info = inspect(out)
    assert info.problems == []
    assert info.licence == "CC0-1.0"
    config = json.loads(read_embedded(scan_gguf(out), "config.json"))
    assert not {"quantization", "quantization_config"} & config.keys()
    assert config["text_config"]["num_experts"] == 4


def test_the_file_is_complete(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Config, tokenizer, codec, licence and notice come with it, and nothing is assumed."""
    place = tmp_path / "source"
    make_tiny(place, settings=SIZES, shards=None)
    (place / "NOTICE").write_text("Noted.\n")
    (place / "LICENSE-CODE.txt").write_bytes(b"\xff not UTF-8\n")
    (place / "training.json").write_text("{}")
    out = tmp_path / "package.gguf"
    packed(out, place, head=65)
    with caplog.at_level(logging.WARNING):
        listing = list_tensors(out)
        assert inspect(out).problems == listing.problems == listing.missing == []
    assert caplog.messages == []
    assert all(tensor.slot for tensor in listing.tensors)
    found = scan_gguf(out)
    for name in ("LICENSE", "NOTICE", "LICENSE-CODE.txt", "tokenizer.json", "codec_config.json"):
        assert read_embedded(found, name) == (place / name).read_bytes()
    assert "training.json" not in found.embedded
    assert found.header is not None
    assert json.loads(found.header.string("rt_drama3.options") or "")["head"] == "65"
    opened = Checkpoint(out)
    assert load_tokenizer(opened.files, opened.config).get_vocab_size() == 351
    ours, theirs = (load_codec(each, "cpu", torch.float32) for each in (out, place))
    assert ours.has_encoder
    for name, value in theirs.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name), value, rtol=2**-10, atol=2**-14)


def test_others_open_it(tmp_path: Path) -> None:
    """Ggml itself, and the gguf package within a second: no array has an element for each byte."""
    import gguf

    pytest.importorskip("libggml", reason="libggml-python has no build for this machine")
    from tests.oracles import ggml

    out = tmp_path / "package.gguf"
    report = packed(out)
    theirs = ggml.gguf_tensors(out)
    reader = gguf.GGUFReader(out)
    assert [name for name, _, _ in theirs] == [tensor.name for tensor in reader.tensors]
    assert [t.tensor_type.name for t in reader.tensors] == [t.type.upper() for t in report.tensors]
    assert all(start % 32 == 0 for _, _, start in theirs)
    assert all(len(field.parts) < 20_000 for field in reader.fields.values())


def test_blocks_of_the_source_are_copied(tmp_path: Path) -> None:
    """Those of the type that is asked for, or all that are kept."""
    place, out = source("gguf-q4_k"), tmp_path / "package.gguf"
    report = packed(out, place, experts="q4_k", backbone="keep", tower="keep", embedding="keep")
    before, after = scan_gguf(next(place.glob("*.gguf"))), scan_gguf(out)
    data = {path.name: path.read_bytes() for path in (next(place.glob("*.gguf")), out)}
    for name, entry in after.entries.items():
        old = before.entries[name]
        assert (entry.dtype, entry.shape) == (old.dtype, old.shape)
        stored = (data[e.shard][e.start : e.start + e.nbytes] for e in (old, entry))
        assert next(stored) == next(stored), name
    assert {tensor.rmse for tensor in report.tensors} == {0.0}


def test_rows_that_a_block_does_not_divide(tmp_path: Path) -> None:
    """The next type that fits is taken, and said."""
    settings = {
        "text_config.hidden_size": 96,
        "text_config.moe_intermediate_size": 40,
        "text_config.num_hidden_layers": 1,
    }
    make_tiny(tmp_path / "odd", settings=settings, experts="bf16", shards=None)
    out = tmp_path / "package.gguf"
    report = packed(out, tmp_path / "odd", experts="iq3_xxs", backbone="q6_k")
    types = {tensor.name.removeprefix(f"{LAYERS}.0."): tensor.type for tensor in report.tensors}
    assert types["mlp.experts.gate_proj.weight"] == "q4_0"
    assert types["mlp.experts.down_proj.weight"] == "bf16"
    assert types["linear_attn.in_proj_qkv.weight"] == "q8_0"
    assert types[HEAD] == "q8_0"
    assert any(
        re.match(
            r"experts: 2 matrices are stored as q4_0 instead of iq3_xxs: their 96 columns are not "
            "a multiple of the 256 weights",
            note,
        )
        for note in report.notes
    )
    assert loaded(out).config.backbone.hidden_size == 96


def test_a_head_of_what_is_sampled(tmp_path: Path) -> None:
    out = tmp_path / "short.gguf"
    packed(out, backbone="bf16", head=65)
    assert torch.equal(audio_cpp(out)[HEAD], sampled(plain()[HEAD], out))
    assert torch.equal(loaded(out).head, loaded(source()).head)


@pytest.mark.parametrize("kind", ["list", "object", "metadata"])
def test_lists_of_experts(kind: str, tmp_path: Path) -> None:
    kept = [[3, 0, 2], [1, 3]]
    by_layer = {f"layers.{layer}": ids for layer, ids in enumerate(kept)}
    value = {"list": kept, "object": by_layer, "metadata": {"drama_experts": json.dumps(kept)}}
    (tmp_path / "kept.json").write_text(json.dumps(value[kind]))
    assert read_kept(tmp_path / "kept.json", read_config(source())) == [[0, 2, 3], [1, 3]]


def test_experts_that_are_removed(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text("[[3, 0, 2], [1, 3]]")
    out = tmp_path / "package.gguf"
    packed(out, prune=tmp_path / "kept.json")
    tensors, wanted = audio_cpp(out), plain()
    for layer, ids in enumerate([[0, 2, 3], [1, 3]]):
        prefix = f"{LAYERS}.{layer}.mlp"
        gate = f"{prefix}.gate.weight"
        assert torch.equal(tensors[gate], wanted[gate][ids])
        for number, expert in enumerate(ids):
            for matrix in ("gate_proj", "down_proj"):
                ours = tensors[f"{prefix}.experts.{number}.{matrix}.weight"]
                theirs = wanted[f"{prefix}.experts.{expert}.{matrix}.weight"]
                assert relative(ours, theirs) < 0.01
    assert read_config(out).backbone.experts == (3, 2)
    header = scan_gguf(out).header
    assert header is not None
    assert json.loads(header.string("drama_experts") or "") == [[0, 2, 3], [1, 3]]
    target = as_official(tensors, [3, 2], tmp_path / "reference")
    assert spoken(loaded(out), out) == spoken(loaded(target), out)


def test_a_package_of_a_pruned_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "package.gguf"
    packed(out, source("pruned-listed"))
    ours, theirs = loaded(out), loaded(source("pruned-listed"))
    assert ours.config.backbone.experts == theirs.config.backbone.experts == (3, 2)
    for layer, other in zip(ours.backbone.layers, theirs.backbone.layers, strict=True):
        assert torch.equal(layer.moe.router, other.moe.router)


def test_norms_that_look_shifted(tmp_path: Path) -> None:
    """A package says how its norms are stored, so that their values need not be judged."""
    place, out = tmp_path / "source", tmp_path / "package.gguf"
    make_tiny(place, settings=SIZES, shards=None)

    def shift(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if tensor.ndim == 1 and "norm" in name and "linear_attn" not in name:
                tensor.fill_(0.75)

    rewrite(place, shift)
    packed(out, place)
    assert torch.equal(loaded(out).backbone.norm, loaded(place).backbone.norm)
