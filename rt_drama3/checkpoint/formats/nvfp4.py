"""NVFP4: 4-bit floats (e2m1) with an e4m3 scale for each 16 and a float32 factor for the tensor.

ModelOpt's files multiply with the factor, those of compressed-tensors divide by it; ggml's blocks
(64 weights) hold no factor.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import chunks, column_counts, pack, require_finite, unpack
from rt_drama3.checkpoint.formats.search import columns

GROUP = 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FACTOR_RANGE = 6 * 448.0  # the largest code times the largest scale
_STEPS = range(-4, 7)  # scales tried, counted from the one that maps the largest magnitude to 6


def dequantize_nvfp4(
    packed: Tensor,
    scale: Tensor,
    factor: Tensor,
    *,
    divide: bool = False,
    high_first: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``e2m1 * scale * factor`` over groups of 16.

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
        values *= scale[part].float().view(-1, 1)  # exact, so that the result is rounded once
        out[part] = (values.div_(factor) if divide else values.mul_(factor)).view(-1, columns)
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
        ValueError: the columns are not a multiple of 16; weights or importance are not finite.
    """
    rows, columns = weight.shape
    if columns % GROUP:
        raise ValueError(f"NVFP4 stores groups of {GROUP} weights; {columns} is not a multiple.")
    counts = column_counts(importance, weight)
    if factor is None:
        factor = weight.abs().amax().float() / FACTOR_RANGE
    packed = torch.empty(rows, columns // 2, dtype=torch.uint8, device=weight.device)
    scale = torch.empty(rows, columns // GROUP, dtype=torch.uint8, device=weight.device)
    safe = torch.where(factor > 0, factor, 1).reshape(())
    for part in chunks(rows, columns):
        x = weight[part].float() / safe
        require_finite(x)
        codes, scales = _nearest(x, None if counts is None else counts.expand_as(x))
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
    codes, scales = _nearest(x, importance)
    return torch.cat((scales.view(-1, 4), pack(codes.view(-1, 4, 2, 8), 4)), 1)


def _nearest(x: Tensor, importance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes and e4m3 scales of groups ``[N, 16]``: uint8 ``[N, 16]`` and ``[N]``."""
    data = columns(x, importance, GROUP)
    magnitude = data.x.abs()
    start = (magnitude.amax(0) / 6).clamp_(max=448).to(torch.float8_e4m3fn).view(torch.uint8)
    best = torch.full(start.shape, torch.inf, device=x.device)
    chosen = start
    for step in _STEPS:
        # Positive e4m3 numbers are ordered as their bytes: 1 is the smallest, 126 the largest.
        tried = (start.short() + step).clamp_(1, 126).to(torch.uint8)
        scale = tried.view(torch.float8_e4m3fn).float()
        _, values = _rounded(magnitude / scale)
        error = data.squares(values.mul_(scale).sub_(magnitude))
        better = error < best
        best = torch.where(better, error, best)
        chosen = torch.where(better, tried, chosen)
    codes, _ = _rounded(magnitude / chosen.view(torch.float8_e4m3fn).float())
    signs = (data.x < 0) & (codes > 0)
    codes = codes.to(torch.uint8) | signs.to(torch.uint8) << 3
    return codes.t().contiguous(), chosen


def _rounded(y: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest codes of magnitudes, ties to even ones, and what they stand for.

    Codes count steps: four of 0.5 from 0 to 2, two of 1 from there to 4, and one of 2.
    """
    fine = y.clamp(max=2).mul_(2).round_()
    middle = y.clamp(2, 4).round_().sub_(2)
    coarse = y.clamp(4, 6).mul_(0.5).round_().sub_(2)
    codes = (fine + middle).add_(coarse)
    return codes, fine.mul_(0.5).add_(middle).add_(coarse, alpha=2)


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
