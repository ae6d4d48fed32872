"""NVFP4 against a restatement of its layout, element by element."""

from __future__ import annotations

import struct

import pytest
import torch
from torch import Tensor

from rt_drama3.checkpoint.formats import FORMATS, dequantize, quantize
from rt_drama3.checkpoint.formats.bits import CHUNK
from rt_drama3.checkpoint.formats.nvfp4 import dequantize_nvfp4, quantize_nvfp4
from tests.checkpoint.formats.blocks import random_rows, rmse

FACTOR = torch.tensor(0.0123456789).item()
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def float_of(nibble: int) -> float:
    return (-1.0 if nibble & 8 else 1.0) * MAGNITUDES[nibble & 7]


def e4m3(code: int) -> float:
    """A positive e4m3 number: 4 bits of exponent with bias 7, 3 bits of mantissa."""
    exponent, mantissa = code >> 3, code & 7
    return mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def plain(packed: Tensor, scale: Tensor, factor: float, divide: bool, high_first: bool) -> Tensor:
    codes, scales = packed.tolist(), scale.view(torch.uint8).tolist()
    out = torch.empty(packed.shape[0], 2 * packed.shape[1], dtype=torch.float64)
    for n in range(out.shape[0]):
        for block in range(out.shape[1] // 16):
            step = e4m3(scales[n][block])
            for k in range(16 * block, 16 * block + 16):
                high = (k % 2 == 1) != high_first
                nibble = codes[n][k // 2] >> (4 if high else 0) & 15
                value = single(float_of(nibble) * step)
                out[n, k] = single(value / factor if divide else value * factor)
    return out.float()


def single(value: float) -> float:
    """Rounded to float32: what one operation on float32 gives, done in float64 and rounded."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def stored(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    packed = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=generator)
    scale = torch.randint(0, 127, (rows, columns // 16), dtype=torch.uint8, generator=generator)
    return packed, scale.view(torch.float8_e4m3fn)


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("high_first", [False, True])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_dequantize(divide: bool, high_first: bool, shape: tuple[int, ...]) -> None:
    packed, scale = stored(24, 64)
    factor = torch.full(shape, FACTOR)
    ours = dequantize_nvfp4(packed, scale, factor, divide=divide, high_first=high_first)
    assert torch.equal(ours, plain(packed, scale, FACTOR, divide, high_first))


def test_every_scale() -> None:
    packed = torch.tensor([17 * nibble for nibble in range(16)], dtype=torch.uint8)
    packed = packed.view(2, 8).repeat(1, 2).repeat(127, 1)  # all codes, low and high
    scale = torch.arange(127, dtype=torch.uint8).repeat_interleave(2)[:, None].repeat(1, 2)
    scale = scale.view(torch.float8_e4m3fn)
    ours = dequantize_nvfp4(packed, scale, torch.tensor(1.0))
    assert torch.equal(ours, plain(packed, scale, 1.0, False, False))


def test_more_rows_than_a_chunk() -> None:
    packed, scale = stored(CHUNK // 64 + 5, 64)
    whole = dequantize_nvfp4(packed, scale, torch.tensor(0.5))
    assert torch.equal(whole[-7:], dequantize_nvfp4(packed[-7:], scale[-7:], torch.tensor(0.5)))
    half = dequantize_nvfp4(packed, scale, torch.tensor(0.5), dtype=torch.bfloat16)
    assert torch.equal(half, whole.bfloat16())


@pytest.mark.parametrize(("kind", "reference"), [("gauss", 0.0950), ("t4", 0.0920)])
def test_what_we_write(kind: str, reference: float) -> None:
    x = random_rows(kind)
    packed, scale, factor = quantize_nvfp4(x)
    assert (packed.dtype, scale.dtype, factor.dtype) == (
        torch.uint8,
        torch.float8_e4m3fn,
        torch.float32,
    )
    assert factor == x.abs().max() / (6 * 448)
    assert rmse(x, dequantize_nvfp4(packed, scale, factor)) <= 1.02 * reference


def test_codes_are_the_nearest() -> None:
    """For each weight no other code is nearer, with the scale that was chosen."""
    x = random_rows("gauss", 8, 256)
    packed, scale, factor = quantize_nvfp4(x)
    ours = dequantize_nvfp4(packed, scale, factor)
    steps = (scale.float() * factor).repeat_interleave(16, 1)
    codes = torch.tensor([float_of(nibble) for nibble in range(16)])
    nearest = (x[..., None] - codes * steps[..., None]).abs().amin(-1)
    assert torch.allclose((x - ours).abs(), nearest, rtol=0, atol=1e-6)


def test_importance_and_a_shared_factor() -> None:
    x, importance = random_rows("gauss", 32, 256), torch.linspace(0, 3, 256)
    plain = dequantize_nvfp4(*quantize_nvfp4(x))
    weighted = dequantize_nvfp4(*quantize_nvfp4(x, importance))
    assert rmse(x, weighted, importance) < rmse(x, plain, importance)
    factor = torch.tensor(0.01)
    parts = quantize_nvfp4(x, factor=factor)
    assert parts[2] == factor
    assert rmse(x, dequantize_nvfp4(*parts)) <= 0.097


def test_zeros() -> None:
    packed, scale, factor = quantize_nvfp4(torch.zeros(4, 32))
    assert factor == 1
    assert (dequantize_nvfp4(packed, scale, factor) == 0).all()
    assert (packed == 0).all()


def test_ggml_blocks_hold_the_same_numbers() -> None:
    x = random_rows("gauss", 4, 128)
    packed, scale, factor = quantize_nvfp4(x, factor=torch.tensor(1.0))
    blocks = quantize(x, FORMATS["nvfp4"])
    assert torch.equal(
        dequantize(blocks, FORMATS["nvfp4"]), dequantize_nvfp4(packed, scale, factor)
    )


def test_what_does_not_fit() -> None:
    packed, scale = stored(4, 64)
    with pytest.raises(ValueError, match=r"need scales of \[4, 4\] and one factor"):
        dequantize_nvfp4(packed, scale[:, :2], torch.tensor(1.0))
    with pytest.raises(ValueError, match="infinities or NaN"):
        quantize_nvfp4(torch.full((2, 32), torch.nan))
    with pytest.raises(ValueError, match="finite and not negative"):
        quantize_nvfp4(torch.zeros(2, 32), torch.full((32,), -1.0))
    with pytest.raises(ValueError, match="groups of 16 weights; 24 is not a multiple"):
        quantize_nvfp4(torch.zeros(2, 24))
