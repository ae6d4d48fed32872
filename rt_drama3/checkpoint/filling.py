"""Fills the parameters of a model from a checkpoint, tensor by tensor.

Peak host memory is what stays resident plus one tensor (or one chunk of a large one): parameters
are allocated on their device and filled region by region; each tensor is read in file order,
checked, converted and dropped. No shard is ever read as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from rt_drama3.checkpoint.conformance import check_numbers, check_planes
from rt_drama3.checkpoint.inventory import TensorSpec
from rt_drama3.checkpoint.layouts import ModelLayout, Segment, empty_part, keeping_of, rows_of
from rt_drama3.checkpoint.mapping import MappedFiles
from rt_drama3.checkpoint.placement import Placement, Source, dequantized
from rt_drama3.checkpoint.tensors import TensorReader
from rt_drama3.checkpoint.views import View
from rt_drama3.errors import CheckpointError
from rt_drama3.model import SpeechModel
from rt_drama3.model.weights import Rows, Weight

Progress = Callable[[int, int], None]

CHUNK_BYTES = 32 << 20  # bytes per read of a tensor that is copied row by row


class Part:
    """What holds some rows of a parameter.

    Args:
        segment: the rows; None are all of them, as plain numbers.
        holder: a parameter or weight with these rows.
        mapped: the first plane is there already.
    """

    def __init__(
        self, segment: Segment | None, holder: nn.Parameter | Weight, mapped: bool = False
    ) -> None:
        self.segment, self.holder, self.mapped = segment, holder, mapped


Parts: TypeAlias = Mapping[str, Sequence[Part]]


def allocate(
    layout: ModelLayout, device: torch.device, mapped: Path | None
) -> tuple[SpeechModel, Parts]:
    """Gives a model its memory, not filled yet.

    Args:
        layout: what becomes of each parameter.
        device: of the memory.
        mapped: folder of the checkpoint if experts stay in its files, where they can.

    Returns:
        The model, and what holds each parameter.
    """
    model, files = layout.model, None if mapped is None else MappedFiles(mapped)
    parts: dict[str, list[Part]] = {}
    for target, parameter in list(model.named_parameters()):
        owner_name, _, name = target.rpartition(".")
        owner = model.get_submodule(owner_name)
        segments = layout.kept.get(target)
        if segments is None:
            plain = torch.empty_like(parameter, device=device)
            held = nn.Parameter(plain, requires_grad=False)
            parts[target] = [Part(None, held)]
            setattr(owner, name, held)
            continue
        found = []
        for segment in segments:
            data = None
            if files is not None and parameter.dim() == 3:
                data = files.stack(segment, layout.views)
            holder = empty_part(segment, parameter.shape, device, parameter.dtype, data)
            found.append(Part(segment, holder, data is not None))
        holders = [part.holder for part in found]
        delattr(owner, name)  # a module takes its place
        setattr(owner, name, holders[0] if len(holders) == 1 else Rows(holders))
        parts[target] = found
    return model, parts


class Filler:
    """Carries out placements and counts the bytes.

    Args:
        parts: what holds each parameter.
        reader: of the files.
        views: the checkpoint's tensors.
        specs: what they have to be.
        progress: called with bytes done and bytes in all.
        device: of the model.
    """

    def __init__(
        self,
        parts: Parts,
        reader: TensorReader,
        views: Mapping[str, View],
        specs: Mapping[str, TensorSpec],
        progress: Progress | None,
        device: torch.device,
    ) -> None:
        self._parts, self._reader = parts, reader
        self._views, self._specs = views, specs
        self._progress = progress
        # Changes run where the parameters are, if that is a CUDA device: others lack float64.
        self._work = device if device.type == "cuda" else torch.device("cpu")
        self._done = self._total = 0.0

    def fill(self, steps: Sequence[Placement]) -> None:
        """Reads everything, in the order of the files.

        Raises:
            CheckpointError: a file cannot be read, or holds what is not a number.
        """
        steps = sorted(steps, key=lambda step: self._views[step.sources[0].name].place)
        self._total = sum(self._nbytes(source) for step in steps for source in step.sources)
        for step in steps:
            parts = self._parts[step.target]
            if parts[0].segment is None:
                assert isinstance(parts[0].holder, nn.Parameter)
                self._fill_plain(step, parts[0].holder[step.index])
                continue
            shape = parts[0].holder.shape
            rows = rows_of(step, torch.Size((*shape[:-2], _height(parts), shape[-1])))
            for part in parts:
                segment = part.segment
                assert segment is not None
                if segment.start <= rows.start < segment.stop:
                    rows = slice(rows.start - segment.start, rows.stop - segment.start)
                    self._fill_part(step, part, rows)
                    break

    def _fill_plain(self, step: Placement, region: Tensor) -> None:
        if step.change is None and step.order is None:
            (source,) = step.sources
            for rows, chunk in self._chunks(source, region):
                if chunk is not None:
                    _copy(region[rows], chunk, source.name)
            return
        tensors = [self._chunk(source, source.rows) for source in step.sources]
        if step.change is None:
            assert step.order is not None
            changed = tensors[0][step.order.to(self._work)]
        else:
            changed = step.change(tensors, region.dtype)
        _copy(region, changed, step.sources[0].name)

    def _fill_part(self, step: Placement, part: Part, rows: slice) -> None:
        holder = part.holder
        stack = step.index[:1] if holder.dim() == 3 else ()
        if not isinstance(holder, Weight):
            self._fill_plain(step, holder[stack][rows])
            return
        for some, planes in self._planes(step, part, rows):
            pairs = zip(holder.planes(), planes, holder.format.per, strict=True)
            for whole, plane, per in pairs:
                if plane is not None:
                    region = whole[stack][some.start // per : -(-some.stop // per)]
                    assert region.shape == plane.shape, step.target
                    region.copy_(plane)

    def _planes(
        self, step: Placement, part: Part, rows: slice
    ) -> Iterator[tuple[slice, list[Tensor | None]]]:
        """The planes of a source, in chunks if they can be divided, each with its rows.

        None is a first plane that is there already: mapped, or read where it belongs.
        """
        source, keeping = step.sources[0], keeping_of(step, self._views)
        assert keeping is not None
        view = self._views[source.name]
        assert isinstance(part.holder, Weight)
        data = part.holder.data[step.index[:1] if part.holder.dim() == 3 else ()]
        taken = source.rows or slice(0, view.shape[0])
        size = taken.stop - taken.start
        whole = step.change is not None or step.order is not None or not view.divisible
        chunk = size if whole else max(1, CHUNK_BYTES * view.shape[0] // max(view.nbytes, 1))
        for start in range(0, size, chunk):
            stop = min(start + chunk, size)
            some = slice(taken.start + start, taken.start + stop)
            place = slice(rows.start + start, rows.start + stop)
            there = part.mapped
            if not there and keeping.mappable and source.columns is None and step.order is None:
                region = data[place]
                if view.read_into(self._reader, some, region):
                    there = True
                    check_planes(view.name, [region], keeping, False)
            planes: list[Tensor | None]
            if step.change is dequantized:
                _, scales = step.sources
                codes = None if there else view.read(self._reader, None, self._work)
                factors = self._views[scales.name].read(self._reader, None, self._work)
                planes = [codes, factors.float()]
                self._count(scales, self._views[scales.name].elements)
            else:
                planes = view.planes(self._reader, some, self._work, there)
            if source.columns is not None:
                planes = [_columns(p, source.columns, view.shape[1]) for p in planes]
            if step.order is not None:
                order = step.order.to(self._work)
                planes = [None if plane is None else plane[order] for plane in planes]
            check_planes(view.name, planes, keeping, len(step.sources) > 1)
            self._count(source, (stop - start) * _width(source, view))
            yield place, planes

    def _nbytes(self, source: Source) -> float:
        """Stored bytes of what a source takes."""
        view = self._views[source.name]
        shape = list(view.shape)
        for dim, part in enumerate((source.rows, source.columns)):
            if part is not None:
                shape[dim] = part.stop - part.start
        return math.prod(shape) * (view.nbytes / view.elements)

    def _chunks(self, source: Source, region: Tensor) -> Iterator[tuple[slice, Tensor | None]]:
        """A source in chunks of up to ``CHUNK_BYTES``, each with its rows in the region.

        None are rows that are there already: they were read where they belong.
        """
        view = self._views[source.name]
        rows = source.rows or slice(0, view.shape[0])
        step = rows.stop - rows.start
        if view.divisible:
            size = view.elements * 4 if view.quantised else view.nbytes
            step = max(1, CHUNK_BYTES * view.shape[0] // max(size, 1))
        for start in range(rows.start, rows.stop, step):
            stop = min(start + step, rows.stop)
            some, place = slice(start, stop), slice(start - rows.start, stop - rows.start)
            direct = not view.quantised and source.columns is None and view.divisible
            if direct and view.read_into(self._reader, some, region[place]):
                check_numbers(view.name, region[place], self._specs[source.name].kind)
                self._count(source, region[place].numel())
                yield place, None
            else:
                yield place, self._chunk(source, some)

    def _chunk(self, source: Source, rows: slice | None) -> Tensor:
        view = self._views[source.name]
        chunk = view.read(self._reader, rows, self._work)
        if source.columns is not None:
            chunk = chunk[:, source.columns]
        check_numbers(view.name, chunk, self._specs[source.name].kind)
        self._count(source, chunk.numel())
        return chunk

    def _count(self, source: Source, elements: int) -> None:
        view = self._views[source.name]
        self._done += elements * (view.nbytes / view.elements)
        if self._progress is not None:
            self._progress(round(self._done), round(self._total))


def _height(parts: Sequence[Part]) -> int:
    last = parts[-1].segment
    assert last is not None
    return last.stop


def _width(source: Source, view: View) -> int:
    if source.columns is not None:
        return int(source.columns.stop - source.columns.start)
    return view.shape[1]


def _columns(plane: Tensor | None, columns: slice, total: int) -> Tensor | None:
    """What some columns of a matrix need of a plane."""
    if plane is None:
        return None
    width = plane.shape[1]
    return plane[:, columns.start * width // total : columns.stop * width // total]


def _copy(region: Tensor, values: Tensor, name: str) -> None:
    """Fills a region; refuses values out of range of its dtype."""
    assert region.shape == values.shape, name  # copy_ would broadcast
    region.copy_(values)
    if region.dtype == torch.float16 and not bool(region.isfinite().all()):
        raise CheckpointError(
            f"{name} holds values out of range of float16; load with dtype bfloat16 or float32."
        )
