"""Importance matrices: read, checked, and used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rt_drama3.checkpoint.prepare import write_importance
from rt_drama3.errors import CheckpointError
from tests.checkpoint.prepare.packages import LAYERS, packed, source
from tests.checkpoint.rounded import audio_cpp

BANK = f"{LAYERS}.0.mlp.experts.gate_proj.weight"
MATRIX = f"{LAYERS}.1.self_attn.o_proj.weight"


def some(*shape: int) -> Tensor:
    """Mean squares that differ by orders of magnitude."""
    return (2 * torch.randn(*shape, generator=torch.Generator().manual_seed(7))).exp()


def test_the_error_that_counts_falls(tmp_path: Path) -> None:
    path, out = tmp_path / "importance.safetensors", tmp_path / "package.gguf"
    bank = some(4, 256)
    bank[2] = 0  # never chosen
    write_importance(path, {BANK: bank, MATRIX: some(128)})
    types = {"experts": "q4_0", "backbone": "q4_0", "force": True}
    with_it = {t.name: t for t in packed(out, importance=path, **types).tensors}
    counted = out.read_bytes()
    plain = {t.name: t for t in packed(out, **types).tensors}
    for name in (BANK, MATRIX):
        assert with_it[name].important_rmse is not None
        assert plain[name].important_rmse is None
        assert with_it[name].rmse > plain[name].rmse
        assert with_it[name].important_rmse < 0.9 * plain[name].rmse
    other = BANK.replace("gate", "up")
    assert with_it[other] == plain[other]
    assert counted != out.read_bytes()


def test_each_expert_has_its_own(tmp_path: Path) -> None:
    """Those that stay, in a pruned model; one that was never chosen counts all columns alike."""
    path, kept = tmp_path / "importance.safetensors", tmp_path / "kept.json"
    bank = torch.zeros(4, 256)
    bank[3] = some(256)
    write_importance(path, {BANK: bank})
    kept.write_text("[[1, 3], [1, 3]]")
    pytest.importorskip("gguf")
    packed(tmp_path / "with.gguf", experts="q4_0", prune=kept, importance=path)
    packed(tmp_path / "without.gguf", experts="q4_0", prune=kept)
    ours, theirs = (audio_cpp(tmp_path / f"{name}.gguf") for name in ("with", "without"))
    same = {name for name in ours if torch.equal(ours[name], theirs[name])}
    assert set(ours) - same == {BANK.replace("gate_proj", "1.gate_proj")}


def test_matrices_without_importance_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "importance.safetensors"
    write_importance(path, {BANK: some(4, 256)})
    report = packed(tmp_path / "package.gguf", importance=path)
    quantised = [t for t in report.tensors if t.type == "q8_0"]
    assert any(f"{len(quantised) - 1} matrices have no importance" in n for n in report.notes)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (BANK, some(3, 256), r"\[3, 256\], but float32 \[4, 256\] is needed"),
        (MATRIX, some(256), r"\[256\], but float32 \[128\] is needed"),
        (MATRIX, some(128).half(), "float16"),
        (f"{LAYERS}.7.mlp.experts.gate_proj.weight", some(4, 256), "not a matrix of this model"),
        (f"{LAYERS}.0.input_layernorm.weight", some(256), "not a matrix of this model"),
        (MATRIX, -some(128), "negative or not finite"),
        (MATRIX, some(128) / 0, "negative or not finite"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, values: Tensor, message: str) -> None:
    path = tmp_path / "importance.safetensors"
    metadata = {"format": "rt-drama3.importance", "version": "1"}
    save_file({name: values}, path, metadata=metadata)
    with pytest.raises(CheckpointError, match=message):
        packed(tmp_path / "package.gguf", importance=path)


def test_another_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not an importance matrix: its metadata"):
        packed(tmp_path / "package.gguf", importance=source() / "model.safetensors")
    (tmp_path / "text").write_text("columns: 1")
    for path in (tmp_path / "text", tmp_path / "missing"):
        with pytest.raises(CheckpointError, match="cannot be read as an importance matrix"):
            packed(tmp_path / "package.gguf", importance=path)
