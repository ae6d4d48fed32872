"""MLX's affine quantisation against MLX."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.affine import BITS, GROUPS, dequantize_affine
from rt_drama3.checkpoint.formats.bits import CHUNK
from tests.checkpoint.formats.blocks import random_rows, rmse

mx = pytest.importorskip("mlx.core", reason="mlx has no build for this machine")

# Of standard deviation 1, group 64.
ERRORS = {3: 0.1908, 4: 0.0911, 5: 0.0442, 6: 0.0218, 8: 0.0054}


def quantized(x: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    parts = mx.quantize(mx.array(x.numpy()), group_size=group, bits=bits)
    weight, scales, biases = (torch.from_numpy(np.array(part)) for part in parts)
    assert weight.dtype == torch.uint32
    return weight, scales, biases


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Bit for bit where mlx rounds products before it adds; elsewhere it may not."""
    exact = platform.machine() in ("x86_64", "AMD64")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0 if exact else 1e-5)


def read_by_mlx(weight: Tensor, scales: Tensor, biases: Tensor, bits: int, group: int) -> Tensor:
    parts = (mx.array(part.numpy()) for part in (weight, scales, biases))
    return torch.from_numpy(np.array(mx.dequantize(*parts, group_size=group, bits=bits)))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group", GROUPS)
def test_equal_to_mlx(bits: int, group: int) -> None:
    x = random_rows("gauss", 64, 512)
    parts = quantized(x, bits, group)
    ours = dequantize_affine(*parts, bits)
    assert_same(ours, read_by_mlx(*parts, bits, group))
    signed = parts[0].view(torch.int32)
    assert torch.equal(dequantize_affine(signed, *parts[1:], bits), ours)


@pytest.mark.parametrize("bits", ERRORS)
def test_error(bits: int) -> None:
    x = random_rows("gauss", 64, 2048)
    error = rmse(x, dequantize_affine(*quantized(x, bits, 64), bits))
    assert error == pytest.approx(ERRORS[bits], rel=0.02)


@pytest.mark.parametrize("bits", BITS)
def test_any_bits(bits: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(0, 256, (8, 64 * bits), dtype=torch.uint8, generator=generator)
    weight = weight.view(torch.uint32)
    scales, biases = torch.randn(2, 8, 8, generator=generator)
    ours = dequantize_affine(weight, scales, biases, bits)
    assert_same(ours, read_by_mlx(weight, scales, biases, bits, 64))


def test_bfloat16_scales_and_experts() -> None:
    """Stacks of experts; the arithmetic is float32, whatever the scales are stored in."""
    weight, scales, biases = quantized(random_rows("gauss", 32, 256), 4, 64)
    scales, biases = scales.bfloat16(), biases.bfloat16()
    expected = read_by_mlx(weight, scales.float(), biases.float(), 4, 64).view(4, 8, 256)
    weight, scales, biases = (part.view(4, 8, -1) for part in (weight, scales, biases))
    ours = dequantize_affine(weight, scales, biases, 4)
    assert_same(ours, expected)
    half = dequantize_affine(weight, scales, biases, 4, torch.bfloat16)
    assert torch.equal(half, ours.bfloat16())


def test_more_rows_than_a_chunk() -> None:
    parts = quantized(random_rows("gauss", CHUNK // 256 + 3, 256), 3, 32)
    assert_same(dequantize_affine(*parts, 3), read_by_mlx(*parts, 3, 32))


def test_shapes_that_do_not_fit() -> None:
    weight, scales = torch.zeros(2, 32, dtype=torch.int32), torch.ones(2, 4)
    assert dequantize_affine(weight, scales, scales, 4).shape == (2, 256)
    with pytest.raises(ValueError, match="bits, not 7"):
        dequantize_affine(weight, scales, scales, 7)
    with pytest.raises(ValueError, match="a group is none of"):
        dequantize_affine(weight, scales, scales, 3)
    with pytest.raises(ValueError, match="do not belong together"):
        dequantize_affine(weight, scales, scales[:1], 4)
