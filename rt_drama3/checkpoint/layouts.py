"""What becomes of each matrix of the model: a plain parameter, or a weight that stays as stored.

A parameter of the model may be made of several official matrices, which may be stored in different
ways: those that lie next to each other and are stored alike become one ``Weight``, and several of
them ``Rows``. A stack of experts stays as it is if all of them are stored alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from rt_drama3.checkpoint import kept
from rt_drama3.checkpoint.inventory import HEAD, inventory
from rt_drama3.checkpoint.placement import Placement, dequantized, plan
from rt_drama3.checkpoint.stored import Keeping
from rt_drama3.checkpoint.views import View
from rt_drama3.config import ModelConfig
from rt_drama3.model import SpeechModel
from rt_drama3.model.kernels.registry import Use
from rt_drama3.model.weights import FP8_BLOCK, Weight

# (name of a format, what the matrix is for) -> whether it stays as it is stored
Keep: TypeAlias = Callable[[str, Use], bool]
_TABLES = ("embed", "codebook_embed", "tower.layers.0.embed")


@dataclass(frozen=True)
class Segment:
    """Rows of a matrix that are stored alike; of a stack, the same rows of every matrix.

    Attributes:
        start, stop: the rows.
        keeping: how they stay as they are; None: they become plain numbers.
        steps: the placements that fill them.
    """

    start: int
    stop: int
    keeping: Keeping | None
    steps: tuple[Placement, ...]


@dataclass(frozen=True)
class ModelLayout:
    """What becomes of a whole checkpoint.

    Attributes:
        model: the plain model, without memory (on the device "meta").
        steps: all placements.
        views: the checkpoint's tensors.
        kept: parameters of which something stays as it is stored -> their segments.
    """

    model: SpeechModel
    steps: Sequence[Placement]
    views: Mapping[str, View]
    kept: Mapping[str, Sequence[Segment]]


def layout_of(
    views: Mapping[str, View],
    config: ModelConfig,
    dtype: torch.dtype,
    keep: Keep,
    *,
    apart: bool = False,
) -> ModelLayout:
    """What becomes of a checkpoint with these tensors.

    Args:
        views: the checkpoint's tensors, which fit the config.
        config: sizes.
        dtype: of what becomes plain.
        keep: which formats stay.
        apart: see ``layouts``.
    """
    short = views[HEAD].shape != inventory(config)[HEAD].shape
    steps = plan(config, trimmed_head=short)
    model = SpeechModel(config, "meta", dtype)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return ModelLayout(model, steps, views, layouts(steps, views, shapes, keep, apart=apart))


def use_of(target: str) -> Use:
    """What the model does with a parameter."""
    if target in _TABLES:
        return "table"
    return "experts" if target.endswith((".moe.gate_up", ".moe.down")) else "matrix"


def keeping_of(step: Placement, views: Mapping[str, View]) -> Keeping | None:
    """How a region of a parameter can stay as its source is stored; None if it cannot."""
    view = views[step.sources[0].name]
    if step.change is dequantized:
        whole = not any(size % FP8_BLOCK for size in view.shape)
        return kept.fp8(view.shape[1]) if whole else None
    if step.change is not None:
        return None
    (source,) = step.sources
    keeping = view.kept
    if keeping is None:
        return None
    ordered = step.order is not None or source.rows is not None
    if ordered and any(per > 1 for per in keeping.format.per):
        return None
    return keeping if source.columns is None else keeping.cut(source.columns, view.shape[1])


def layouts(
    steps: Sequence[Placement],
    views: Mapping[str, View],
    shapes: Mapping[str, torch.Size],
    keep: Keep,
    *,
    apart: bool = False,
) -> dict[str, list[Segment]]:
    """The parameters that stay as they are stored, in part at least.

    Args:
        steps: all placements.
        views: the checkpoint's tensors.
        shapes: of all parameters.
        keep: which formats stay.
        apart: do not join segments of experts, which then can be parts of a mapped file.

    Returns:
        Parameter -> its segments, from the first rows to the last.
    """
    by_target: defaultdict[str, list[Placement]] = defaultdict(list)
    for step in steps:
        by_target[step.target].append(step)
    found = {}
    for target, parts in by_target.items():
        shape, use = shapes[target], use_of(target)
        if len(shape) < 2:
            continue
        segments = _segments(parts, views, shape, partial(_keeps, keep, use))
        if not (apart and use == "experts"):
            segments = _joined(segments)
        if any(segment.keeping for segment in segments):
            found[target] = segments
    return found


def _keeps(keep: Keep, use: Use, format: str) -> bool:
    return keep(format, use)


def rows_of(step: Placement, shape: torch.Size) -> slice:
    """Rows of a matrix that a placement fills."""
    last = step.index[-1] if step.index else None
    return last if isinstance(last, slice) else slice(0, shape[-2])


def _segments(
    steps: Sequence[Placement],
    views: Mapping[str, View],
    shape: torch.Size,
    keep: Callable[[str], bool],
) -> list[Segment]:
    by_rows: defaultdict[tuple[int, int], list[Placement]] = defaultdict(list)
    for step in steps:
        rows = rows_of(step, shape)
        by_rows[rows.start, rows.stop].append(step)
    segments = []
    for (start, stop), parts in sorted(by_rows.items()):
        ways = [keeping_of(step, views) for step in parts]
        first, layouts = ways[0], {way and way.layout for way in ways}
        alike = first is not None and len(layouts) == 1 and keep(first.format.name)
        if first is not None and (stop - start) % max(first.format.per):
            alike = False
        segments.append(Segment(start, stop, first if alike else None, tuple(parts)))
    return segments


def _joined(segments: Sequence[Segment]) -> list[Segment]:
    joined: list[Segment] = []
    for one in segments:
        last = joined[-1] if joined else None
        if last and (last.keeping and last.keeping.layout) == (one.keeping and one.keeping.layout):
            steps = (*last.steps, *one.steps)
            joined[-1] = Segment(last.start, one.stop, last.keeping, steps)
        else:
            joined.append(one)
    return joined


def empty_part(
    segment: Segment,
    shape: torch.Size,
    device: torch.device | str,
    dtype: torch.dtype,
    data: Tensor | None = None,
) -> nn.Parameter | Weight:
    """What holds a segment of a parameter, not filled yet.

    Args:
        segment: of the parameter.
        shape: of the parameter.
        device: of the result.
        dtype: of plain numbers.
        data: the first plane, if it is there already.
    """
    *stack, _, columns = shape
    rows, keeping = segment.stop - segment.start, segment.keeping
    if keeping is None:
        plain = torch.empty(*stack, rows, columns, dtype=dtype, device=device)
        return nn.Parameter(plain, requires_grad=False)
    planes = [
        torch.empty(*stack, rows // per, width, dtype=kind, device=device)
        if number or data is None
        else data
        for number, (width, kind, per) in enumerate(
            zip(keeping.widths, keeping.dtypes, keeping.format.per, strict=True)
        )
    ]
    return Weight(keeping.format, (*stack, rows, columns), planes)
