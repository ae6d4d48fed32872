"""The CPU's kernels of stored weights: exact integers, the stated error, and who may use them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rt_drama3.checkpoint import kept, load_model, make_tiny
from rt_drama3.checkpoint import load as loading
from rt_drama3.checkpoint.formats import FORMATS, quantize
from rt_drama3.checkpoint.formats.fp8 import quantize_fp8
from rt_drama3.checkpoint.opened import Checkpoint
from rt_drama3.graph_step import FrameStep
from rt_drama3.model.kernels import native, registry
from rt_drama3.model.weights import FP8, Weight, is_plain, matrices
from rt_drama3.system.compiling import compiler
from tests.small import needs_compiler

ROWS, COLUMNS = 150, 512  # the last part of rows, and of FP8 blocks, is not a whole one


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Compiled into a cache of their own, and unregistered afterwards."""
    if compiler() is None:
        yield
        return
    before = dict(registry._KERNELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RT_DRAMA3_CACHE", str(tmp_path_factory.mktemp("cache")))
        native.load.cache_clear()
        assert native.load()
        yield
    native.load.cache_clear()
    registry._KERNELS.clear()
    registry._KERNELS.update(before)


def stored(name: str, stack: int = 0) -> Weight:
    """A matrix of random numbers, or a stack of them."""
    shape = (stack, ROWS, COLUMNS) if stack else (ROWS, COLUMNS)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    if name == "fp8":
        codes, scales = quantize_fp8(values.view(-1, ROWS, COLUMNS)[0])
        return Weight(FP8, (ROWS, COLUMNS), (codes, scales))
    return Weight(kept._blocks(name), shape, (quantize(values, FORMATS[name]),))


def exact(weight: Weight, x: Tensor, index: int | None = None) -> Tensor:
    whole = torch.cat(list(weight.tiles(index))).double()
    return x.double() @ whole.T


def worst(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def whole_numbers(rows: int) -> Tensor:
    """What int8 holds exactly: the largest of every 32 is 127."""
    x = torch.randint(-127, 128, (rows, COLUMNS), generator=torch.Generator().manual_seed(4))
    x[:, ::32] = 127
    return x.float()


@needs_compiler
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", [*native.BLOCK_FORMATS, "fp8"])
def test_products_are_those_of_the_dequantised_weights(name: str, threads: int) -> None:
    weight, before = stored(name), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for rows in (1, 2, 3, 4, 7, native.FEW_ROWS, native.FEW_ROWS + 1):
            x = whole_numbers(rows)
            assert worst(weight.product(x), exact(weight, x)) < 1e-6
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("name", [*native.BLOCK_FORMATS, "fp8"])
def test_the_error_of_int8_rows_is_as_stated(name: str) -> None:
    x = torch.randn(4, COLUMNS, generator=torch.Generator().manual_seed(5))
    weight = stored(name)
    error = worst(weight.product(x), exact(weight, x))
    assert error < (1e-6 if name == "fp8" else 0.008)


@needs_compiler
@pytest.mark.parametrize("name", ["q4_k", "fp8"])
def test_a_row_does_not_depend_on_the_others(name: str) -> None:
    x = torch.randn(native.FEW_ROWS, COLUMNS)
    weight = stored(name)
    together = weight.product(x)
    for number, row in enumerate(x):
        assert torch.equal(weight.product(row[None])[0], together[number])


@needs_compiler
def test_a_matrix_of_a_stack() -> None:
    weight, x = stored("q6_k", stack=3), whole_numbers(2)
    for index in range(3):
        assert worst(weight.product(x, index), exact(weight, x, index)) < 1e-6


@needs_compiler
def test_rows_in_bfloat16() -> None:
    weight, x = stored("q8_0"), whole_numbers(2).bfloat16()
    found = weight.product(x)
    assert found.dtype == torch.bfloat16
    assert worst(found, exact(weight, x)) < 0.005


@needs_compiler
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["q4_0", "q2_k", "fp8"])
def test_values_that_are_not_finite_are_not_hidden(name: str, value: float) -> None:
    x = torch.ones(2, COLUMNS)
    x[1, 77] = value
    found = stored(name).product(x)
    assert found[0].isfinite().all()
    assert not found[1].isfinite().any()


@needs_compiler
def test_rows_of_zeros() -> None:
    assert not stored("q4_k").product(torch.zeros(1, COLUMNS)).any()


@needs_compiler
def test_a_damaged_library_is_compiled_again() -> None:
    path = native.library_path()
    whole = path.read_bytes()
    path.unlink()  # a new file: the library that is loaded must keep its pages
    path.write_bytes(whole[:1000])
    native._opened(path)
    assert path.stat().st_size > 1000


def test_without_a_compiler_nothing_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    monkeypatch.setattr(registry, "_KERNELS", {})
    assert not native.load.__wrapped__()
    assert not registry.reads("q4_k", torch.device("cpu"), "matrix")
    assert "no g++ or clang++ found" in caplog.text


@needs_compiler
def test_a_large_model_stays_as_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says, with int8 rows, nearly what the dequantised one says; smaller ones are compiled."""
    make_tiny(tmp_path / "tiny", form="gguf-q4_k")
    checkpoint = Checkpoint(tmp_path / "tiny")
    load = partial(load_model, checkpoint, checkpoint.config, "cpu", torch.float32)
    assert all(is_plain(matrix) for _, matrix in matrices(load()))
    monkeypatch.setattr(loading, "LARGEST_COMPILED", 0)
    model, plain = load(), load(keep=False)
    kept = {name for name, matrix in matrices(model) if not is_plain(matrix)}
    assert {"head", "backbone.layers.0.moe.gate_up"} <= kept
    rows = torch.zeros(9, 1 + model.config.num_codebooks, dtype=torch.int64)
    hidden = []
    for one in (model, plain):
        step = FrameStep(one, 1, 64, 8)
        with torch.inference_mode():
            one.prefill(rows, step.state, 0)
        hidden.append(step.state.hidden[0].clone())
    assert 0 < worst(hidden[0], hidden[1].double()) < 0.05
