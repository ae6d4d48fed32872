"""Matrices that stay as a checkpoint stores them: their bytes, their place, and who multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rt_drama3 import loading
from rt_drama3.checkpoint import load, load_model, make_tiny, read_config
from rt_drama3.checkpoint.opened import Checkpoint
from rt_drama3.checkpoint.residence import AS_STORED, residence
from rt_drama3.checkpoint.stored import Stored
from rt_drama3.checkpoint.tensors import Entry, TensorReader
from rt_drama3.errors import CheckpointError, ConfigError
from rt_drama3.model import SpeechModel
from rt_drama3.model.kernels import native, registry
from rt_drama3.model.kernels.registry import Kernel
from rt_drama3.model.ops import linear
from rt_drama3.model.weights import Rows, Weight, matrices
from rt_drama3.system.machine import Memory
from tests.small import needs_compiler

FORMS = ("gguf-q4_k", "int4", "nvfp4", "mlx3", "comfy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint in each of the forms."""
    folder = tmp_path_factory.mktemp("kept")
    for form in FORMS:
        make_tiny(folder / form, form=form)
    return folder


def loaded(directory: Path, *, keep: bool | None = None, mapped: bool = False) -> SpeechModel:
    return load_model(
        directory, read_config(directory), "cpu", torch.float32, keep=keep, mapped=mapped
    )


def weights(model: SpeechModel) -> Iterator[tuple[str, Weight]]:
    for name, matrix in matrices(model):
        if isinstance(matrix, Weight | Rows):
            for part in matrix.parts():
                if isinstance(part, Weight):
                    yield name, part


def product(model: SpeechModel, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, model.config.backbone.hidden_size, generator=generator)
    layer = model.backbone.layers[0]
    found: Tensor = layer.moe(x)
    return found


def test_bytes_are_those_of_the_file(folder: Path) -> None:
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(next((folder / "gguf-q4_k").glob("*.gguf")))
    names = reader.get_field("audiocpp.tensor_names").contents()
    stored = {
        name.partition("/")[2]: torch.from_numpy(tensor.data.copy())
        for name, tensor in zip(names, reader.tensors, strict=True)
    }
    moe = loaded(folder / "gguf-q4_k", keep=True).backbone.layers[1].moe
    prefix = "model.language_model.layers.1.mlp.experts"
    gate, up, down = (stored[f"{prefix}.{x}_proj.weight"] for x in ("gate", "up", "down"))
    assert torch.equal(moe.gate_up.data, torch.cat((gate, up), 1))
    assert torch.equal(moe.down.data, down)


def test_gptq_words_only_change_places(folder: Path) -> None:
    stored = load_file(folder / "int4" / "model.safetensors")
    down = loaded(folder / "int4", keep=True).backbone.layers[0].moe.down
    prefix = "model.language_model.layers.0.mlp.experts"
    for expert in range(4):
        base = f"{prefix}.{expert}.down_proj"
        assert torch.equal(down.data[expert], stored[f"{base}.qweight"].t())
        assert torch.equal(down.scales[expert], stored[f"{base}.scales"].t())


@pytest.mark.parametrize("form", FORMS)
def test_what_is_kept_is_never_read_as_numbers(
    form: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more than one matrix is in hand."""
    read = Stored.read
    seen: list[Stored] = []

    def watched(self: Stored, *rest: object) -> Tensor:
        if self.kept is not None:
            seen.append(self)
        return read(self, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Stored, "read", watched)
    model = loaded(folder / form, keep=True)
    assert dict(weights(model))
    # The folded tables of the tower, and columns that would divide blocks, are other numbers.
    assert {stored.parts[0].entry.name.split(".")[-2] for stored in seen} <= {
        "eh_proj",
        "semantic_embedding",
        "codebook_embedding",
    }


def test_one_product_per_expert_equals_the_expanded_model(folder: Path) -> None:
    for form in FORMS:
        kept, plain = loaded(folder / form, keep=True), loaded(folder / form)
        assert all(isinstance(m, torch.nn.Parameter) for _, m in matrices(plain))
        for rows in (1, 3, 20):
            torch.testing.assert_close(product(kept, rows), product(plain, rows))


@pytest.mark.parametrize("form", ["gguf-q4_k", "mlx3", "comfy"])
def test_experts_can_stay_mapped(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, names = TensorReader.read, set[str]()

    def watched(self: TensorReader, entry: Entry, *rest: Any) -> Tensor:
        names.add(entry.name)
        return read(self, entry, *rest)

    kept = loaded(folder / form, keep=True)
    monkeypatch.setattr(TensorReader, "read", watched)
    mapped = loaded(folder / form, keep=True, mapped=True)
    codes = ("weight", "gate_up_proj", "down_proj")
    banks = [n for n in names if ("experts" in n or "switch" in n) and n.endswith(codes)]
    assert not [name for name in banks if "shared" not in name]
    moe = mapped.backbone.layers[0].moe
    (file,) = (p for p in (folder / form).iterdir() if p.stat().st_size == _storage(moe.down))
    assert file.suffix in (".gguf", ".safetensors")
    assert len(moe.gate_up.parts()) == 2  # gate and up lie apart
    for rows in (1, 20):
        torch.testing.assert_close(product(mapped, rows), product(kept, rows))


def _storage(weight: Weight) -> int:
    return weight.data.untyped_storage().nbytes()


@needs_compiler
def test_experts_stay_mapped_where_memory_is_short(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
    monkeypatch.setattr(native, "load", native.load.__wrapped__)
    for module in (load, loading):
        monkeypatch.setattr(module, "LARGEST_COMPILED", 0)
    for free, mapped in ((1 << 40, False), (1 << 20, True)):
        monkeypatch.setattr(loading, "memory", partial(Memory, free=free))
        caplog.clear()
        model = loading.load_model(folder / "gguf-q4_k", device="cpu", dtype="float32").model
        down = model.backbone.layers[0].moe.down
        assert isinstance(down, Weight)
        assert (_storage(down) > down.data.nbytes) is mapped  # the whole file
        assert ("stay in their file" in caplog.text) is mapped


def test_experts_that_lie_apart_are_read(folder: Path) -> None:
    moe = loaded(folder / "int4", keep=True, mapped=True).backbone.layers[0].moe
    assert moe.down.data.is_contiguous()
    assert _storage(moe.down) == moe.down.data.nbytes


def test_experts_stay_mapped_on_a_cpu_alone(folder: Path) -> None:
    config = read_config(folder / "comfy")
    with pytest.raises(ConfigError, match="mapped on a CPU, not on cuda"):
        load_model(folder / "comfy", config, "cuda", torch.float32, mapped=True)


def test_a_kernel_takes_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loader keeps, and who multiplies, follows from what is registered."""
    calls: list[tuple[str, int | None]] = []

    def multiply(x: Tensor, weight: Weight, index: int | None) -> Tensor:
        calls.append((weight.format.name, index))
        return x @ torch.cat(list(weight.tiles(index))).T

    def experts(x: Tensor, chosen: Tensor, share: Tensor, gate_up: Weight, down: Weight) -> Tensor:
        calls.append(("experts", None))
        return x.new_zeros(*chosen.shape, x.shape[1])

    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
    monkeypatch.setattr(native, "load", lambda: True)
    monkeypatch.setattr(load, "LARGEST_COMPILED", 0)
    assert not dict(weights(loaded(folder / "mlx3")))
    registry.register("affine3", "cpu", Kernel(product=multiply))
    cpu = torch.device("cpu")
    assert registry.reads("affine3", cpu, "matrix")
    assert registry.reads("affine3", cpu, "experts")
    assert not registry.reads("affine3", cpu, "table")
    assert not registry.reads("affine3", torch.device("cuda"), "matrix")
    model, plain = loaded(folder / "mlx3"), loaded(folder / "mlx3", keep=False)
    assert {"head", "backbone.layers.0.moe.down"} <= dict(weights(model)).keys()
    x = torch.randn(2, model.config.backbone.hidden_size)
    torch.testing.assert_close(linear(x, model.head), linear(x, plain.head))
    assert calls.pop() == ("affine3", None)
    product(model, 1)
    assert any(index is not None for _, index in calls)
    registry.register("affine3", "cpu", Kernel(experts=experts))
    assert not registry.reads("affine3", cpu, "matrix")
    only = loaded(folder / "mlx3")
    assert {name.rpartition(".")[2] for name in dict(weights(only))} == {"gate_up", "down"}
    calls.clear()
    product(only, 3)
    assert calls == [("experts", None)]


def test_damage_of_kept_blocks_is_named(folder: Path, tmp_path: Path) -> None:
    source = folder / "gguf-q4_k"
    model = loaded(source, keep=True)
    (path,) = source.glob("*.gguf")
    data = bytearray(path.read_bytes())
    block = bytes(model.backbone.layers[0].moe.down.data[1, 3, :16].tolist())
    place = data.index(block)
    data[place + 3] |= 0x7C  # the exponent of the second scale
    (tmp_path / path.name).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"experts\.1\.down_proj.* scale is not a finite"):
        loaded(tmp_path / path.name, keep=True)


@pytest.mark.parametrize("form", FORMS)
def test_the_plan_is_what_happens(form: str, folder: Path) -> None:
    checkpoint = Checkpoint(folder / form)
    for keep in (True, False):
        model = loaded(folder / form, keep=keep)
        plan = residence(checkpoint, torch.device("cpu"), torch.float32, keep)
        assert sum(group.nbytes for group in plan.values()) == sum(
            p.nbytes for p in model.parameters()
        )
        held = sum(p.nbytes for _, weight in weights(model) for p in weight.planes())
        assert sum(group.resident[AS_STORED] for group in plan.values()) == held
    assert plan["experts"].resident.keys() == {"expanded to float32"}
    assert all(group.stored.total() > 0 for name, group in plan.items() if name != "codec")
