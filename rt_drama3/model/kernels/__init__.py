"""Operators that run on a GPU through Triton kernels, each one node of a compiled or captured step.

They are opaque to the compiler, so that the eager, the compiled and the captured step run the very
same kernels. Where they cannot run (no CUDA device, no Triton, no C compiler for its launchers) the
modules compute the same in plain PyTorch. The environment variable ``RT_DRAMA3_KERNELS=0`` turns
them off.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rt_drama3.model.kernels.registry import Kernel, register

FEW_ROWS = 16  # up to this number of rows, expert weights are read once per row, ungrouped


def _available() -> bool:
    if os.environ.get("RT_DRAMA3_KERNELS", "1") == "0" or not importlib.util.find_spec("triton"):
        return False
    # Triton compiles a launcher for every kernel; on Windows it brings its own compiler.
    named = os.environ.get("CC")
    candidates = [named] if named else ["gcc", "clang"]
    return sys.platform == "win32" or any(shutil.which(c) for c in candidates)


def _on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Kernels launch on the current device, which may not be the one that holds ``x``."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


AVAILABLE = _available()


def usable(x: Tensor) -> bool:
    """Whether these operators can process ``x``."""
    return AVAILABLE and x.is_cuda


@torch.library.custom_op("rt_drama3::route", mutates_args=())
def route(logits: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Chooses experts; see ``MoE.route``.

    Args:
        logits: ``[N, experts + 1]``; the last column gates the shared expert.
        top: experts per row. Of equal logits the lower number wins.

    Returns:
        int32 ``[N, top]`` distinct experts, best first; float32 ``[N, top]`` weights that sum to 1;
        float32 ``[N, 1]`` gate. Logits that are NaN rank last.
    """
    from rt_drama3.model.kernels import moe_launch

    with _on_device_of(logits):
        return moe_launch.route(logits, top)


@route.register_fake
def _(logits: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = logits.shape[0]
    return (
        logits.new_empty(rows, top, dtype=torch.int32),
        logits.new_empty(rows, top, dtype=torch.float32),
        logits.new_empty(rows, 1, dtype=torch.float32),
    )


@torch.library.custom_op("rt_drama3::experts", mutates_args=())
def experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_scale: Tensor | None,
    down: Tensor,
    down_scale: Tensor | None,
) -> Tensor:
    """Weighted output of every chosen expert; their sum over ``top`` is the routed output.

    Args:
        x: ``[N, dim]``.
        chosen, weights: ``[N, top]``, from ``route``.
        gate_up, gate_up_scale, down, down_scale: as in ``MoE``; no scale means no FP8.

    Returns:
        ``[N, top, dim]``: float32 for at most ``FEW_ROWS`` rows, else in the dtype of ``x``. A
        row's values do not depend on the other rows' values.
    """
    from rt_drama3.model.kernels import moe_launch

    matrices, few = (gate_up, gate_up_scale, down, down_scale), x.shape[0] <= FEW_ROWS
    with _on_device_of(x):
        return moe_launch.experts(x, chosen, weights, *matrices, few)


@experts.register_fake
def _(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_scale: Tensor | None,
    down: Tensor,
    down_scale: Tensor | None,
) -> Tensor:
    few = x.shape[0] <= FEW_ROWS
    dtype = torch.float32 if few else x.dtype
    return x.new_empty(x.shape[0], chosen.shape[1], down.shape[1], dtype=dtype)


def plain_experts(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Any, down: Any) -> Tensor:
    """``experts`` of plain matrices."""
    assert isinstance(gate_up, Tensor)
    assert isinstance(down, Tensor)
    found: Tensor = experts(x, chosen, weights, gate_up, None, down, None)
    return found


def _fp8_experts(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Any, down: Any) -> Tensor:
    """``experts`` of FP8 weights, each in one piece."""
    planes = (gate_up.data, gate_up.scales, down.data, down.scales)
    found: Tensor = experts(x, chosen, weights, *planes)
    return found


# Triton's check is looked up when it is needed: FP8 is kept wherever there is a CUDA device, since
# the plain form computes with it, too.
FP8_EXPERTS = Kernel(experts=_fp8_experts, usable=lambda x: usable(x))
register("fp8", "cuda", FP8_EXPERTS)


@torch.library.custom_op("rt_drama3::attend", mutates_args=())
def attend(q: Tensor, keys: Tensor, values: Tensor, position: Tensor, length: int) -> Tensor:
    """Attention of one row of every stream over its cache up to and with its own position.

    Args:
        q: ``[B, heads, head_dim]``; consecutive heads share a key/value head.
        keys, values: ``[B, kv_heads, context, head_dim]``, rows contiguous.
        position: int64 ``[B]``; -1 reads nothing and gives zeros.
        length: cached rows to read at most.

    Returns:
        ``[B, heads, head_dim]``. It depends neither on ``length`` beyond the position nor on the
        other streams.
    """
    from rt_drama3.model.kernels import attention

    with _on_device_of(q):
        return attention.attend(q, keys, values, position, length)


@attend.register_fake
def _(q: Tensor, keys: Tensor, values: Tensor, position: Tensor, length: int) -> Tensor:
    return q.new_empty(q.shape)
