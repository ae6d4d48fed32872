"""Small building blocks that backbone and tower share: norms, rotary positions, parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rt_drama3.model.weights import Rows, Weight


def parameter(
    *shape: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> nn.Parameter:
    """An uninitialised weight that never takes a gradient; the checkpoint loader fills it."""
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype), requires_grad=False)


UNROLLED_ROWS = 8  # up to this number of rows a compiled CPU product is unrolled by row


def linear(x: Tensor, weight: Tensor | Weight | Rows, index: int | None = None) -> Tensor:
    """``x [N, in]`` times ``weight [out, in]`` transposed -> ``[N, out]``.

    Compiled for a CPU, the few rows of a frame step are unrolled to one reduction per row: the
    compiler fuses them into a single pass over the weight, which beats the BLAS product of a flat
    matrix several times over, and the order of a row's sum does not depend on the other rows.

    Args:
        x: rows.
        weight: plain, or as it is stored (``model.weights``).
        index: number of the matrix in a stack.
    """
    if not isinstance(weight, Tensor):
        return weight.product(x, index)
    if index is not None:
        weight = weight[index]
    if torch.compiler.is_compiling() and x.device.type == "cpu" and x.shape[0] <= UNROLLED_ROWS:
        return torch.stack([(weight * row).sum(-1) for row in x.unbind()])
    return F.linear(x, weight)


def lookup(table: Tensor | Weight | Rows, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a table: int64 ``[*]`` -> ``[*, columns]`` in ``dtype``, which a plain one has."""
    if isinstance(table, Tensor):
        return table[rows]
    return table.looked_up(rows).to(dtype)


def taken(stack: Tensor | Weight | Rows, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Copies of matrices of a stack: int64 ``[*]`` -> ``[*, out, in]`` in ``dtype``."""
    if isinstance(stack, Tensor):
        return stack[index]
    return stack.taken(index).to(dtype)


def rms_norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """``x * rsqrt(mean(x^2) + eps) * gamma`` over the last dim, in float32, cast back.

    ``gamma`` is float32 and already holds ``1 + w`` for the zero-centred norms of Drama 3: bfloat16
    near 1 would only resolve steps of 1/128 (docs/model.md, 4).
    """
    return F.rms_norm(x.float(), gamma.shape, gamma, eps).to(x.dtype)


def l2_norm(x: Tensor) -> Tensor:
    """Unit length over the last dim, 1e-6 inside the root: how DeltaNet normalises Q and K."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def rope_table(positions: int, rotary_dim: int, base: float, device: torch.device) -> Tensor:
    """Cosines and sines of every position: float32 ``[2, positions, rotary_dim / 2]``."""
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * base**-exponent
    return torch.stack((angle.cos(), angle.sin())).float().to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first ``2 * cos.shape[-1]`` dims of ``x`` in half-split pairs, in float32.

    The tower's checkpoint pairs neighbouring dims; the loader re-orders its Q and K rows so that
    this one form serves backbone and tower (docs/model.md, 9.1).

    Args:
        x: ``[..., heads, head_dim]``.
        cos, sin: ``[..., 1, rotary_dim / 2]``, float32.
    """
    half = cos.shape[-1]
    first, second, rest = x.split((half, half, x.shape[-1] - 2 * half), -1)
    first, second = first.float(), second.float()
    return torch.cat(
        (
            (first * cos - second * sin).to(x.dtype),
            (second * cos + first * sin).to(x.dtype),
            rest,
        ),
        -1,
    )
