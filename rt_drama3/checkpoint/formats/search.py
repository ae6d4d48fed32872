"""Scales of blocks: those with the smallest weighted square error among the ones tried.

Everything here works on columns: ``[elements, N]``, one block or part of a block per column, so
that sums over a block add whole rows. ``importance`` has the same shape, or is None where all
count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import inverse

Nearest = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Columns:
    """Weights in columns, with what all tries need of them.

    Attributes:
        x: float32 ``[elements, N]``.
        importance: of the same shape, or None.
        weighted: ``x * importance``.
    """

    x: Tensor
    importance: Tensor | None
    weighted: Tensor

    def dot(self, y: Tensor) -> Tensor:
        """Weighted sums of ``x * y``: ``[N]``."""
        return (self.weighted * y).sum(0)

    def moments(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted sums of ``y`` and of its square: ``[N]`` each; destroys ``y``."""
        if self.importance is None:
            return y.sum(0), y.square_().sum(0)
        weighted = y * self.importance
        return weighted.sum(0), y.mul_(weighted).sum(0)

    def squares(self, y: Tensor) -> Tensor:
        """Weighted sums of ``y ** 2``: ``[N]``; destroys ``y``."""
        squares = y.square_()
        return (squares if self.importance is None else squares.mul_(self.importance)).sum(0)

    def count(self) -> Tensor:
        """Sums of the importance: ``[N]``."""
        if self.importance is None:
            return self.x.new_full(self.x.shape[1:], self.x.shape[0])
        return self.importance.sum(0)

    def peak(self) -> Tensor:
        """The element of largest magnitude, with its sign: ``[N]``."""
        low, high = self.x.amin(0), self.x.amax(0)
        return torch.where(high >= -low, high, low)


def columns(x: Tensor, importance: Tensor | None, elements: int) -> Columns:
    """Blocks ``[blocks, size]`` as columns of ``elements`` consecutive weights."""
    x = x.reshape(-1, elements).t().contiguous()
    if importance is None:
        return Columns(x, None, x)
    importance = importance.reshape(-1, elements).t().contiguous()
    return Columns(x, importance, x * importance)


def steps(low: float, high: float, step: float) -> tuple[float, ...]:
    """Numbers from ``low`` to ``high``, both included."""
    return tuple(low + step * i for i in range(round((high - low) / step) + 1))


def rounded(low: int, high: int) -> Nearest:
    """Rounds in place to integers in a range."""
    return lambda y: y.round_().clamp_(low, high)


def fit_scale(data: Columns, nearest: Nearest, unit: Tensor, places: Iterable[float]) -> Tensor:
    """The scale for ``x = scale * nearest(x / scale)``.

    For each place the codes follow from ``scale = unit / place``, and then the best scale for these
    codes from least squares.

    Args:
        data: the weights.
        nearest: maps a fresh tensor to the values that codes stand for.
        unit: ``[N]``, such as the element of largest magnitude.
        places: where ``unit`` is put among those values.

    Returns:
        ``[N]``; 0 for columns of zeros.
    """
    inverse_unit = inverse(unit)
    best, scale = torch.zeros_like(unit), torch.zeros_like(unit)
    for place in places:
        y = nearest(data.x * (inverse_unit * place))
        xy = data.dot(y)
        fitted = xy / data.squares(y)
        gain = xy * fitted
        better = gain > best  # false where no code is other than 0
        best = torch.where(better, gain, best)
        scale = torch.where(better, fitted, scale)
    return scale


@dataclass(frozen=True)
class Line:
    """Weighted sums of columns whose codes are known, for ``x = scale * q - offset``.

    Attributes:
        count: of 1.
        x: of the weights.
        q: of the codes.
        qq: of their squares.
        xq: of the products.
    """

    count: Tensor
    x: Tensor
    q: Tensor
    qq: Tensor
    xq: Tensor

    def fit(self) -> tuple[Tensor, Tensor]:
        """Scale and offset from least squares; the offset is not negative."""
        det = self.count * self.qq - self.q * self.q
        alone = self.xq / self.qq  # the scale without an offset
        scale = (self.count * self.xq - self.q * self.x) / det
        # Codes that are all alike leave one of the two open.
        scale = torch.where(det > 1e-6 * self.count * self.qq, scale, alone).nan_to_num_(0)
        offset = (scale * self.q - self.x) / self.count
        without = offset < 0
        return torch.where(without, alone, scale).nan_to_num_(0), offset.masked_fill_(without, 0)

    def error(self, scale: Tensor, offset: Tensor) -> Tensor:
        """The weighted square error, less the sum of squares of x."""
        by_scale = scale * (scale * self.qq - 2 * self.xq)
        by_offset = offset * (offset * self.count + 2 * self.x)
        return by_scale + by_offset - 2 * scale * offset * self.q


def affine_codes(x: Tensor, scale: Tensor, offset: Tensor, top: int) -> Tensor:
    """``round((x + offset) / scale)`` from 0 to ``top``."""
    factor = inverse(scale)
    return torch.addcmul(offset * factor, x, factor).round_().clamp_(0, top)


def fit_affine(data: Columns, top: int, places: Iterable[float]) -> tuple[Tensor, Tensor]:
    """Scale and offset, neither negative, for ``x = scale * q - offset`` with q from 0 to ``top``.

    For each place the codes follow from a scale that puts the largest element there, and then the
    best scale and offset for these codes from least squares; an offset that was better is where the
    next ones start.

    Args:
        data: the weights.
        top: the largest code.
        places: where the largest element is put among the codes.

    Returns:
        ``[N]`` each; the scale of columns whose elements are all alike is 0.
    """
    count, sum_x = data.count(), data.weighted.sum(0)
    low, high = data.x.amin(0).clamp_(max=0), data.x.amax(0)
    offset, scale = -low, torch.zeros_like(low)
    best = offset * (offset * count + 2 * sum_x)  # as Line.error counts, all codes being 0
    for place in places:
        q = affine_codes(data.x, (high + offset) / place, offset, top)
        xq = data.dot(q)
        line = Line(count, sum_x, *data.moments(q), xq)
        fitted = line.fit()
        error = line.error(*fitted)
        better = error < best
        best = torch.where(better, error, best)
        scale = torch.where(better, fitted[0], scale)
        offset = torch.where(better, fitted[1], offset)
    return scale, offset
