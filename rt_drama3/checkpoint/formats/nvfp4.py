"""NVFP4: 4-bit floats (e2m1) with an e4m3 scale for each 16 and a float32 factor for the tensor.

ModelOpt's files multiply with the factor, those of compressed-tensors divide by it; ggml's blocks
(64 weights) hold no factor.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import chunks, pack, unpack

GROUP = 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FACTOR_RANGE = 6 * 448.0  # the largest code times the largest scale
_CODES = range(-1, 6)  # scales tried, counted from the one that maps the largest magnitude to 6


def dequantize_nvfp4(
    packed: Tensor,
    scale: Tensor,
    factor: Tensor,
    *,
    divide: bool = False,
    high_first: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``e2m1 * (scale * factor)`` over groups of 16.

    Args:
        packed: uint8 ``[rows, columns / 2]``.
        scale: float8_e4m3fn ``[rows, columns / 16]``.
        factor: float32, one number.
        divide: divide by the factor, as compressed-tensors has it.
        high_first: the upper nibble of a byte is the first of its weights.
        dtype: of the result; the arithmetic is float32.

    Returns:
        ``[rows, columns]``.

    Raises:
        ValueError: the shapes do not fit together.
    """
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    if scale.shape != (rows, columns // GROUP) or factor.numel() != 1 or columns % GROUP:
        raise ValueError(
            f"NVFP4 weights of {[rows, columns]} need scales of {[rows, columns // GROUP]} and "
            f"one factor, not {list(scale.shape)} and {list(factor.shape)}."
        )
    factor = factor.float().reshape(())
    pairs = _pairs(packed.device, high_first)
    out = torch.empty(rows, columns, dtype=dtype, device=packed.device)
    for part in chunks(rows, columns):
        values = pairs.index_select(0, packed[part].flatten().int()).view(-1, GROUP)
        scales = scale[part].float().view(-1, 1)
        values *= scales / factor if divide else scales * factor
        out[part] = values.view(-1, columns)
    return out


def quantize_nvfp4(
    weight: Tensor, importance: Tensor | None = None, factor: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes NVFP4 as ModelOpt lays it out, with the scales that give the smallest error.

    Args:
        weight: floating point ``[rows, columns]``.
        importance: ``[columns]``, how much an error in that column counts; None counts all alike.
        factor: float32, one number, for matrices that share one; None takes ``amax / 2688``.

    Returns:
        Packed uint8 ``[rows, columns / 2]``, float8_e4m3fn ``[rows, columns / 16]`` and the float32
        factor. compressed-tensors stores its inverse.

    Raises:
        ValueError: the columns are not a multiple of 16.
    """
    rows, columns = weight.shape
    if columns % GROUP:
        raise ValueError(f"NVFP4 stores groups of {GROUP} weights; {columns} is not a multiple.")
    if factor is None:
        factor = weight.abs().amax().float() / FACTOR_RANGE
    packed = torch.empty(rows, columns // 2, dtype=torch.uint8, device=weight.device)
    scale = torch.empty(rows, columns // GROUP, dtype=torch.uint8, device=weight.device)
    safe = torch.where(factor > 0, factor, 1).reshape(())
    for part in chunks(rows, columns):
        x = weight[part].float() / safe
        counts = None
        if importance is not None:
            counts = importance.float().expand_as(x).reshape(-1, GROUP)
        codes, scales = _nearest(x.view(-1, GROUP), counts)
        low, high = codes.view(-1, columns // 2, 2).unbind(-1)
        packed[part] = low | (high << 4)
        scale[part] = scales.view(-1, columns // GROUP)
    return packed, scale.view(torch.float8_e4m3fn), safe


def decode_nvfp4(blocks: Tensor) -> Tensor:
    """4 unsigned e4m3 scales, 32 bytes of two nibbles: elements j and 8 + j of each 16."""
    scale = _ggml_scales(blocks.device).index_select(0, blocks[:, :4].flatten().int())
    nibbles = unpack(blocks[:, 4:], 4, 8)  # [N, 4, 2, 8]
    values = _values(blocks.device).index_select(0, nibbles.flatten().int()).view(-1, 4, GROUP)
    return values.mul_(scale.view(-1, 4, 1)).flatten(1)


def encode_nvfp4(x: Tensor, importance: Tensor | None) -> Tensor:
    """Scales of the smallest error; weights that are far from 1 want a factor of their own."""
    counts = None if importance is None else importance.view(-1, GROUP)
    codes, scales = _nearest(x.reshape(-1, GROUP), counts)
    return torch.cat((scales.view(-1, 4), pack(codes.view(-1, 4, 2, 8), 4)), 1)


def _nearest(x: Tensor, importance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes and e4m3 scales of groups ``[N, 16]``: uint8 ``[N, 16]`` and ``[N]``."""
    magnitude = x.abs()
    largest = (magnitude.amax(1) / 6).clamp(max=448)
    start = largest.to(torch.float8_e4m3fn).view(torch.uint8)
    best = torch.full_like(largest, torch.inf)
    code = start
    for step in _CODES:
        # Positive e4m3 numbers are ordered as their bytes: 1 is the smallest, 126 the largest.
        tried = (start.short() + step).clamp_(1, 126).to(torch.uint8)
        scale = tried.view(torch.float8_e4m3fn).float()[:, None]
        error = (magnitude - _rounded(magnitude / scale) * scale).square_()
        if importance is not None:
            error *= importance
        total = error.sum(1)
        better = total < best
        best = torch.where(better, total, best)
        code = torch.where(better, tried, code)
    y = _rounded(magnitude / code.view(torch.float8_e4m3fn).float()[:, None])
    # 0, 0.5, 1, 1.5 and 2 are codes 0 to 4; 3, 4 and 6 the next ones.
    codes = torch.where(y <= 2, 2 * y, torch.where(y <= 4, y + 2, 7)).to(torch.uint8)
    return codes | (x.signbit() & (codes > 0)).to(torch.uint8) << 3, code


def _rounded(y: Tensor) -> Tensor:
    """The nearest magnitudes of e2m1, ties to even codes."""
    coarse = torch.where(y < 4, y.round(), (y * 0.5).round_().clamp_(max=3).mul_(2))
    return torch.where(y < 2, (y * 2).round_().mul_(0.5), coarse)


@cache
def _ggml_scales(device: torch.device) -> Tensor:
    """What the bytes of scales stand for in ggml's blocks: float32 ``[256]``.

    e4m3 without a sign. It has no NaN: 127 reads as 0, and 255 as the next number of the series.
    """
    codes = torch.arange(256, device=device).to(torch.uint8) & 127
    scales = codes.view(torch.float8_e4m3fn).float()
    scales[127], scales[255] = 0, 480
    return scales


@cache
def _values(device: torch.device) -> Tensor:
    """What nibbles stand for: float32 ``[16]``."""
    return torch.tensor(E2M1 + tuple(0 - value for value in E2M1), device=device)


@cache
def _pairs(device: torch.device, high_first: bool) -> Tensor:
    """What bytes stand for: float32 ``[256, 2]``."""
    codes = torch.arange(256, device=device)
    nibbles = (codes >> 4, codes & 15) if high_first else (codes & 15, codes >> 4)
    return _values(device)[torch.stack(nibbles, 1)]
