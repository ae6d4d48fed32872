"""ggml's blocks of 256 with values from a table: iq3_xxs and iq4_xs."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import half, unpack, view_as

# What the 16 codes of iq4_xs stand for.
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# What the 8 levels in the grid of iq3_xxs stand for.
IQ3_LEVELS = (4, 12, 20, 28, 36, 44, 52, 62)
# The 256 quadruples of levels that iq3_xxs can store: three hex digits each, four octal digits of
# levels, the lowest first. Part of the format (ggml, MIT).
_GRID = (
    "00000200400900b00f01001201902203b03d04104304804a05105505805a06106c07808008208408909009209909b09f"
    "0a90af0bd0c10c70c80ca0d50f810b11f12412f13b13d14114715a16a19d1b41c81cc1ce1e31f120120320820a211213"
    "21821a21c22722824024224925025228128328828a2912982ba2c02c22d02d92e62f63013053283503543663793853d2"
    "3e040040240940b41041241641942244144344544844a45145847347747848048248948f49049249f4a04ad4c14c84cc"
    "4f84fc51d52b54355756157c5c15c35ce5e560160860a61161362863563a6406426506596646666816836886956aa6ba"
    "6c96db71872773a74074675276d78c79e7b37db7f080480f81d81f82b82f87c89089f8a08b08b68c78e5904929934955"
    "9639789c59c89ca9d8a0aa21a38a40a46a56a6da8ca9aabaac2aebb08b13b17b3ab42b59ba8bd4be2c14c24c26c34c51"
    "c71c8fcb4cd8cded24d45d6ad9bdc3dd1e03e05e07e08e1ae2ae56e60e8aea5eaaec0ecdedbef0f11f21f40f42f54f98"
)


@cache
def iq3_grid(device: torch.device) -> Tensor:
    """The levels of the grid: uint8 ``[256, 4]``, 0 to 7."""
    codes = [int(_GRID[i : i + 3], 16) for i in range(0, len(_GRID), 3)]
    levels = [[code >> 3 * place & 7 for place in range(4)] for code in codes]
    return torch.tensor(levels, dtype=torch.uint8, device=device)


@cache
def iq3_values(device: torch.device) -> Tensor:
    """The values of the grid: float32 ``[256, 4]``."""
    levels = torch.tensor(IQ3_LEVELS, dtype=torch.float32, device=device)
    return levels[iq3_grid(device).long()]


@cache
def _iq3_signs(device: torch.device) -> Tensor:
    """Signs of 8 values by their first seven, the last making their number even: ``[128, 8]``."""
    codes = torch.arange(128, device=device)[:, None]
    bits = codes >> torch.arange(7, device=device) & 1
    return 1 - 2 * torch.cat((bits, bits.sum(1, keepdim=True) & 1), 1).float()


@cache
def iq4_values(device: torch.device) -> Tensor:
    """What the codes of iq4_xs stand for: float32 ``[16]``."""
    return torch.tensor(IQ4_VALUES, dtype=torch.float32, device=device)


def decode_iq3_xxs(blocks: Tensor) -> Tensor:
    """D (half), 64 grid indices, and for each 32 weights a word of four sign codes and a scale.

    ``d * (0.5 + scale) * 0.5 * grid * sign``.
    """
    device = blocks.device
    words = view_as(blocks[:, 66:98], torch.int32)
    places = torch.arange(0, 28, 7, dtype=torch.int32, device=device)
    signs = words[..., None] >> places & 127  # [N, 8, 4]
    scale = half(blocks, 0) * ((words >> 28 & 15) + 0.5) * 0.5
    values = iq3_values(device).index_select(0, blocks[:, 2:66].flatten().int())
    values = values.view(-1, 8, 32).mul_(scale[..., None]).view(-1, 8)
    return values.mul_(_iq3_signs(device).index_select(0, signs.flatten())).view(-1, 256)


def decode_iq4_xs(blocks: Tensor) -> Tensor:
    """D (half), 2 bytes of 2 high bits and 4 bytes of 4 low bits of 8 scales, 128 of nibbles.

    ``(d * (scale - 32)) * value``.
    """
    codes = unpack(blocks[:, 4:8], 4, 1).view(-1, 8)
    codes |= unpack(blocks[:, 2:4], 2, 1).view(-1, 8) << 4
    scale = half(blocks, 0) * (codes.float() - 32)
    q = unpack(blocks[:, 8:136], 4, 16)
    values = iq4_values(blocks.device).index_select(0, q.flatten().int())
    return values.view(-1, 8, 32).mul_(scale[..., None]).flatten(1)
