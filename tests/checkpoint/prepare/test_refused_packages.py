"""What cannot become a package is refused before anything is written, with what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rt_drama3.checkpoint import Checkpoint, make_tiny
from rt_drama3.errors import CheckpointError, ConfigError
from tests.checkpoint.conftest import rewrite
from tests.checkpoint.prepare.packages import SIZES, packed, source


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": "q7_k"}, "experts: 'q7_k' is not one of q2_k, q3_k"),
        ({"tower": "f32"}, "tower: 'f32' is not one of"),
        ({"experts": "fp8"}, "experts: a GGUF file cannot hold fp8.* Use q8_0"),
        ({"embedding": "fp8"}, "embedding: a GGUF file cannot hold fp8"),
        ({"experts": "keep"}, r"layers\.0.* is stored as F8_E4M3, .* such as --experts q8_0"),
        ({"head": 100}, "head is 100 rows; it can have the 65 .* or all 384"),
    ],
)
def test_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        packed(tmp_path / "package.gguf", **options)
    assert list(tmp_path.iterdir()) == []


def test_int4_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is stored as INT4, .* such as --backbone q8_0"):
        packed(tmp_path / "package.gguf", source("int4"), backbone="keep")


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([[0], [1], [2]], "lists the kept experts of 3 layers, but the model has 2"),
        ({"0": [0]}, "kept experts of 1 layers, but the model has 2"),
        ([[0, 1], [4]], r"keeps expert 4 of layer 1, but the model has 4 there \(0 to 3\)"),
        ([[0, 0], [1]], "non-empty list of different ids"),
        ([[], [1]], "non-empty list of different ids"),
        ("all", "cannot be used"),
    ],
)
def test_kept_experts(kept: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(kept))
    with pytest.raises(CheckpointError, match=message) as error:
        packed(tmp_path / "package.gguf", prune=path)
    assert str(path) in str(error.value)


def test_places(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"give a name that ends in \.gguf"):
        packed(tmp_path / "package.safetensors")
    with pytest.raises(ConfigError, match="is not a folder; create it first"):
        packed(tmp_path / "missing" / "package.gguf")
    packed(tmp_path / "package.gguf")
    with pytest.raises(ConfigError, match="is a file of the source"):
        packed(tmp_path / "package.gguf", tmp_path / "package.gguf", force=True)


def test_a_small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1000))
    with pytest.raises(CheckpointError, match=r"needs 0\.\d\d GB more, but .* has 0\.00 GB free"):
        packed(tmp_path / "package.gguf")
    assert not (tmp_path / "package.gguf.part").exists()


def test_a_licence_is_not_dropped(tmp_path: Path) -> None:
    place = Path(shutil.copytree(source(), tmp_path / "source"))
    licence = tmp_path / "text"
    licence.write_text("Do what is right.\n")
    with pytest.raises(ConfigError, match="has LICENSE, which the package carries; omit it"):
        packed(tmp_path / "package.gguf", place, licence=licence)
    (place / "LICENSE").unlink()
    with pytest.raises(CheckpointError, match=r"must carry the licence of its weights.* --license"):
        packed(tmp_path / "package.gguf", place)
    packed(tmp_path / "package.gguf", place, licence=licence)
    assert Checkpoint(tmp_path / "package.gguf").files.read("LICENSE") == licence.read_bytes()


def broken(name: str, change: Callable[[torch.Tensor], object]) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        rewrite(place, lambda tensors: change(tensors[name]))

    return damage


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (broken("lm_head.weight", lambda t: t[3].fill_(torch.nan)), {}, "lm_head.weight: The wei"),
        (
            broken("lm_head.weight", lambda t: t[3].fill_(1e6)),
            {"backbone": "f16"},
            "lm_head.weight: A weight is .* Use bf16",
        ),
        (
            lambda place: rewrite(place, lambda tensors: tensors.pop("lm_head.weight")),
            {},
            "lacks the tensor lm_head.weight",
        ),
        (lambda place: (place / "codec.pth").unlink(), {}, "has no codec.* --codec"),
        (lambda place: (place / "tokenizer.json").unlink(), {}, "tokenizer.json is missing"),
    ],
)
def test_sources(
    damage: Callable[[Path], object], options: dict[str, str], message: str, tmp_path: Path
) -> None:
    place = tmp_path / "source"
    make_tiny(place, settings=SIZES, shards=None)
    damage(place)
    with pytest.raises(CheckpointError, match=message):
        packed(tmp_path / "package.gguf", place, **options)
    assert not (tmp_path / "package.gguf").exists()
