"""Formats of matrices that stay as they are stored: their planes, and what brings them there.

Names and planes are what kernels are registered for (docs/model.md, 11.4). Whatever container a
matrix comes from, its planes are made by moving bits; numbers are never computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial

import torch
from torch import Tensor

from rt_drama3.checkpoint import formats
from rt_drama3.checkpoint.formats.affine import dequantize_affine, unpack_stream
from rt_drama3.checkpoint.formats.nvfp4 import GROUP, dequantize_nvfp4
from rt_drama3.checkpoint.stored import Keeping, Repack
from rt_drama3.model.weights import FP8, FP8_BLOCK, Format

_GGML = {"nvfp4": "ggml_nvfp4"}  # names that another layout has, too
# Where half-precision numbers begin in a block; nvfp4 has none.
_HALVES = {
    **dict.fromkeys(("q8_0", "q4_0", "iq3_xxs", "iq4_xs"), (0,)),
    **dict.fromkeys(("q4_k", "q5_k"), (0, 2)),
    **{"q2_k": (80, 82), "q3_k": (108,), "q6_k": (208,)},
}


def blocks(name: str, columns: int, factor: bool) -> Keeping:
    """Blocks of ggml: bytes, and a float32 factor for each row where the file has factors."""
    format = formats.FORMATS[name]
    halves = format.block_bytes, _HALVES.get(name, ())
    widths, dtypes = (format.row_bytes(columns),), (torch.uint8,)
    if not factor:
        return Keeping(_blocks(name), widths, dtypes, halves=halves)
    found = _blocks_with_factor(name)
    return Keeping(found, (*widths, 1), (*dtypes, torch.float32), _with_factor, halves=halves)


def fp8(columns: int) -> Keeping | None:
    """e4m3 with a scale for each block of 128 x 128, if the blocks are whole."""
    if columns % FP8_BLOCK:
        return None
    dtypes = torch.float8_e4m3fn, torch.float32
    return Keeping(FP8, (columns, columns // FP8_BLOCK), dtypes, _float_scales)


def fp8_rows(columns: int) -> Keeping:
    """e4m3 with a scale for each row."""
    dtypes = torch.float8_e4m3fn, torch.float32
    return Keeping(_FP8_ROWS, (columns, 1), dtypes, _with_factor)


def nvfp4(columns: int, divide: bool) -> Keeping:
    """Bytes of two codes, an e4m3 scale for each 16, a float32 factor for each row."""
    dtypes = torch.uint8, torch.float8_e4m3fn, torch.float32
    return Keeping(_nvfp4(divide), (columns // 2, columns // GROUP, 1), dtypes, _with_factor)


def affine(columns: int, bits: int, group: int, dtype: torch.dtype) -> Keeping:
    """MLX's words, scales and biases."""
    widths = columns * bits // 32, columns // group, columns // group
    return Keeping(_affine(bits, group), widths, (torch.int32, dtype, dtype))


def packed(
    columns: int, bits: int, groups: int, dtype: torch.dtype, zeros: bool, *, gptq: int | None
) -> Keeping | None:
    """32-bit words of integers, scales, and bytes with zero points where they are not symmetric.

    Args:
        columns: of the matrix.
        bits: of a code.
        groups: in a row.
        dtype: of the scales.
        zeros: whether there are zero points.
        gptq: what is added to stored zero points of GPTQ, whose files are transposed; None: in the
            layout of compressed-tensors.
    """
    if not groups or columns % groups:
        return None
    widths: tuple[int, ...] = (columns * bits // 32, groups)
    dtypes: tuple[torch.dtype, ...] = (torch.int32, dtype)
    if zeros:
        widths, dtypes = (*widths, groups), (*dtypes, torch.uint8)
    unit = math.lcm(columns // groups, 32 // bits)
    repack: Repack = partial(_packed_rows, bits=bits)
    if gptq is not None:
        repack = partial(_gptq_rows, bits=bits, offset=gptq)
    return Keeping(_packed(bits, unit, zeros), widths, dtypes, repack, mappable=gptq is None)


@cache
def _blocks(name: str) -> Format:
    format = formats.FORMATS[name]
    decode = partial(formats.dequantize, format=format)
    return Format(_GGML.get(name, name), decode, format.elements)


@cache
def _blocks_with_factor(name: str) -> Format:
    inner = _blocks(name)

    def decode(data: Tensor, factor: Tensor) -> Tensor:
        return inner.decode(data).mul_(factor)

    return Format(f"{inner.name}_scaled", decode, inner.unit, (1, 1))


@cache
def _nvfp4(divide: bool) -> Format:
    def decode(data: Tensor, scales: Tensor, factor: Tensor) -> Tensor:
        exact = dequantize_nvfp4(data, scales, torch.ones((), device=data.device))
        return exact.div_(factor) if divide else exact.mul_(factor)

    return Format("nvfp4_divided" if divide else "nvfp4", decode, GROUP, (1, 1, 1))


@cache
def _affine(bits: int, group: int) -> Format:
    return Format(f"affine{bits}", partial(dequantize_affine, bits=bits), group, (1, 1, 1))


@cache
def _packed(bits: int, unit: int, with_zeros: bool) -> Format:
    def decode(data: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
        codes = unpack_stream(data.view(torch.uint8), bits)
        values = codes.float().unflatten(1, (scales.shape[1], -1))
        values -= 1 << bits - 1 if zeros is None else zeros.unsqueeze(-1)
        whole: Tensor = values.mul_(scales.float().unsqueeze(-1)).flatten(1)
        return whole

    if with_zeros:
        return Format(f"int{bits}_zeros", decode, unit, (1, 1, 1))
    return Format(f"int{bits}", decode, unit, (1, 1))


def _decode_rows(data: Tensor, scales: Tensor) -> Tensor:
    return data.float().mul_(scales)


_FP8_ROWS = Format("fp8_rows", _decode_rows, 1, (1, 1))


def _with_factor(rows: int, data: Tensor | None, *rest: Tensor) -> Sequence[Tensor | None]:
    """A factor of each matrix, for each of its rows."""
    *planes, factor = rest
    each = factor.float().reshape(-1, 1)
    return [data, *planes, each.repeat_interleave(rows // each.shape[0], 0)]


def _float_scales(rows: int, data: Tensor | None, scales: Tensor) -> Sequence[Tensor | None]:
    return [data, scales.float()]


def _packed_rows(
    rows: int, data: Tensor | None, scales: Tensor, zeros: Tensor | None = None, *, bits: int
) -> Sequence[Tensor | None]:
    """compressed-tensors: only zero points are packed along the rows."""
    if zeros is None:
        return [data, scales]
    codes = unpack_stream(zeros.t().contiguous().view(torch.uint8), bits)
    return [data, scales, codes.t()[:rows]]


def _gptq_rows(
    rows: int, data: Tensor, scales: Tensor, zeros: Tensor | None = None, *, bits: int, offset: int
) -> Sequence[Tensor]:
    """GPTQ stores ``[in, out]`` and packs along the input: words only have to change places."""
    planes = [data.t().contiguous(), scales.t().contiguous()]
    if zeros is None:
        return planes
    codes = unpack_stream(zeros.view(torch.uint8), bits)
    # A writer of the first version stores one less, modulo the range.
    return [*planes, codes.add_(offset).bitwise_and_((1 << bits) - 1).t().contiguous()]
