"""Which formats of weights have a kernel, on which kind of device.

A kernel reads a matrix as it is stored (``model.weights``). A kernel is registered for a format
and a type of device; the loader then keeps matrices of that format as they are, and products
with them go through it. What has none is dequantised while it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

# What the model does with a matrix: multiply by it, by those of chosen experts, or look rows up.
Use: TypeAlias = Literal["matrix", "experts", "table"]
# (x [N, in], Weight, number in its stack or None) -> x times the matrix transposed, [N, out]
Product: TypeAlias = Callable[[Tensor, Any, int | None], Tensor]
# (x, chosen, shares, gate_up, down) -> weighted output of every chosen expert: ``kernels.experts``
# with each matrix as the model holds it, a Weight or, of mapped files, Rows of gates and ups
Experts: TypeAlias = Callable[[Tensor, Tensor, Tensor, Any, Any], Tensor]


@dataclass(frozen=True)
class Kernel:
    """How a device multiplies with a format.

    Attributes:
        product: one matrix of it; also serves experts, one after the other.
        experts: all chosen experts of some rows in one call.
        usable: whether it can run on a tensor's device; some need more than its type.
    """

    product: Product | None = None
    experts: Experts | None = None
    usable: Callable[[Tensor], bool] = lambda _: True


_KERNELS: dict[tuple[str, str], Kernel] = {}


def register(format: str, device_type: str, kernel: Kernel) -> None:
    """Adds the kernel of a format for a type of device, in place of an earlier one."""
    _KERNELS[format, device_type] = kernel


def find(format: str, x: Tensor) -> Kernel | None:
    """The kernel for a format that can process ``x``."""
    kernel = _KERNELS.get((format, x.device.type))
    return kernel if kernel is not None and kernel.usable(x) else None


def reads(format: str, device: torch.device, use: Use) -> bool:
    """Whether a device multiplies with a format as it is stored.

    Args:
        format: name of the format.
        device: need not exist on this machine.
        use: what the matrix is for. Rows are looked up in tables of a plain dtype alone.
    """
    kernel = _KERNELS.get((format, device.type))
    if kernel is None or use == "table":
        return False
    return kernel.product is not None or (use == "experts" and kernel.experts is not None)
