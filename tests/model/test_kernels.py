"""The Triton kernels: interpreted on the CPU, compiled ahead of time, and on a GPU where one is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need Triton (in the test extra on x86-64 Linux)")
if sys.platform != "linux":
    pytest.skip("Triton is tested on Linux", allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rt_drama3.model.kernels import attention, moe, moe_launch
from tests.model import kernel_cases

ROOT = Path(__file__).parents[2]
# The official checkpoint's sizes.
DIM, FFN, EXPERTS, TOP, HEADS, KV_HEADS, HEAD_DIM = 2048, 512, 256, 8, 16, 2, 256


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str | None]:
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        pytest.skip("the interpreter before Triton 3.7 does not know today's NumPy")
    result = subprocess.run(
        [sys.executable, "-m", kernel_cases.__name__],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    errors: dict[str, str | None] = json.loads(result.stdout)
    assert set(errors) == set(kernel_cases.CASES)
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("name", kernel_cases.CASES)
def test_interpreted_kernels_agree_with_pytorch(
    interpreted: dict[str, str | None], name: str
) -> None:
    error = interpreted[name]
    assert error is None, error


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", kernel_cases.CASES)
def test_kernels_agree_with_pytorch_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    kernel_cases.CASES[name](torch.device("cuda"), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "many"), [(1, False), (8, False), (64, True), (600, True)])
def test_official_sizes_on_a_gpu(kind: torch.dtype, rows: int, many: bool) -> None:
    kernel_cases.check_experts(
        torch.device("cuda"), torch.bfloat16, max(rows, 2), kind, DIM, FFN, 32, TOP, many
    )


class Compiled:
    """A kernel compiled for a device that is not here, and what it takes."""

    def __init__(
        self,
        kernel: Any,
        signature: dict[str, str],
        constants: dict[str, Any],
        capability: int,
        aligned: tuple[str, ...] = (),
    ) -> None:
        options = {k: constants.pop(k) for k in ("num_warps", "num_stages") if k in constants}
        names = kernel.arg_names
        types = {name: signature.get(name, "constexpr") for name in names}
        exact = [n for n in names if types[n].startswith("*") or n in aligned]
        source = ASTSource(
            fn=kernel,
            signature=types,
            constexprs=constants,
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in exact},
        )
        target = GPUTarget("cuda", capability, 32)
        compiled = triton.compile(source, target=target, options=options)
        self.cubin: bytes = compiled.asm["cubin"]
        self.shared: int = compiled.metadata.shared

    def stack(self, folder: Path) -> int:
        """Bytes of registers that spill into local memory."""
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        found = str(tool) if tool.exists() else shutil.which("cuobjdump")
        if found is None:
            pytest.skip("there is no cuobjdump")
        path = folder / "kernel.cubin"
        path.write_bytes(self.cubin)
        text = subprocess.run(
            [found, "-res-usage", str(path)], capture_output=True, text=True, check=True
        ).stdout
        match = re.search(r"STACK:(\d+)", text)
        assert match, text
        return int(match[1])


def compile_all(
    capability: int, weight: str, activation: str = "bf16"
) -> dict[str, tuple[Compiled, ...]]:
    """Every kernel at the official sizes, with the tiles that are used on the device."""
    bytes_of = {"fp8e4nv": 1, "u8": 1, "bf16": 2, "fp32": 4}
    size, wide, large = bytes_of[weight], activation == "fp32", capability in (90, 100)
    x, w = f"*{activation}", f"*{weight}"
    scaled = size == 1
    sizes = {"DIM": DIM, "FFN": FFN, "SCALED": scaled}
    routed = {"chosen": "*i32", "weights": "*fp32", "shared": "*fp32"}
    members = {"members": "*i32", "counts": "*i32", "rows": "i32"}
    pieces = {"parts": "*fp32", "peaks": "*fp32", "sums": "*fp32", "position": "*i64"}
    pieces |= {"length": "i32", "pieces": "i32"}
    rows = attention.piece_rows(bytes_of[activation])
    cached = {"SIZE": HEAD_DIM, "BLOCK_D": HEAD_DIM, "ROWS": rows, "num_warps": 4, "num_stages": 1}

    def experts(kernel: Any, signature: dict[str, str], constants: dict[str, Any]) -> Compiled:
        types = {"weight": w, "scale": "*fp32", **signature}
        return Compiled(kernel, types, sizes | constants, capability)

    def many(pairs: int) -> tuple[Compiled, ...]:
        tiles = moe_launch.many_tiles(pairs, EXPERTS, wide, size, large)
        return (
            experts(
                moe.expand_many_kernel,
                {"x": x, "hidden": x, **members},
                tiles | {"TOP": TOP},
            ),
            experts(
                moe.contract_many_kernel,
                {"hidden": x, "share": "*fp32", "products": x, **members},
                dict(tiles),
            ),
        )

    return {
        "few": (
            experts(
                moe.expand_few_kernel,
                {"x": x, "chosen": "*i32", "hidden": "*fp32"},
                moe_launch.few_tiles(DIM, size) | {"TOP": TOP},
            ),
            experts(
                moe.contract_few_kernel,
                {"hidden": "*fp32", "chosen": "*i32", "share": "*fp32", "products": "*fp32"},
                moe_launch.few_tiles(FFN, size),
            ),
        ),
        "many, few each": many(512),
        "many": many(4096),
        "many, many each": many(65536),
        "route": (
            Compiled(
                moe.route_kernel,
                {"logits": x, **routed},
                {"EXPERTS": EXPERTS, "TOP": TOP, "BLOCK": 256, "SLOTS": 8, "num_warps": 1},
                capability,
            ),
            Compiled(
                moe.collect_kernel,
                {"chosen": "*i32", "pairs": "i32", **members},
                {"BLOCK": 1024},
                capability,
            ),
        ),
        "attention": (
            Compiled(
                attention.attend_kernel,
                {"q": x, "keys": x, "values": x, "stream_stride": "i32", "head_stride": "i32"}
                | {"scale": "fp32"}
                | pieces,
                {"KV_HEADS": KV_HEADS, "GROUP": HEADS // KV_HEADS, "BLOCK_G": 16} | cached,
                capability,
                aligned=("stream_stride", "head_stride"),
            ),
            Compiled(
                attention.merge_kernel,
                {"out": x} | pieces,
                {"HEADS": HEADS, "BLOCK_P": 16} | cached,
                capability,
            ),
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "weight", "activation", "shared_memory"),
    [
        (80, "u8", "bf16", 163),  # A100: FP8 read as bytes
        (89, "fp8e4nv", "bf16", 99),
        (90, "fp8e4nv", "bf16", 227),  # H100, H200
        (90, "bf16", "bf16", 227),
        (90, "fp32", "fp32", 227),
        (100, "fp8e4nv", "bf16", 227),
        (120, "fp8e4nv", "bf16", 99),
        (120, "bf16", "bf16", 99),
    ],
)
def test_kernels_fit_their_devices(
    capability: int, weight: str, activation: str, shared_memory: int, tmp_path: Path
) -> None:
    """They compile, keep everything in registers, and several fit on a multiprocessor."""
    for name, kernels in compile_all(capability, weight, activation).items():
        for number, kernel in enumerate(kernels):
            assert kernel.stack(tmp_path) == 0, (name, number)
            assert kernel.shared <= shared_memory * 1024, (name, number)


def test_tiles_divide_the_blocks_of_factors() -> None:
    for itemsize in (1, 2, 4):
        for width in (16, 96, 128, 512, 2048, 6144):
            tiles = moe_launch.few_tiles(width, itemsize)
            assert 128 % tiles["BLOCK_N"] == 0
            assert tiles["BLOCK_N"] * tiles["BLOCK_K"] * itemsize <= 32768
        for pairs in (17, 512, 4096, 65536):
            for wide in (False, True):
                tiles = moe_launch.many_tiles(pairs, 256, wide, itemsize, True)
                assert 128 % tiles["BLOCK_N"] == 0
                assert 128 % tiles["BLOCK_K"] == 0
                assert tiles["BLOCK_M"] in (16, 32, 64)
