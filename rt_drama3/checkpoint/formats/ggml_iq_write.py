"""Writing ggml's blocks of 256 with values from a table: iq3_xxs and iq4_xs."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import inverse, pack, stored_half
from rt_drama3.checkpoint.formats.ggml_iq import IQ4_VALUES, iq3_values, iq4_values
from rt_drama3.checkpoint.formats.ggml_k_write import symmetric
from rt_drama3.checkpoint.formats.search import columns, fit_scale, steps

# Where the search puts the largest weight of a part among the values.
_IQ4_PLACES = (*steps(-160, -115, 5), *steps(100, 150, 5))
_IQ3_PLACES = steps(11, 23, 1)

_QUADS = 2048  # quadruples whose errors are held at a time, so that they stay in the cache
_ROUNDS = 2  # of choosing d, scales and entries in turn


def encode_iq4_xs(x: Tensor, importance: Tensor | None) -> Tensor:
    """The 32 weights of a part are the nearest of the 16 values; d goes by all parts."""
    values, codes, d = symmetric(x, importance, 32, _iq4_nearest, 32, _IQ4_PLACES)
    codes = (codes + 32).to(torch.uint8)
    low = pack(codes.view(-1, 4, 2, 1) & 15, 4)
    high = pack(codes.view(-1, 2, 4, 1) >> 4, 2)
    nibbles = _iq4_codes(x.device).index_select(0, values.flatten().int() + 127)
    return torch.cat((d, high, low, pack(nibbles.view(-1, 8, 2, 16), 4)), 1)


def _iq4_nearest(y: Tensor) -> Tensor:
    """The nearest of the 16 values; every middle between two is a multiple of a half."""
    places = y.clamp_(-127, 113).add_(127).mul_(2).round_().int()
    return _iq4_table(y.device).index_select(0, places.flatten()).view(y.shape)


@cache
def _iq4_table(device: torch.device) -> Tensor:
    """The nearest value at -127, -126.5, -126 ... 113: float32 ``[481]``."""
    places = torch.arange(-127, 113.25, 0.5, device=device)
    values = iq4_values(device)
    return values[(places[:, None] - values).abs().argmin(1)]


@cache
def _iq4_codes(device: torch.device) -> Tensor:
    """The codes of the values, at value + 127: uint8 ``[241]``."""
    codes = torch.zeros(241, dtype=torch.uint8, device=device)
    codes[torch.tensor(IQ4_VALUES, device=device) + 127] = torch.arange(
        16, dtype=torch.uint8, device=device
    )
    return codes


def encode_iq3_xxs(x: Tensor, importance: Tensor | None) -> Tensor:
    """Writes iq3_xxs: the scales come from a rough search of the grid, the entries from a full one.

    The grid's values are taken as a quarter of what they are, 1, 3, 5 ... 15.5, so that a part's
    factor is d times an odd number.
    """
    signs, magnitude = _even_signs(x.view(-1, 8), importance)
    data = columns(magnitude, importance, 32)
    factor = fit_scale(data, _iq3_rough, data.x.amax(0), _IQ3_PLACES).view(-1, 8)
    quads = magnitude.view(-1, 4)
    counts = None if importance is None else importance.reshape(-1, 4)
    d = factor.amax(1, keepdim=True) / 31
    for _ in range(_ROUNDS):
        scales = ((factor * inverse(d) - 1) / 2).round_().clamp_(0, 15)
        odd = 2 * scales + 1
        each = (d * odd).view(-1, 1).expand(-1, 8).reshape(-1, 1)  # of every quadruple
        index = _iq3_nearest(quads * inverse(each), counts)
        values = _iq3_quarter(x.device).index_select(0, index)
        squares = values.square() if counts is None else values.square().mul_(counts)
        products = values.mul_(quads if counts is None else quads * counts)
        xy, yy = (part.view(-1, 8, 32).sum(2) for part in (products, squares))
        factor = xy / yy
        d = (odd * xy).sum(1, keepdim=True) / (odd * odd * yy).sum(1, keepdim=True)
        d_bytes, d = stored_half(d.clamp_(min=0))
    words = scales.int() << 28
    for place in range(4):
        words |= signs.view(-1, 8, 4)[..., place] << 7 * place
    return torch.cat((d_bytes, index.to(torch.uint8).view(-1, 64), words.view(torch.uint8)), 1)


def _even_signs(x: Tensor, importance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sign codes of groups of 8 with an even number of minus signs, and what they leave.

    The eighth sign follows from the others; where it would be wrong, the sign of the weight that
    counts least is turned.

    Returns:
        int32 ``[N]`` codes of seven signs; ``x`` times the eight signs.
    """
    minus = x < 0
    weight = x.abs() if importance is None else x.square() * importance.reshape(-1, 8)
    least = weight.argmin(1, keepdim=True)
    odd = minus.sum(1, keepdim=True, dtype=torch.uint8) & 1
    turned = minus.gather(1, least) ^ odd.bool()
    minus.scatter_(1, least, turned)
    bits = torch.tensor([1, 2, 4, 8, 16, 32, 64, 0], dtype=torch.float32, device=x.device)
    return (minus.float() @ bits).int(), torch.where(minus, -x, x)


def _iq3_rough(y: Tensor) -> Tensor:
    """Values of the grid near quadruples of ``y [32, N]``, found by their rounded levels."""
    levels = y.sub_(1).mul_(0.5).round_().clamp_(0, 7).view(8, 4, -1)
    code = levels[:, 0] + 8 * levels[:, 1] + 64 * levels[:, 2] + 512 * levels[:, 3]
    index = _iq3_table(y.device).index_select(0, code.flatten().int())
    g = _iq3_quarter(y.device).index_select(0, index)  # [8 * N, 4]
    return g.view(8, -1, 4).transpose(1, 2).reshape(32, -1)


def _iq3_nearest(y: Tensor, counts: Tensor | None) -> Tensor:
    """Entries of the grid with the smallest weighted error, for quadruples ``[N, 4]``: int32.

    The errors of all entries are a matrix product. Their lowest eight bits are replaced by the
    entry's number, so that the minimum of the rest says which one it was; positive floats are
    ordered as their bits.
    """
    grid = _iq3_quarter(y.device)
    if counts is None:
        left = torch.cat((y, y.square().sum(1, keepdim=True), torch.ones_like(y[:, :1])), 1)
        ones = torch.ones_like(grid[:, :1])
        right = torch.cat((grid * -2, ones, grid.square().sum(1, keepdim=True)), 1)
    else:
        weighted = y * counts
        left = torch.cat((weighted, (weighted * y).sum(1, keepdim=True), counts), 1)
        right = torch.cat((grid * -2, torch.ones_like(grid[:, :1]), grid.square()), 1)
    numbers = torch.arange(256, dtype=torch.int32, device=y.device)
    errors = y.new_empty(_QUADS, 256)
    index = torch.empty(len(y), dtype=torch.int32, device=y.device)
    for start in range(0, len(y), _QUADS):
        part = left[start : start + _QUADS]
        some = torch.mm(part, right.t(), out=errors[: len(part)]).view(torch.int32)
        torch.amin(
            some.bitwise_and_(-256).bitwise_or_(numbers), 1, out=index[start : start + _QUADS]
        )
    return index.bitwise_and_(255)


@cache
def _iq3_quarter(device: torch.device) -> Tensor:
    """A quarter of the grid's values, so that they are 1, 3, 5 ...: float32 ``[256, 4]``."""
    return iq3_values(device) / 4


@cache
def _iq3_table(device: torch.device) -> Tensor:
    """The nearest entry of the grid for every quadruple of levels: int32 ``[4096]``."""
    levels = torch.arange(8, device=device) * 2.0 + 1
    quads = torch.cartesian_prod(levels, levels, levels, levels).flip(1)  # the first is lowest
    return torch.cdist(quads, _iq3_quarter(device)).argmin(1).int()
