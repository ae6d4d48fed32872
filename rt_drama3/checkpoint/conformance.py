"""Checks of a checkpoint's tensors: names, shapes and dtypes, and while loading their values.

Names are compared with the inventory before anything is read; extra tensors are refused like
missing ones, since either means that the model would not compute what its author intended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rt_drama3.checkpoint.inventory import DENSE, EXPERT, SCALE, TensorSpec
from rt_drama3.checkpoint.stored import Keeping
from rt_drama3.checkpoint.views import View
from rt_drama3.errors import CheckpointError

DTYPES = {
    DENSE: ("BF16", "F16", "F32"),
    EXPERT: ("F8_E4M3",),
    SCALE: ("F32", "BF16"),
}


@dataclass(frozen=True)
class Differences:
    """How stored tensors differ from an inventory.

    Attributes:
        missing: names in the inventory that the files lack.
        unexpected: names in the files that the inventory lacks.
        misfits: one sentence for each tensor with the wrong shape or dtype.
    """

    missing: Sequence[str]
    unexpected: Sequence[str]
    misfits: Sequence[str]

    def require_none(self, place: object, advice: str) -> None:
        """Refuses any difference.

        Args:
            place: the checkpoint, for the message.
            advice: what to do.

        Raises:
            CheckpointError: naming the first of each kind.
        """
        faults = [
            *_fault("lacks the tensor", self.missing),
            *_fault("has the unexpected tensor", self.unexpected),
            *_fault("is wrong:", self.misfits),
        ]
        if faults:
            raise CheckpointError(f"{place} {'; it '.join(faults)}. {advice}")


def _fault(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""
    return [f"{what} {names[0]}{more}"]


def compare(views: Mapping[str, View], specs: Mapping[str, TensorSpec]) -> Differences:
    """Compares the tensors of a checkpoint with the inventory of its config."""
    misfits = []
    for name, spec in specs.items():
        view = views.get(name)
        if view is None:
            continue
        if view.shape not in (spec.shape, spec.also):
            also = f" or {list(spec.also)}" if spec.also else ""
            wanted = f"{list(spec.shape)}{also}"
            misfits.append(f"{name} has shape {list(view.shape)} instead of {wanted}")
        elif view.dtype not in DTYPES[spec.kind] and not (view.quantised and spec.kind == DENSE):
            wanted = " or ".join(DTYPES[spec.kind])
            misfits.append(f"{name} is {view.dtype} instead of {wanted}")
    return Differences(
        missing=[name for name in specs if name not in views],
        unexpected=[name for name in views if name not in specs],
        misfits=misfits,
    )


def check_numbers(name: str, tensor: Tensor, kind: str) -> None:
    """Refuses NaN and infinity, and negative block scales.

    A zero scale is accepted: an all-zero block may be stored that way.

    Args:
        name: name of the tensor, for the message.
        tensor: any part of it, in its stored dtype, on any device.
        kind: kind of its ``TensorSpec``.

    Raises:
        CheckpointError: naming the tensor and the first bad value.
    """
    if tensor.dtype == torch.float8_e4m3fn:
        # The format has no infinity, and its only NaN has every bit but the sign set: the largest
        # of all bytes, with a sign or without.
        kinds = (torch.int8, torch.uint8)
        most = torch.stack([tensor.view(kind).max().int() for kind in kinds]).tolist()
        if most[0] < 0x7F and most[1] < 0xFF:
            return
        bad = tensor.view(torch.uint8) & 0x7F == 0x7F
    else:
        # Extremes propagate NaN, and are several times faster than testing every value.
        ends = torch.stack(torch.aminmax(tensor)).tolist()
        if all(map(math.isfinite, ends)) and (kind != SCALE or ends[0] >= 0):
            return
        bad = ~tensor.isfinite() | ((tensor < 0) & (kind == SCALE))
    first = tuple(bad.nonzero()[0].tolist())
    value = tensor.float()[first].item()
    wanted = "a finite scale of at least 0" if kind == SCALE else "a finite number"
    raise CheckpointError(
        f"{name} holds {value} at {list(first)} of the part read, where {wanted} is needed. The "
        "checkpoint is damaged; download it again."
    )


def check_planes(
    name: str, planes: Sequence[Tensor | None], keeping: Keeping, official_scales: bool
) -> None:
    """Refuses NaN and infinity in a matrix that stays as it is stored.

    Args:
        name: name of the tensor, for the message.
        planes: of the matrix, or of some of its rows.
        keeping: what they are.
        official_scales: the second plane holds block scales, which must not be negative.

    Raises:
        CheckpointError: naming the tensor.
    """
    for number, plane in enumerate(planes):
        if plane is not None and plane.dtype.is_floating_point:
            check_numbers(name, plane, SCALE if number and official_scales else DENSE)
    size, starts = keeping.halves
    data = planes[0]
    if data is None:
        return
    for start in starts:
        # Infinity and NaN have all bits of the exponent set, which begins in the upper byte.
        upper = data.unflatten(-1, (-1, size))[..., start + 1] & 0x7C
        if int(upper.max()) == 0x7C:
            raise CheckpointError(
                f"{name} holds a block whose scale is not a finite number. The checkpoint is "
                "damaged; download it again."
            )
