"""Packed integers against a restatement of the two layouts, element by element."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import CHUNK
from rt_drama3.checkpoint.formats.int4 import (
    dequantize_gptq,
    dequantize_packed,
    quantize_gptq,
    quantize_packed,
)
from tests.checkpoint.formats.blocks import random_rows, rmse

WORD = torch.iinfo(torch.int32)


def words(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        WORD.min, WORD.max + 1, shape, dtype=torch.int64, generator=generator
    ).int()


def field(word: int, place: int, bits: int) -> int:
    return (word & 0xFFFFFFFF) >> bits * place & (1 << bits) - 1


def product(q: int, zero: int, scale: float) -> float:
    return (torch.tensor(float(q - zero)) * scale).item()  # in float32


def plain_gptq(
    qweight: Tensor,
    scales: Tensor,
    qzeros: Tensor | None,
    group_of: list[int],
    bits: int,
    add: int,
) -> Tensor:
    per = 32 // bits
    inputs, outputs = qweight.shape[0] * per, qweight.shape[1]
    words, factors = qweight.tolist(), scales.float().tolist()
    zeros = None if qzeros is None else qzeros.tolist()
    out = torch.empty(outputs, inputs)
    for k in range(inputs):
        for n in range(outputs):
            group = group_of[k]
            zero = 1 << bits - 1
            if zeros is not None:
                zero = (field(zeros[group][n // per], n % per, bits) + add) % (1 << bits)
            q = field(words[k // per][n], k % per, bits)
            out[n, k] = product(q, zero, factors[group][n])
    return out


def plain_packed(
    packed: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    group_of: list[int],
    bits: int,
) -> Tensor:
    per = 32 // bits
    words, factors = packed.tolist(), scale.float().tolist()
    zeros = None if zero_point is None else zero_point.tolist()
    out = torch.empty(packed.shape[0], len(group_of))
    for n in range(packed.shape[0]):
        for k, group in enumerate(group_of):
            zero = 1 << bits - 1
            if zeros is not None:
                zero = field(zeros[n // per][group], n % per, bits)
            out[n, k] = product(field(words[n][k // per], k % per, bits), zero, factors[n][group])
    return out


def in_order(inputs: int, group: int) -> list[int]:
    return [k // group for k in range(inputs)]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_symmetric_gptq(bits: int, group: int, dtype: torch.dtype) -> None:
    qweight = words(256 * bits // 32, 24, seed=1)
    scales = random_rows("gauss", 256 // group, 24).to(dtype)
    ours = dequantize_gptq(qweight, scales, bits=bits)
    expected = plain_gptq(qweight, scales, None, in_order(256, group), bits, 1)
    assert torch.equal(ours, expected)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offset", [0, 1])
def test_asymmetric_gptq(bits: int, offset: int) -> None:
    qweight, qzeros = words(32 * bits // 8, 24, seed=1), words(4, 24 * bits // 32, seed=2)
    scales = random_rows("gauss", 4, 24).half()
    ours = dequantize_gptq(qweight, scales, qzeros, bits=bits, zero_offset=offset)
    expected = plain_gptq(qweight, scales, qzeros, in_order(128, 32), bits, offset)
    assert torch.equal(ours, expected)


@pytest.mark.parametrize(("fill", "offset"), [(0x77777777, 1), (0x88888888, 0)])
def test_zeros_of_a_symmetric_file_change_nothing(fill: int, offset: int) -> None:
    qweight, scales = words(16, 8, seed=1), random_rows("gauss", 4, 8).half()
    filled = torch.tensor(fill, dtype=torch.int64).int().expand(4, 1)
    stored = dequantize_gptq(qweight, scales, filled, zero_offset=offset)
    assert torch.equal(stored, dequantize_gptq(qweight, scales))


def test_gptq_with_groups_in_any_order() -> None:
    generator = torch.Generator().manual_seed(4)
    qweight, qzeros = words(16, 8, seed=1), words(4, 1, seed=2)
    scales = random_rows("gauss", 4, 8).half()
    g_idx = torch.randint(0, 4, (128,), dtype=torch.int32, generator=generator)
    ours = dequantize_gptq(qweight, scales, qzeros, g_idx)
    expected = plain_gptq(qweight, scales, qzeros, g_idx.tolist(), 4, 1)
    assert torch.equal(ours, expected)
    in_file_order = (torch.arange(128) // 32).int()
    with_index = dequantize_gptq(qweight, scales, qzeros, in_file_order)
    assert torch.equal(with_index, dequantize_gptq(qweight, scales, qzeros))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_packed(bits: int, asymmetric: bool) -> None:
    packed = words(20, 128 * bits // 32, seed=1)
    scale = random_rows("gauss", 20, 4).bfloat16()
    zero_point = words(-(-20 * bits // 32), 4, seed=2) if asymmetric else None
    ours = dequantize_packed(packed, scale, zero_point, bits=bits)
    assert torch.equal(ours, plain_packed(packed, scale, zero_point, in_order(128, 32), bits))


def test_packed_with_groups_in_any_order_and_a_part_of_a_word() -> None:
    generator = torch.Generator().manual_seed(4)
    packed, scale = words(6, 3, seed=1), random_rows("gauss", 6, 2).half()
    g_idx = torch.randint(0, 2, (21,), generator=generator)
    ours = dequantize_packed(packed, scale, None, g_idx, inputs=21)
    assert torch.equal(ours, plain_packed(packed, scale, None, g_idx.tolist(), 4))


def test_more_than_a_chunk() -> None:
    inputs, outputs = 1024, CHUNK // 512
    qweight, scales = words(inputs // 8, outputs, seed=1), random_rows("gauss", 8, outputs).half()
    whole = dequantize_gptq(qweight, scales)
    part = dequantize_gptq(qweight[:, -3:].contiguous(), scales[:, -3:].contiguous())
    assert torch.equal(whole[-3:], part)
    turned = dequantize_gptq(qweight, scales, dtype=torch.bfloat16)
    assert torch.equal(turned, whole.bfloat16())


@pytest.mark.parametrize("importance", [None, torch.linspace(0.1, 3, 1024)])
@pytest.mark.parametrize(("kind", "most"), [("gauss", 0.105), ("t4", 0.173)])
def test_what_we_write(importance: Tensor | None, kind: str, most: float) -> None:
    """Closer than rounding with the scales amax / 7, 7.5 and 8."""
    x = random_rows(kind, 128, 1024)
    qweight, scales = quantize_gptq(x, 128, importance)
    assert qweight.shape == (128, 128)
    assert scales.shape == (8, 128)
    ours = dequantize_gptq(qweight, scales)
    packed = dequantize_packed(*quantize_packed(x, 128, importance))
    assert torch.equal(ours, packed)
    assert rmse(x, ours) <= 1.02 * most
    if importance is not None:
        plain = dequantize_gptq(*quantize_gptq(x, 128))
        assert rmse(x, ours, importance) < rmse(x, plain, importance)
    assert (scales > 0).all()


def test_groups_of_zeros() -> None:
    qweight, scales = quantize_gptq(torch.zeros(8, 64), 32)
    assert (dequantize_gptq(qweight, scales) == 0).all()
    assert (scales == 1).all()


def test_what_does_not_fit() -> None:
    qweight, scales = words(16, 8, seed=1), torch.ones(4, 8)
    with pytest.raises(ValueError, match="4 or 8 bits here, not 3"):
        dequantize_gptq(qweight, scales, bits=3)
    with pytest.raises(ValueError, match="do not belong together"):
        dequantize_gptq(qweight, torch.ones(4, 9))
    with pytest.raises(ValueError, match="128 inputs do not divide evenly among 3 groups"):
        dequantize_gptq(qweight, torch.ones(3, 8))
    with pytest.raises(ValueError, match="groups from 0 to 4, but there are 4"):
        dequantize_gptq(qweight, scales, None, (torch.arange(128) % 5).int())
    with pytest.raises(ValueError, match="do not belong together"):
        dequantize_packed(words(8, 16, seed=1), torch.ones(8, 4), inputs=100)
    with pytest.raises(ValueError, match="infinities or NaN"):
        quantize_gptq(torch.full((8, 128), torch.inf))
    with pytest.raises(ValueError, match=r"shape \[64\], but the rows have 128"):
        quantize_packed(torch.zeros(8, 128), 128, torch.ones(64))
    with pytest.raises(ValueError, match="100 inputs are not a multiple of the group 128"):
        quantize_gptq(torch.zeros(8, 100))
