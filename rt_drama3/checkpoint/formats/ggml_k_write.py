"""Writing ggml's blocks of 256 with two levels of scales: q2_k, q3_k, q4_k, q5_k, q6_k.

The scales of the parts are found one by one; then the numbers that scale those, the small integers
and the codes are chosen in turn, each best for the others as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import inverse, pack, stored_half
from rt_drama3.checkpoint.formats.search import (
    Line,
    Nearest,
    affine_codes,
    columns,
    fit_affine,
    fit_scale,
    rounded,
    steps,
)

# Where the search puts the largest weight of a part among the codes. Beyond the last code it is cut
# off, which pays where that weight is of little importance.
_Q2_PLACES = (*steps(2.4, 3.6, 0.2), *steps(3.9, 5.4, 0.3))
_Q3_PLACES = (*steps(-5.5, -3, 0.25), *steps(2.5, 4.5, 0.25))
_Q4_PLACES = steps(13, 17, 0.2)
_Q5_PLACES = steps(29, 35, 0.25)
_Q6_PLACES = steps(-37, -30, 0.5)
_ROUNDS = 2  # of choosing in turn


def encode_q2_k(x: Tensor, importance: Tensor | None) -> Tensor:
    """Writes q2_k."""
    q, scales, minima, d, dmin = _affine(x, importance, 16, 3, 15, _Q2_PLACES)
    return torch.cat((scales | (minima << 4), pack(q.view(-1, 2, 4, 32), 2), d, dmin), 1)


def encode_q3_k(x: Tensor, importance: Tensor | None) -> Tensor:
    """Writes q3_k."""
    q, scales, d = symmetric(x, importance, 16, rounded(-4, 3), 32, _Q3_PLACES)
    codes, scales = (q + 4).to(torch.uint8), (scales + 32).to(torch.uint8)
    high = pack(codes.view(-1, 1, 8, 32) >> 2, 1)
    low = pack(codes.view(-1, 2, 4, 32) & 3, 2)
    low_scales = pack(scales.view(-1, 1, 2, 8) & 15, 4)
    high_scales = pack(scales.view(-1, 1, 4, 4) >> 4, 2)
    return torch.cat((high, low, low_scales, high_scales, d), 1)


def encode_q4_k(x: Tensor, importance: Tensor | None) -> Tensor:
    """Writes q4_k."""
    q, scales, minima, d, dmin = _affine(x, importance, 32, 15, 63, _Q4_PLACES)
    pairs = _pack_pairs(scales, minima)
    return torch.cat((d, dmin, pairs, pack(q.view(-1, 4, 2, 32), 4)), 1)


def encode_q5_k(x: Tensor, importance: Tensor | None) -> Tensor:
    """Writes q5_k."""
    q, scales, minima, d, dmin = _affine(x, importance, 32, 31, 63, _Q5_PLACES)
    pairs, high = _pack_pairs(scales, minima), pack(q.view(-1, 1, 8, 32) >> 4, 1)
    return torch.cat((d, dmin, pairs, high, pack(q.view(-1, 4, 2, 32) & 15, 4)), 1)


def encode_q6_k(x: Tensor, importance: Tensor | None) -> Tensor:
    """Writes q6_k."""
    q, scales, d = symmetric(x, importance, 16, rounded(-32, 31), 128, _Q6_PLACES)
    codes = (q + 32).to(torch.uint8)
    low = pack(codes.view(-1, 2, 2, 64) & 15, 4)
    high = pack(codes.view(-1, 2, 4, 32) >> 4, 2)
    return torch.cat((low, high, scales.to(torch.int8).view(torch.uint8), d), 1)


def symmetric(
    x: Tensor,
    importance: Tensor | None,
    size: int,
    nearest: Nearest,
    limit: int,
    places: Iterable[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks of parts with ``x = d * scale * value``, scales from ``-limit`` to ``limit - 1``.

    Args:
        x: float32 ``[blocks, 256]``.
        importance: of the weights, or None.
        size: weights of a part.
        nearest: maps to the values that codes stand for, which are small integers.
        limit: of the scales.
        places: where the search puts the largest weight of a part among the values.

    Returns:
        Values int8 ``[blocks, 256]``, scales float32 ``[blocks, parts]``, bytes of d
        ``[blocks, 2]``.
    """
    data, parts = columns(x, importance, size), 256 // size
    scale = fit_scale(data, nearest, data.peak(), places).view(-1, parts)
    d = scale.gather(1, scale.abs().argmax(1, keepdim=True)) / -limit
    for _ in range(_ROUNDS):
        codes = (scale * inverse(d)).round_().clamp_(-limit, limit - 1)
        y = nearest(data.x * inverse(d * codes).flatten())
        xy = data.dot(y).view(-1, parts)
        yy = data.squares(y).view(-1, parts)
        scale = (xy / yy).nan_to_num_(0)
        d = (codes * xy).sum(1, keepdim=True) / (codes * codes * yy).sum(1, keepdim=True)
        d_bytes, d = stored_half(d.nan_to_num_(0))
    y = nearest(data.x * inverse(d * codes).flatten())
    return y.to(torch.int8).t().reshape(-1, 256), codes, d_bytes


def _affine(
    x: Tensor,
    importance: Tensor | None,
    size: int,
    top: int,
    limit: int,
    places: Iterable[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Blocks of parts with ``x = d * scale * q - dmin * minimum``, all integers from 0.

    Args:
        x: float32 ``[blocks, 256]``.
        importance: of the weights, or None.
        size: weights of a part.
        top: the largest q.
        limit: the largest scale and minimum.
        places: where the search puts the largest weight of a part among the codes.

    Returns:
        uint8 q ``[blocks, 256]``, scales and minima ``[blocks, parts]``, bytes of d and dmin
        ``[blocks, 2]``.
    """
    data, parts = columns(x, importance, size), 256 // size
    count, sum_x = data.count().view(-1, parts), data.weighted.sum(0).view(-1, parts)
    scale, offset = (part.view(-1, parts) for part in fit_affine(data, top, places))
    d = scale.amax(1, keepdim=True) / limit
    dmin = offset.amax(1, keepdim=True) / limit
    for _ in range(_ROUNDS):
        scales = (scale * inverse(d)).round_().clamp_(0, limit)
        minima = (offset * inverse(dmin)).round_().clamp_(0, limit)
        q = affine_codes(data.x, (d * scales).flatten(), (dmin * minima).flatten(), top)
        xq = data.dot(q).view(-1, parts)
        sum_q, sum_qq = (part.view(-1, parts) for part in data.moments(q))
        line = Line(count, sum_x, sum_q, sum_qq, xq)
        scale, offset = line.fit()
        d, dmin = _both(line, scales, minima, d, dmin)
        d_bytes, d = stored_half(d)
        dmin_bytes, dmin = stored_half(dmin)
    q = affine_codes(data.x, (d * scales).flatten(), (dmin * minima).flatten(), top)
    q = q.to(torch.uint8).t().reshape(-1, 256)
    return q, scales.to(torch.uint8), minima.to(torch.uint8), d_bytes, dmin_bytes


def _both(
    line: Line, scales: Tensor, minima: Tensor, d: Tensor, dmin: Tensor
) -> tuple[Tensor, Tensor]:
    """The two factors of blocks, ``[blocks, 1]`` each, from least squares over all parts."""

    def over_parts(values: Tensor) -> Tensor:
        return values.sum(1, keepdim=True)

    ss = over_parts(scales * scales * line.qq)
    sm = over_parts(scales * minima * line.q)
    mm = over_parts(minima * minima * line.count)
    xs, xm = over_parts(scales * line.xq), over_parts(minima * line.x)
    det = ss * mm - sm * sm
    solved = det > 1e-6 * ss * mm
    # Where the codes leave one of the two open, that one stays; where one is not used, it is 0.
    d = torch.where(solved, (xs * mm - sm * xm) / det, torch.where(mm > 0, d, xs / ss))
    dmin = torch.where(solved, (sm * xs - ss * xm) / det, torch.where(ss > 0, dmin, -xm / mm))
    without = dmin < 0
    d = torch.where(without, xs / ss, d).nan_to_num_(0).clamp_(min=0)
    return d, dmin.masked_fill_(without, 0).nan_to_num_(0)


def _pack_pairs(scales: Tensor, minima: Tensor) -> Tensor:
    """Eight 6-bit scales and minima in 12 bytes, the upper bits of the last four in the first."""
    first, last = scales.split(4, 1)
    first_min, last_min = minima.split(4, 1)
    return torch.cat(
        (
            first | (last >> 4 << 6),
            first_min | (last_min >> 4 << 6),
            (last & 15) | (last_min << 4),
        ),
        1,
    )
