"""``inspect`` describes what is there, even when much is missing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rt_drama3.checkpoint import inspect, make_tiny, resolve
from tests.checkpoint.conftest import edit_json, read_tensors, rewrite
from tests.checkpoint.test_load import KEPT, drop_experts

SECOND = "model-00002-of-00002.safetensors"


def test_tiny(tiny_checkpoint: Path) -> None:
    info = inspect(tiny_checkpoint)
    tensors = read_tensors(tiny_checkpoint)
    assert info.problems == info.missing == info.unexpected == info.misfits == []
    scales = [t for name, t in tensors.items() if name.endswith("scale_inv")]
    assert info.parameters == sum(t.numel() for t in tensors.values()) - sum(map(len, scales))
    assert sum(info.family_bytes.values()) == sum(t.nbytes for t in tensors.values())
    assert info.dtype_bytes["F32"] == sum(t.nbytes for t in scales)
    assert sum(info.files.values()) == len(tensors)
    assert info.candidates == 65
    assert info.config is not None
    assert info.config.backbone.experts == (8, 8, 8, 8)
    assert info.codec is not None
    assert info.codec.encoder
    assert info.licence == "CC0-1.0"
    text = dict(info.rows())
    assert text["backbone"] == "4 layers (3 linear attention, 1 full attention), width 128"
    assert text["codebooks"] == "4 of 64 codes"
    assert text["experts"] == "8 a layer, 2 per token, FP8"
    assert text["references"] == "as audio or codes"


def test_nano() -> None:
    info = inspect(resolve("nano"))
    assert info.problems == []
    assert info.codec is not None
    assert info.codec.encoder
    assert info.fixed_voice
    assert info.sampling is not None
    assert info.sampling.head_temperature == 0.4
    assert dict(info.rows())["references"].startswith("ignored")


def test_no_weight_is_read(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise AssertionError

    monkeypatch.setattr("rt_drama3.checkpoint.tensors.TensorReader.read", fail)
    assert inspect(tiny_checkpoint).problems == []


def test_it_can_be_written_as_json(tiny_checkpoint: Path) -> None:
    text = json.dumps(dataclasses.asdict(inspect(tiny_checkpoint)), default=str)
    assert json.loads(text)["config"]["tower"]["num_codebooks"] == 4


def test_pruned_layers(tiny: Path) -> None:
    rewrite(tiny, drop_experts(KEPT, rename=True))
    info = inspect(tiny)
    assert info.problems == []
    assert dict(info.rows())["experts of each layer"] == "3 8 2 5"


def test_decode_only_codec(tmp_path: Path) -> None:
    make_tiny(tmp_path / "tiny", codec="decode")
    info = inspect(tmp_path / "tiny")
    assert info.problems == []
    assert dict(info.rows())["references"].startswith("as codes only")


def _remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def _codec(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        state = torch.load(folder / "codec.pth", weights_only=True)
        change(state)
        torch.save(state, folder / "codec.pth")

    return damage


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (_remove("config.json"), "config.json is missing"),
        (_remove(SECOND), SECOND),
        (_remove("codec.pth"), "codec.pth is missing"),
        (_remove("tokenizer.json"), "tokenizer.json is missing"),
        (_remove("codec_config.json"), "codebooks"),
        (_write("config.json", "{}"), "text_config"),
        (_write("generation_config.json", '{"temperature": -1}'), "temperature"),
        (_write("model.safetensors.index.json", "{"), "JSON"),
        (_codec(lambda s: s.pop("decoder.model.0.conv.bias")), "decoder.model.0.conv.bias"),
        (_codec(lambda s: s.update(more=torch.zeros(1))), "codec.pth: 1 unexpected tensors: more"),
        (
            _codec(lambda s: s.update({"decoder.model.0.conv.bias": torch.zeros(1)})),
            "decoder.model.0.conv.bias has shape [1] instead of [64]",
        ),
    ],
)
def test_broken_parts_are_reported(tiny: Path, damage: Callable[[Path], object], part: str) -> None:
    damage(tiny)
    info = inspect(tiny)
    assert any(part in problem for problem in info.problems), info.problems
    assert list(info.rows())


def test_missing_and_unexpected_tensors_are_listed(tiny: Path) -> None:
    gone = "model.language_model.layers.2.mlp.experts.0.up_proj.weight"

    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[gone]
        tensors["mtp.fc.weight"] = torch.zeros(3)
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:7].clone()

    rewrite(tiny, change)
    info = inspect(tiny)
    assert info.missing == [gone]
    assert info.unexpected == ["mtp.fc.weight"]
    assert [m.split()[0] for m in info.misfits] == ["lm_head.weight"]
    assert len(info.problems) == 3
    assert info.family_bytes["not in the inventory"] == 12


def test_an_empty_folder(tmp_path: Path) -> None:
    info = inspect(tmp_path)
    assert len(info.problems) == 3  # weights, config, codec
    assert info.parameters == 0


@pytest.mark.parametrize(
    ("name", "text", "licence"),
    [
        ("LICENSE", "\n# FISH AUDIO RESEARCH LICENSE\nmore", "FISH AUDIO RESEARCH LICENSE"),
        ("README.md", "---\nlicense: other\nlicense_name: fish\n---\n", "other / fish"),
        ("README.md", "nothing", None),
        ("NOTICE", "of others", "see NOTICE"),
    ],
)
def test_licence(tmp_path: Path, name: str, text: str, licence: str | None) -> None:
    (tmp_path / name).write_text(text)
    assert inspect(tmp_path).licence == licence


def test_a_folder_of_licences_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "LICENSES").mkdir()
    assert inspect(tmp_path).licence is None


@pytest.mark.parametrize("kept", [3, "[" * 100_000])
def test_unreadable_kept_list_is_a_problem(tiny: Path, kept: object) -> None:
    index = tiny / "model.safetensors.index.json"
    edit_json(index, lambda values: values["metadata"].update(drama_experts=kept))
    info = inspect(tiny)
    assert any("drama_experts" in problem for problem in info.problems)
    assert info.missing == []
