"""Plain numbers, and ggml's blocks of 32 with one scale: q8_0 and q4_0."""

from __future__ import annotations

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import (
    HALF_MAX,
    half,
    inverse,
    pack,
    stored_half,
    unpack,
    view_as,
)
from rt_drama3.checkpoint.formats.search import columns, fit_scale, rounded, steps

# Where the search of q4_0 puts the weight of largest magnitude among the codes.
_Q4_PLACES = (*steps(-10, -6.5, 0.25), *steps(6.5, 9.5, 0.25))


def decode_f32(blocks: Tensor) -> Tensor:
    """Reads float32."""
    return view_as(blocks, torch.float32)


def encode_f32(x: Tensor, importance: Tensor | None) -> Tensor:
    """Writes float32."""
    return x.contiguous().view(torch.uint8)


def decode_f16(blocks: Tensor) -> Tensor:
    """Reads half precision."""
    return view_as(blocks, torch.float16).float()


def encode_f16(x: Tensor, importance: Tensor | None) -> Tensor:
    """Writes half precision."""
    halves = x.half()
    if (halves.isinf() & x.isfinite()).any():
        raise ValueError(
            f"A weight is {float(x.abs().max()):.4g}, but half-precision numbers end at "
            f"{HALF_MAX:.0f}. Use bf16 for this tensor."
        )
    return halves.contiguous().view(torch.uint8)


def decode_bf16(blocks: Tensor) -> Tensor:
    """Reads the upper halves of float32."""
    return view_as(blocks, torch.bfloat16).float()


def encode_bf16(x: Tensor, importance: Tensor | None) -> Tensor:
    """Writes the upper halves of float32, rounded to even."""
    return x.bfloat16().contiguous().view(torch.uint8)


def decode_q8_0(blocks: Tensor) -> Tensor:
    """Scale d (half), 32 signed bytes: ``d * q``."""
    return blocks[:, 2:].view(torch.int8).float().mul_(half(blocks, 0))


def encode_q8_0(x: Tensor, importance: Tensor | None) -> Tensor:
    """As ggml writes it: the largest magnitude becomes 127, halves round away from zero.

    Rounding is by far the larger part of the error here, so importance changes nothing.
    """
    d = x.abs().amax(1, keepdim=True) / 127
    q = x * inverse(d)
    q = (q.abs() + 0.5).floor().copysign(q)
    return torch.cat((stored_half(d)[0], q.to(torch.int8).view(torch.uint8)), 1)


def decode_q4_0(blocks: Tensor) -> Tensor:
    """Scale d (half), 16 bytes of two nibbles, elements j and 16 + j: ``d * (q - 8)``."""
    q = unpack(blocks[:, 2:], 4, 16).flatten(1)
    return q.float().sub_(8).mul_(half(blocks, 0))


def encode_q4_0(x: Tensor, importance: Tensor | None) -> Tensor:
    """Codes -8 to 7 of the scale with the smallest error; ggml looks no further than the peak."""
    data, nearest = columns(x, importance, 32), rounded(-8, 7)
    d_bytes, d = stored_half(fit_scale(data, nearest, data.peak(), _Q4_PLACES)[:, None])
    q = nearest(data.x * inverse(d[:, 0])).add_(8).to(torch.uint8)
    return torch.cat((d_bytes, pack(q.t().reshape(-1, 1, 2, 16), 4)), 1)
