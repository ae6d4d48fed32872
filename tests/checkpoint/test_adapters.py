"""Names, orders and conventions of other containers, and what is refused with its reason."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rt_drama3.checkpoint import (
    Checkpoint,
    inspect,
    list_tensors,
    load_codec,
    load_model,
    load_tokenizer,
    make_tiny,
    read_config,
    read_voice_config,
)
from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.formats import FORMATS, quantize
from rt_drama3.checkpoint.formats.int4 import quantize_gptq
from rt_drama3.checkpoint.gguf import Planned, Writer, embedded_files, logical_names
from rt_drama3.checkpoint.tiny_forms import SETTINGS, trimmed_head
from rt_drama3.checkpoint.tiny_gguf import write_audio_cpp
from rt_drama3.errors import CheckpointError, ConfigError
from rt_drama3.model import SpeechModel
from tests.checkpoint.conftest import Tensors, edit_json, read_tensors, rewrite

LAYER = "model.language_model.layers.0"
FULL = "model.language_model.layers.1"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small official checkpoint with plain experts."""
    directory = tmp_path_factory.mktemp("adapters") / "plain"
    make_tiny(directory, settings=SETTINGS, experts="bf16", shards=None)
    return directory


@pytest.fixture
def copy(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "copy"))


def loaded(place: Path | Checkpoint) -> SpeechModel:
    checkpoint = place if isinstance(place, Checkpoint) else Checkpoint(place)
    return load_model(checkpoint, checkpoint.config, "cpu", torch.float32)


def same(ours: SpeechModel, theirs: SpeechModel, near: float = 0.0) -> None:
    wanted = dict(theirs.named_parameters())
    for name, value in ours.named_parameters():
        torch.testing.assert_close(value, wanted[name], rtol=near, atol=near, msg=name)


def refuses(place: Path | Checkpoint, *parts: str) -> str:
    """Loading fails with a message that holds every part."""
    with pytest.raises(CheckpointError) as caught:
        loaded(place)
    for part in parts:
        assert part in str(caught.value)
    return str(caught.value)


def audio_cpp(
    copy: Path, change: Callable[[Tensors], object] = lambda _: None, head: bool = False
) -> Path:
    """That checkpoint as audio.cpp's file, with unquantised experts."""
    tensors = read_tensors(copy)
    config = read_config(copy)
    (copy / "model.safetensors").unlink()
    change(tensors)
    trimmed = trimmed_head(tensors["lm_head.weight"], config) if head else None
    write_audio_cpp(copy, tensors, config, "BF16", trimmed)
    return copy / "tiny-BF16.gguf"


# The head.


def test_order_of_a_trimmed_head(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such a file does not declare it: one order is assumed, the other can be asked for."""
    theirs = loaded(audio_cpp(copy, head=True)).head
    assert "in an order that is not declared; semantic-eos is assumed" in caplog.text
    caplog.clear()
    path = copy / "tiny-BF16.gguf"
    same_head = loaded(Checkpoint(path, head_order="semantic-eos")).head
    other = loaded(Checkpoint(path, head_order="eos-semantic")).head
    assert caplog.text == ""
    assert torch.equal(same_head, theirs)
    assert torch.equal(other, torch.cat((theirs[1:], theirs[:1])))
    with pytest.raises(ConfigError, match="'eos' is not one of semantic-eos, eos-semantic"):
        Checkpoint(path, head_order="eos")


def test_a_whole_head_needs_no_order(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = audio_cpp(copy)
    ours, other = loaded(path), loaded(Checkpoint(path, head_order="eos-semantic"))
    assert torch.equal(ours.head, other.head)
    assert "order" not in caplog.text


def test_the_head_of_a_file_with_stacks_of_experts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_tiny(tmp_path / "comfy", form="comfy")
    loaded(tmp_path / "comfy")
    assert "use --head-order eos-semantic" in caplog.text


# Norms.


def _stored_plus_one(tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim == 1 and "norm" in name and "linear_attn" not in name:
            tensors[name] = tensor.float() + 1


def test_norms_that_are_stored_plus_one(
    plain: Path, copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shifted = Path(shutil.copytree(plain, tmp_path / "shifted"))
    same(loaded(audio_cpp(shifted, _stored_plus_one)), loaded(audio_cpp(copy)))
    assert caplog.text.count("norms are taken as stored plus one") == 2  # backbone and tower


def test_norms_of_an_official_checkpoint_are_what_they_say(copy: Path) -> None:
    rewrite(copy, _stored_plus_one)
    assert float(loaded(copy).backbone.norm.median()) > 1.5


# Names.


def test_other_prefixes(plain: Path, copy: Path) -> None:
    """An official layout under other prefixes, and matrices apart or in one."""

    def change(tensors: Tensors) -> None:
        for name in list(tensors):
            tensor = tensors.pop(name)
            name = name.replace("model.language_model.", "backbone.")
            name = name.replace("audio_decoder_mtp.layers", "tower.layers")
            name = name.replace("lm_head", "model.lm_head")
            if name.endswith("attention.wqkv.weight"):
                base = name.removesuffix("wqkv.weight")
                # With the gates behind the queries, as in the whole.
                parts = zip("qkv", tensor.split((256, 64, 64)), strict=True)
                tensors |= {f"{base}{x}_proj.weight": part.clone() for x, part in parts}
            else:
                tensors[name] = tensor

    rewrite(copy, change)
    same(loaded(copy), loaded(plain))


def test_parts_that_do_not_fit(copy: Path) -> None:
    name = "audio_decoder_mtp.layers.0.transformer_layer.attention"

    def change(tensors: Tensors) -> None:
        whole = tensors.pop(f"{name}.wqkv.weight")
        tensors[f"{name}.q_proj.weight"] = whole[:200].clone()
        tensors[f"{name}.k_proj.weight"] = whole[256:320].clone()

    rewrite(copy, change)
    refuses(copy, f"{name}.wqkv.weight is stored in parts that do not fit", "k_proj", "after 200")


def test_a_tensor_that_is_stored_twice(copy: Path) -> None:
    expert = f"{LAYER}.mlp.experts.1.gate_proj.weight"
    bank = f"{LAYER}.mlp.experts.gate_proj.weight"

    def change(tensors: Tensors) -> None:
        tensors[bank] = torch.stack([tensors[expert]] * 4)

    rewrite(copy, change)
    refuses(copy, "experts.0.gate_proj.weight is stored twice", bank)


def test_what_has_no_place_is_named(copy: Path) -> None:
    rewrite(copy, lambda tensors: tensors.update({"visual.patch.weight": torch.zeros(2, 2)}))
    refuses(copy, "unexpected tensor visual.patch.weight")
    (stray,) = [tensor for tensor in list_tensors(copy).tensors if tensor.slot is None]
    assert (stray.name, stray.dtype, stray.shape) == ("visual.patch.weight", "F32", [2, 2])


# The tensor map.


def _with_map(path: Path, rules: dict[str, Any]) -> Checkpoint:
    table = path.parent / "map.json"
    table.write_text(json.dumps(rules))
    return Checkpoint(path, tensor_map=table)


def test_tensor_map(plain: Path, copy: Path) -> None:
    """Names that cannot be guessed: stacks, parts, transposed and shifted tensors."""

    def change(tensors: Tensors) -> None:
        for layer in range(2):
            experts = f"model.language_model.layers.{layer}.mlp.experts"
            for x in ("gate", "up", "down"):
                parts = [tensors.pop(f"{experts}.{e}.{x}_proj.weight") for e in range(4)]
                tensors[f"b{layer}.{x}s"] = torch.stack(parts)
            router = f"model.language_model.layers.{layer}.mlp.gate.weight"
            tensors[f"b{layer}.r"] = tensors.pop(router).T.contiguous()
        tensors["last"] = tensors.pop("model.language_model.norm.weight").float() + 1
        embed = tensors.pop("model.language_model.embed_tokens.weight")
        tensors["words.1"], tensors["words.0"] = embed[:100].clone(), embed[100:].clone()
        del tensors["audio_decoder_mtp.heads.0.weight"]
        tensors["first"] = tensors["audio_decoder_mtp.heads.1.weight"].clone()

    heads = read_tensors(copy)
    rewrite(copy, change)
    rules: dict[str, Any] = {
        "model.language_model.norm.weight": {"name": "last", "offset": 1},
        "audio_decoder_mtp.heads.0.weight": "first",
        "model.language_model.embed_tokens.weight": [
            "words.1",
            {"name": "words.0", "rows": [0, heads["lm_head.weight"].shape[0] - 100]},
        ],
        "model.language_model.layers.{L}.mlp.gate.weight": {"name": "b{L}.r", "transpose": True},
    }
    for x in ("gate", "up", "down"):
        rules[f"model.language_model.layers.{{L}}.mlp.experts.{{E}}.{x}_proj.weight"] = (
            f"b{{L}}.{x}s"
        )
    ours, theirs = loaded(_with_map(copy, rules)), loaded(plain)
    theirs.tower.heads[0] = theirs.tower.heads[1]
    same(ours, theirs)
    refuses(copy, "lacks the tensor")


@pytest.mark.parametrize(
    ("rules", "part"),
    [
        ([], "must be a JSON object"),
        ({"a": 3}, "a is 3; a name"),
        ({"a": {"rows": [0, 1]}}, "a name, or an object with a name"),
        ({"a": {"name": "b", "row": [0, 1]}}, "unknown key 'row'; the known keys are name, offset"),
        ({"a": {"name": "b", "rows": [1]}}, "rows of a is [1]"),
        ({"a": {"name": "b", "rows": [2, 1]}}, "rows of a is [2, 1]"),
        ({"a": {"name": "b", "offset": "1"}}, "offset of a is '1'"),
        ({"a": {"name": "b", "transpose": 1}}, "transpose of a is 1"),
        ({"a": []}, "a has no part"),
        ({"a": ["b", {"name": "c", "offset": 1}]}, "a has parts"),
        ({"lm_head.weight": "no.such"}, "no tensor no.such for lm_head.weight"),
        ({"a": {"name": "lm_head.weight", "rows": [0, 99999]}}, "a needs rows 0 to 99999"),
    ],
)
def test_tensor_maps_that_are_wrong(copy: Path, rules: Any, part: str) -> None:
    refuses(_with_map(copy, rules), "map.json", part)


# Files that are embedded or next to it.


def test_one_file_is_all_there_is(copy: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    path = Path(shutil.move(audio_cpp(copy), alone / "voice.gguf"))
    # What lies next to it may belong to something else.
    (alone / "generation_config.json").write_text('{"temperature": 0.1}')
    checkpoint = Checkpoint(path)
    assert load_tokenizer(checkpoint.files, checkpoint.config).encode("Hello").ids
    assert read_voice_config(checkpoint.files).sampling.temperature == 1
    assert load_codec(checkpoint, "cpu", torch.float32).has_encoder
    assert inspect(alone).problems == []
    assert inspect(alone).licence == "CC0-1.0"


def test_embedded_files_that_are_missing(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    path = audio_cpp(copy)
    with pytest.raises(CheckpointError, match=r"tokenizer.json is missing in .*tiny-BF16.gguf"):
        load_tokenizer(Checkpoint(path).files, Checkpoint(path).config)


def test_gguf_without_a_config(copy: Path) -> None:
    config = (copy / "config.json").read_text()
    path = audio_cpp(copy)
    found = Checkpoint(path).found
    with Writer(path.with_name("bare.gguf"), {"general.architecture": "audiocpp"}, []):
        pass
    path.unlink()
    refuses(path.with_name("bare.gguf"), "config.json is missing")
    (copy / "config.json").write_text(config)
    refuses(path.with_name("bare.gguf"), "lacks the tensor")
    assert found.problems == []


# Which files are meant.


def test_several_models_in_a_folder(copy: Path) -> None:
    path = audio_cpp(copy)
    shutil.copy(path, copy / "other.gguf")
    refuses(copy, "holds several models (other.gguf, tiny-BF16.gguf); give the file")
    loaded(copy / "other.gguf")


def test_a_safetensors_file(plain: Path, copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "voice.safetensors")
    same(loaded(copy / "voice.safetensors"), loaded(plain))
    same(loaded(copy), loaded(plain))


def test_other_architectures(tmp_path: Path) -> None:
    with Writer(tmp_path / "x.gguf", {"general.architecture": "llama"}, []):
        pass
    shutil.copy(tmp_path / "x.gguf", tmp_path / "config.json")  # not reached
    (tmp_path / "config.json").unlink()
    assert "architecture 'llama'; a Drama 3 model is 'audiocpp' or 'qwen35moe'" in " ".join(
        Checkpoint(tmp_path / "x.gguf").found.problems
    )


def test_half_of_a_pair(tmp_path: Path) -> None:
    make_tiny(tmp_path / "pair", form="llamacpp")
    text, other = tmp_path / "pair" / "tiny.gguf", tmp_path / "pair" / "mmproj-tiny.gguf"
    refuses(other, "second file of a pair (mmproj); give the one with the text model")
    shutil.copy(other, tmp_path / "pair" / "mmproj-again.gguf")
    refuses(text, "other half (mmproj", "there: mmproj-again.gguf, mmproj-tiny.gguf")
    other.unlink()
    (tmp_path / "pair" / "mmproj-again.gguf").unlink()
    refuses(text, "other half (mmproj", "there: none")


def test_a_fork_of_ggml(copy: Path) -> None:
    """A type that ggml does not have is refused by its number."""
    path = audio_cpp(copy)
    data = bytearray(path.read_bytes())
    found = Checkpoint(path).found
    name = next(iter(found.entries)).encode()
    place = data.rindex(name, 0, data.index(b"_audiocpp.")) if name in data else 0
    assert place
    dims = place + len(name)
    rank = int.from_bytes(data[dims : dims + 4], "little")
    kind = dims + 4 + 8 * rank
    data[kind : kind + 4] = (103).to_bytes(4, "little")
    path.write_bytes(data)
    refuses(path, "has the type 103, which ggml does not have", "ROCmFPX", "such as Q4_K")


# The codec.


@pytest.mark.parametrize("kind", ["folder", "pth", "safetensors", "gguf"])
def test_codec_from_elsewhere(plain: Path, copy: Path, tmp_path: Path, kind: str) -> None:
    wanted = load_codec(plain, "cpu", torch.float32)
    bare = Path(shutil.copytree(plain, tmp_path / "bare"))
    (bare / "codec.pth").unlink()
    with pytest.raises(CheckpointError, match=r"no codec.*Give one with --codec.*drama-3"):
        load_codec(bare, "cpu", torch.float32)
    place = {"folder": copy, "pth": copy / "codec.pth"}.get(kind)
    if kind == "safetensors":
        place = copy / "the-codec.safetensors"
        state = torch.load(copy / "codec.pth", weights_only=True)
        save_file({n: t for n, t in state.items() if t.is_floating_point()}, place)
    elif kind == "gguf":
        place = audio_cpp(copy)
    found = load_codec(Checkpoint(bare, codec=place), "cpu", torch.float32)
    near = 2**-9 if kind == "gguf" else 0
    for ours, theirs in zip(found.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=near, atol=near)


# GPTQ's variants, whose tensors look alike.


def _gptq(copy: Path, settings: dict[str, Any], change: Callable[[Tensors], object]) -> None:
    def quantised(tensors: Tensors) -> None:
        weight = tensors.pop(f"{FULL}.self_attn.o_proj.weight")
        words, scales = quantize_gptq(weight.float(), 32)
        base = f"{FULL}.self_attn.o_proj"
        tensors |= {f"{base}.qweight": words, f"{base}.scales": scales}
        change(tensors)

    rewrite(copy, quantised)
    edit_json(copy / "config.json", lambda c: c.update(quantization_config=settings))


def _expected(copy: Path, zeros: Tensor | int, groups: Tensor) -> Tensor:
    tensors = load_file(copy / "model.safetensors")
    words = tensors[f"{FULL}.self_attn.o_proj.qweight"]
    scales = tensors[f"{FULL}.self_attn.o_proj.scales"].float()
    codes = torch.stack([words >> 4 * place & 15 for place in range(8)], 1).flatten(0, 1)
    zero = zeros if isinstance(zeros, int) else zeros[groups]
    return ((codes - zero) * scales[groups]).T


EVEN = torch.arange(128) // 32


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptq_with_zero_points(copy: Path, version: str) -> None:
    zeros = torch.randint(0, 16, (4, 256), generator=torch.Generator().manual_seed(5))
    packed = torch.stack([zeros[:, place::8] << 4 * place for place in range(8)]).sum(0)
    words = torch.from_numpy(packed.numpy().astype(np.uint32).view(np.int32))
    settings = {"quant_method": "gptq", "bits": 4, "sym": False, "checkpoint_format": version}
    name = f"{FULL}.self_attn.o_proj.qzeros"
    _gptq(copy, settings, lambda tensors: tensors.update({name: words}))
    wanted = _expected(copy, (zeros + (version == "gptq")) & 15, EVEN)
    assert torch.equal(loaded(copy).backbone.layers[1].mixer.out, wanted)
    rewrite(copy, lambda tensors: tensors.pop(name))
    refuses(copy, "o_proj is damaged: it is not symmetric, but has no qzeros")


def test_gptq_with_groups_in_any_order(copy: Path) -> None:
    order = torch.randint(0, 4, (128,), generator=torch.Generator().manual_seed(6))
    name = f"{FULL}.self_attn.o_proj.g_idx"
    _gptq(copy, {"desc_act": True}, lambda tensors: tensors.update({name: order.int()}))
    wanted = _expected(copy, 8, order)
    assert torch.equal(loaded(copy).backbone.layers[1].mixer.out, wanted)
    # Without desc_act it has no meaning.
    edit_json(copy / "config.json", lambda c: c.update(quantization_config={"desc_act": False}))
    assert torch.equal(loaded(copy).backbone.layers[1].mixer.out, _expected(copy, 8, EVEN))


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"checkpoint_format": "marlin"}, "tiled for one kernel (marlin)"),
        ({"is_marlin_format": True}, "tiled for one kernel (marlin)"),
        ({"bits": 3}, "GPTQ with 3 bits; 4 and 8 are read"),
        ({"bits": 8}, "shape [256, 64] instead of [256, 128]"),
    ],
)
def test_gptq_that_cannot_be_read(copy: Path, settings: dict[str, Any], part: str) -> None:
    _gptq(copy, settings, lambda _: None)
    refuses(copy, "o_proj", part)


def test_parts_of_a_quantised_matrix_that_do_not_fit(copy: Path) -> None:
    name = f"{FULL}.self_attn.o_proj.scales"
    _gptq(copy, {}, lambda tensors: tensors.update({name: tensors[name][:, :100].clone()}))
    refuses(copy, f"{name} has shape [4, 100] instead of [4, 256]", "Download")


def test_a_layout_of_another_program(copy: Path) -> None:
    edit_json(copy / "config.json", lambda c: c.update(ct2_layout_version=1))
    refuses(copy, "ct2_layout_version is 1", "CTranslate2")


def test_a_quantisation_that_is_not_known(copy: Path) -> None:
    """The tensors are what is refused, and the message says what the config calls them."""
    edit_json(
        copy / "config.json", lambda c: c.update(quantization_config={"quant_method": "orbit"})
    )
    same(loaded(copy), loaded(copy))  # nothing in it is quantised
    name = f"{LAYER}.mlp.experts.0.up_proj"

    def change(tensors: Tensors) -> None:
        tensors[f"{name}.rotated"] = tensors.pop(f"{name}.weight")

    rewrite(copy, change)
    refuses(copy, f"lacks the tensor {name}.weight", "'orbit'", "fishaudio/drama-3")


# ggml's NVFP4 with factors of their own.


def test_factors_next_to_blocks(copy: Path, plain: Path) -> None:
    tensors = {name: t.float() for name, t in read_tensors(plain).items()}
    factors = torch.tensor([0.5, 2.0, 1.0, 0.25])
    bank = torch.stack([tensors[f"{LAYER}.mlp.experts.{e}.down_proj.weight"] for e in range(4)])
    blocks = quantize(bank / factors[:, None, None], FORMATS["nvfp4"])
    stored: dict[str, tuple[Tensor, str]] = {}
    for name, tensor in tensors.items():
        if not name.startswith(f"{LAYER}.mlp.experts.") or "down" not in name:
            stored[name] = (tensor, "F32")
    name = f"{LAYER}.mlp.experts.down_proj"
    stored |= {f"{name}.weight": (blocks, "NVFP4"), f"{name}.scale": (factors, "F32")}
    shapes = [
        tuple(bank.shape) if kind == "NVFP4" else tuple(t.shape) for t, kind in stored.values()
    ]
    names, values = logical_names(list(stored), shapes)
    files = {n: (copy / n).read_bytes() for n in ("config.json", "tokenizer.json")}
    values |= {"general.architecture": "audiocpp"} | embedded_files(files)
    planned = [
        Planned(n, shape, kind)
        for n, shape, (_, kind) in zip(names, shapes, stored.values(), strict=True)
    ]
    with Writer(copy / "x.gguf", values, planned) as writer:
        for tensor, _ in stored.values():
            writer.write(tensor)
    ours = loaded(copy / "x.gguf").backbone.layers[0].moe.down
    assert float((ours - bank).square().mean().sqrt() / bank.std()) < 0.1
    other = loaded(copy / "x.gguf").backbone.layers[0].moe.gate_up
    assert torch.equal(other, loaded(plain).backbone.layers[0].moe.gate_up)


def test_declared_sizes_are_read_from_mlx_configs(tmp_path: Path) -> None:
    make_tiny(tmp_path / "mlx", form="mlx4")
    values = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert values["model_type"] == "fish_drama3"
    assert parse_model_config(values) == Checkpoint(tmp_path / "mlx").config
    assert logging.getLogger("rt_drama3").level == logging.NOTSET
