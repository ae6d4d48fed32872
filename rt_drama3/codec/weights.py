"""Parameters that are only ever loaded, in the memory order that suits a stream."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Device = torch.device | str | None
Dtype = torch.dtype | None

# From this many rows on, a product rounds each row alike, however many there are.
_ALIKE = 4
_SMALL = 1 << 20  # numbers of a matrix that stays in a processor's cache between two frames


def weight(*shape: int, device: Device = None, dtype: Dtype = None) -> nn.Parameter:
    """An uninitialised parameter without gradient."""
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype), requires_grad=False)


def matrix(
    rows: int,
    columns: int,
    *,
    device: Device = None,
    dtype: Dtype = None,
) -> nn.Parameter:
    """An uninitialised [rows, columns] matrix without gradient, its long side contiguous.

    Products of a tall matrix with one to four vectors, which is what a stream asks for, are then
    two to three times faster on one CPU thread.
    """
    if rows <= columns:
        return weight(rows, columns, device=device, dtype=dtype)
    value = torch.empty(columns, rows, device=device, dtype=dtype).T
    return nn.Parameter(value, requires_grad=False)


def kernel(
    out: int, into: int, taps: int, *, device: Device = None, dtype: Dtype = None
) -> nn.Parameter:
    """An uninitialised [out, into, taps] convolution kernel without gradient.

    On a CPU each tap is a matrix with contiguous rows, and all taps together are one too: there,
    convolutions are matrix products. Elsewhere it is contiguous, as libraries want it.
    """
    value = torch.empty(out, taps, into, device=device, dtype=dtype).transpose(1, 2)
    if value.device.type != "cpu":
        value = value.contiguous()
    return nn.Parameter(value, requires_grad=False)


def by_frame(x: Tensor, weight: Tensor, bias: Tensor | None, rate: int | None) -> Tensor:
    """``F.linear`` whose result for a frame does not depend on how many frames there are.

    BLAS rounds products of one to three rows differently from larger ones. Where a frame has so few
    steps, each frame is a product of its own, on a CPU and unless the matrix is so large that
    reading it again for every frame costs more than the product.

    Args:
        x: [batch, time, in].
        weight: [out, in].
        bias: [out], or None.
        rate: steps per frame, which ``time`` is a multiple of; None if frames need not be equal.

    Returns:
        [batch, time, out].
    """
    if rate is None or rate >= _ALIKE or weight.numel() > _SMALL or x.device.type != "cpu":
        return F.linear(x, weight, bias)
    frames = x.reshape(-1, rate, x.shape[-1])
    matrices = weight.T.expand(frames.shape[0], -1, -1)
    y = torch.bmm(frames, matrices) if bias is None else torch.baddbmm(bias, frames, matrices)
    return y.view(x.shape[0], -1, weight.shape[0])
