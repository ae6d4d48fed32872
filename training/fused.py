"""Snake and residual unit with gradients of their own, and a C++ form of the unit on a CPU.

At the high-rate end of the decoder there are few channels and many samples, which PyTorch's
convolution handles badly: the C++ form keeps a unit's sums in registers and recomputes what the
backward pass needs. It is built on first use, where a compiler is at hand, else plain PyTorch runs.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

CHANNELS = (16, 32, 48, 64)  # that the C++ form is built for


class _Snake(torch.autograd.Function):
    """``x + sin(a x)^2 / a`` as ``x + (1 - cos(2 a x)) / (2 a)``: one sine each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor) -> Tensor:
        ctx.save_for_backward(x, alpha)
        wave = (x * (2 * alpha)).cos_().neg_().add_(1)
        return wave.mul_(0.5 / (alpha + 1e-9)).add_(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,), (x, alpha) = grads, ctx.saved_tensors
        angle = x * (2 * alpha)
        slope = torch.sin(angle)
        by_alpha = (grad * x * slope).sum((0, 1)) / alpha
        by_alpha -= (grad * (1 - angle.cos_())).sum((0, 1)) / (2 * alpha * alpha)
        return slope.add_(1).mul_(grad), by_alpha


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """Snake over ``x [B, T, C]`` with ``alpha [C]``."""
    made: Tensor = _Snake.apply(x, alpha)  # type: ignore[no-untyped-call]
    return made


@cache
def _extension() -> Any:
    """The C++ form, or None where it cannot be built."""
    from torch.utils.cpp_extension import load

    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp-simd"]
    try:
        return load(
            "training_fused_unit", [str(Path(__file__).with_suffix(".cpp"))], extra_cflags=flags
        )
    except (RuntimeError, OSError) as error:
        log.warning("the C++ residual unit was not built, training is slower: %s", error)
        return None


def usable(x: Tensor) -> bool:
    """Whether the C++ form can take ``x [B, T, C]``."""
    fits = x.device.type == "cpu" and x.dtype == torch.float32 and x.shape[-1] in CHANNELS
    wanted = os.environ.get("TRAINING_FUSED", "1") != "0"
    return fits and wanted and _extension() is not None


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Any) -> Tensor:
        *tensors, step = weights
        ctx.save_for_backward(x, *tensors)
        ctx.step = step
        made: Tensor = _extension().forward(x, *tensors, step)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, alpha_in, wide, wide_bias, alpha_out, point, _ = ctx.saved_tensors
        made = _extension().backward(
            x, grads[0].contiguous(), alpha_in, wide, wide_bias, alpha_out, point, ctx.step
        )
        return (*made, None)


def residual_unit(
    x: Tensor,
    alpha_in: Tensor,
    wide: Tensor,
    wide_bias: Tensor,
    alpha_out: Tensor,
    point: Tensor,
    point_bias: Tensor,
    step: int,
) -> Tensor:
    """The residual unit over ``x [B, T, C]``; kernels as torch's, ``step`` is the dilation."""
    wide, point = (kernel.permute(2, 1, 0).contiguous() for kernel in (wide, point))
    made: Tensor = _Unit.apply(  # type: ignore[no-untyped-call]
        x.contiguous(), alpha_in, wide, wide_bias, alpha_out, point, point_bias, step
    )
    return made
