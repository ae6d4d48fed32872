"""What a checkpoint will occupy on a device, matrix by matrix, from its headers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from rt_drama3.checkpoint.conformance import compare
from rt_drama3.checkpoint.inventory import inventory
from rt_drama3.checkpoint.layouts import ModelLayout, layout_of, use_of
from rt_drama3.checkpoint.load import keeper
from rt_drama3.checkpoint.opened import Checkpoint
from rt_drama3.checkpoint.placement import Placement

GROUPS = ("experts", "backbone", "tower", "embeddings", "head", "codec")
AS_STORED = "as stored"


@dataclass
class Residence:
    """A group of matrices in memory.

    Attributes:
        stored: type in the files -> bytes there.
        resident: what it becomes -> bytes: ``as stored``, a dtype such as ``bfloat16``, or
            ``expanded to bfloat16`` if its numbers are quantised in the files.
    """

    stored: Counter[str] = field(default_factory=Counter)
    resident: Counter[str] = field(default_factory=Counter)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.resident.total()


def residence(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    keep: bool | None = None,
    codec: int = 0,
) -> dict[str, Residence]:
    """What becomes of a checkpoint, by group.

    Args:
        checkpoint: an open one.
        device: it need not exist on this machine.
        dtype: of the model.
        keep: see ``load_model``.
        codec: numbers of the codec, which is float32 on a CPU.

    Raises:
        CheckpointError: it cannot be loaded.
    """
    config, views = checkpoint.config, checkpoint.views
    compare(views, inventory(config)).require_none(checkpoint.path, checkpoint.advice)
    layout = layout_of(views, config, dtype, keeper(keep, device, config))
    groups = {name: Residence() for name in GROUPS}
    for step in layout.steps:
        _add_stored(groups[_group(step.target)], step, layout)
    plain: dict[str, list[Placement]] = {}
    for step in layout.steps:
        plain.setdefault(step.target, []).append(step)
    for target, parameter in layout.model.named_parameters():
        found = groups[_group(target)].resident
        segments = layout.kept.get(target)
        if segments is None:
            found[_numbers(plain[target], layout, parameter.dtype)] += parameter.nbytes
            continue
        *stack, _, columns = parameter.shape
        count = stack[0] if stack else 1
        for segment in segments:
            rows = segment.stop - segment.start
            if segment.keeping is not None:
                found[AS_STORED] += count * segment.keeping.nbytes(rows)
                continue
            nbytes = count * rows * columns * parameter.dtype.itemsize
            found[_numbers(segment.steps, layout, parameter.dtype)] += nbytes
    kind = torch.float32 if device.type == "cpu" else dtype
    groups["codec"].resident[_name(kind)] += codec * kind.itemsize
    return groups


def _group(target: str) -> str:
    if use_of(target) == "experts":
        return "experts"
    if target in ("embed", "codebook_embed"):
        return "embeddings"
    return target.partition(".")[0]


def _add_stored(group: Residence, step: Placement, layout: ModelLayout) -> None:
    for source in step.sources:
        view = layout.views[source.name]
        group.stored[view.dtype] += round(view.nbytes_of(source.rows, source.columns))


def _numbers(
    steps: list[Placement] | tuple[Placement, ...], layout: ModelLayout, dtype: torch.dtype
) -> str:
    """What plain numbers of these placements are called."""
    views = [layout.views[source.name] for step in steps for source in step.sources]
    packed = any(view.quantised or view.dtype == "F8_E4M3" for view in views)
    return f"expanded to {_name(dtype)}" if packed else _name(dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
