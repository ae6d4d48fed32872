"""Bytes of blocks: fields smaller than a byte, and half-precision scales."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

CHUNK = 1 << 18  # weights that are held in float32 at a time, so that they stay in the cache
HALF_MAX = 65504.0


@cache
def _shifts(width: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, width, dtype=torch.uint8, device=device)[:, None]


def unpack(data: Tensor, width: int, length: int) -> Tensor:
    """Fields of ``width`` bits, low bits first, of runs of ``length`` bytes.

    Args:
        data: uint8 ``[N, bytes]``; a run holds one field of each of its bytes, then the next.
        width: 1, 2 or 4.
        length: bytes of a run; it yields ``8 / width`` runs of fields.

    Returns:
        uint8 ``[N, bytes / length, 8 / width, length]``.
    """
    runs = data.unflatten(1, (-1, 1, length))
    fields: Tensor = runs >> _shifts(width, data.device)
    return fields.bitwise_and_((1 << width) - 1)


def pack(fields: Tensor, width: int) -> Tensor:
    """Inverse of ``unpack``: uint8 ``[N, runs, 8 / width, length]`` -> ``[N, bytes]``."""
    shifted = fields << _shifts(width, fields.device)
    return shifted.sum(2, dtype=torch.uint8).flatten(1)


def view_as(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes ``[N, bytes]`` read as numbers ``[N, count]``; a copy, so any alignment will do."""
    return data.clone(memory_format=torch.contiguous_format).view(dtype)


def half(data: Tensor, start: int) -> Tensor:
    """The half-precision number at an offset of each block: float32 ``[N, 1]``."""
    return view_as(data[:, start : start + 2], torch.float16).float()


def inverse(scale: Tensor) -> Tensor:
    """``1 / scale``, but 0 for scales that half precision rounds to 0 by far."""
    return torch.where(scale.abs() > 1e-30, 1 / scale, 0)


def stored_half(values: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds scales to half precision.

    Args:
        values: float32 ``[N, 1]``.

    Returns:
        Their bytes ``[N, 2]`` and what they are read as, float32 ``[N, 1]``.

    Raises:
        ValueError: one is too large.
    """
    halves = values.half()
    if not halves.isfinite().all():
        raise ValueError(
            f"A block needs the scale {float(values.abs().max()):.4g}, but half-precision numbers "
            f"end at {HALF_MAX:.0f}. Scale the weights down, or keep this tensor in bf16."
        )
    return halves.view(torch.uint8), halves.float()


def chunks(rows: int, columns: int) -> Iterator[slice]:
    """Ranges of rows that hold about ``CHUNK`` weights each."""
    step = max(1, CHUNK // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def require_finite(weights: Tensor) -> None:
    """Refuses weights that no block can hold.

    Raises:
        ValueError: there are infinities or NaN among them.
    """
    if not weights.isfinite().all():
        raise ValueError(
            "The weights hold infinities or NaN, which no format but f32, f16 and bf16 can store. "
            "Is the checkpoint damaged?"
        )


def column_counts(importance: Tensor | None, rows: Tensor) -> Tensor | None:
    """How much errors count in each column of ``rows``: float32 with median 1, or None.

    Columns without any importance still count a little. A median, because activations have outliers
    that would make all other columns alike in a mean.

    Raises:
        ValueError: the importance does not belong to the columns, or is negative or not finite.
    """
    if importance is None:
        return None
    if importance.shape != rows.shape[-1:]:
        raise ValueError(
            f"The importance has the shape {list(importance.shape)}, but the rows have "
            f"{rows.shape[-1]} columns."
        )
    counts = importance.to(rows.device, torch.float32)
    if not (counts.isfinite() & (counts >= 0)).all():
        raise ValueError("The importance of a column must be finite and not negative.")
    some = counts[counts > 0]
    if not len(some):
        return torch.ones_like(counts)
    return (counts / some.median()).clamp(1e-4, 1e12)
