"""Parameters that are only ever loaded, in the memory order that suits a stream."""

from __future__ import annotations

import torch
from torch import nn

Device = torch.device | str | None
Dtype = torch.dtype | None


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
