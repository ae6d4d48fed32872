"""ggml's blocks of 256 with two levels of scales: q2_k, q3_k, q4_k, q5_k, q6_k.

A block has 8 or 16 parts, each with a small integer scale (and in q2_k, q4_k and q5_k a small
integer minimum); one or two half-precision numbers scale those. Products and differences are
rounded in the order of the formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import half, unpack


def decode_q2_k(blocks: Tensor) -> Tensor:
    """Nibbles scale and minimum of 16 parts, 64 bytes of 2 bits, d, dmin (half).

    ``(d * scale) * q - dmin * minimum``.
    """
    q = unpack(blocks[:, 16:80], 2, 32).view(-1, 16, 16).float()
    scale = half(blocks, 80) * (blocks[:, :16] & 15)
    minimum = half(blocks, 82) * (blocks[:, :16] >> 4)
    return q.mul_(scale[..., None]).sub_(minimum[..., None]).flatten(1)


def decode_q3_k(blocks: Tensor) -> Tensor:
    """32 bytes of high bits, 64 bytes of 2 low bits, 12 bytes of 6-bit scales, d (half).

    ``(d * (scale - 32)) * (q - 4)``.
    """
    high = unpack_bits(blocks[:, :32])  # [N, 8, 32]
    q = unpack(blocks[:, 32:96], 2, 32).view(-1, 8, 32) | (high << 2)
    codes = unpack(blocks[:, 96:104], 4, 8).view(-1, 16)
    codes |= unpack(blocks[:, 104:108], 2, 4).view(-1, 16) << 4
    scale = half(blocks, 108) * (codes.float() - 32)
    return q.view(-1, 16, 16).float().sub_(4).mul_(scale[..., None]).flatten(1)


def decode_q4_k(blocks: Tensor) -> Tensor:
    """d, dmin (half), 12 bytes of 6-bit scales and minima, 128 bytes of nibbles.

    ``(d * scale) * q - dmin * minimum``.
    """
    return _decode_pairs(blocks, unpack(blocks[:, 16:144], 4, 32).view(-1, 8, 32))


def decode_q5_k(blocks: Tensor) -> Tensor:
    """As q4_k, with 32 bytes of fifth bits before the nibbles."""
    q = unpack(blocks[:, 48:176], 4, 32).view(-1, 8, 32)
    return _decode_pairs(blocks, q | (unpack_bits(blocks[:, 16:48]) << 4))


def _decode_pairs(blocks: Tensor, q: Tensor) -> Tensor:
    first, second, third = blocks[:, 4:16].split(4, 1)
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), 1)
    minima = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), 1)
    scale, minimum = half(blocks, 0) * scales, half(blocks, 2) * minima
    return q.float().mul_(scale[..., None]).sub_(minimum[..., None]).flatten(1)


def decode_q6_k(blocks: Tensor) -> Tensor:
    """128 bytes of nibbles, 64 bytes of 2 high bits, 16 signed scales, d (half).

    ``(d * scale) * (q - 32)``.
    """
    low = unpack(blocks[:, :128], 4, 64).view(-1, 8, 32)
    q = low | (unpack(blocks[:, 128:192], 2, 32).view(-1, 8, 32) << 4)
    scale = half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    return q.view(-1, 16, 16).float().sub_(32).mul_(scale[..., None]).flatten(1)


def unpack_bits(data: Tensor) -> Tensor:
    """Bit planes of bytes ``[N, length]``: uint8 ``[N, 8, length]``, lowest bits first."""
    return unpack(data, 1, data.shape[1])[:, 0]
