"""Fills the parameters of a model from a checkpoint, tensor by tensor.

Peak host memory is what stays resident plus one tensor, or one chunk of a large one (and some small
ones in other threads): parameters are allocated on their device and filled region by region; each
tensor is read in file order, checked, converted and dropped. No shard is ever read as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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
from rt_drama3.checkpoint.threads import in_threads
from rt_drama3.checkpoint.views import View
from rt_drama3.errors import CheckpointError
from rt_drama3.model import SpeechModel
from rt_drama3.model.weights import FP8_BLOCK, Rows, Weight, dequantize_into
from rt_drama3.system.machine import compute_cores
from rt_drama3.system.memory import touch

Progress = Callable[[int, int], None]

CHUNK_BYTES = 4 << 20  # bytes per read of a tensor that is copied row by row
MANY_BYTES = 256 << 20  # from which on several threads fill a model
MOST_THREADS = 4


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
            plain = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
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


class _Hand:
    """What one thread reads with: files that are its own, and memory that it uses again.

    Fresh memory for each tensor would cost more than reading it.
    """

    def __init__(self, directory: Path) -> None:
        self.reader = TensorReader(directory)
        self._codes = self._room = torch.empty(0, dtype=torch.uint8)

    def codes(self, nbytes: int) -> Tensor:
        """Bytes for the codes of a matrix."""
        if self._codes.numel() < nbytes:
            self._codes = torch.empty(nbytes, dtype=torch.uint8)
        return self._codes[:nbytes]

    def room(self, nbytes: int) -> Tensor:
        """Bytes to compute in."""
        if self._room.numel() < nbytes:
            self._room = torch.empty(nbytes, dtype=torch.uint8)
        return self._room[:nbytes]

    def close(self) -> None:
        """Closes its files."""
        self.reader.close()


class Filler:
    """Carries out placements and counts the bytes.

    Args:
        parts: what holds each parameter.
        directory: of the files.
        views: the checkpoint's tensors.
        specs: what they have to be.
        progress: called with bytes done and bytes in all, from one thread at a time.
        device: of the model.
    """

    def __init__(
        self,
        parts: Parts,
        directory: Path,
        views: Mapping[str, View],
        specs: Mapping[str, TensorSpec],
        progress: Progress | None,
        device: torch.device,
    ) -> None:
        self._parts, self._directory = parts, directory
        self._views, self._specs = views, specs
        self._progress = progress
        # Changes run where the parameters are, if that is a CUDA device: others lack float64.
        self._work = device if device.type == "cuda" else torch.device("cpu")
        self._done = self._total = 0.0
        self._counting = threading.Lock()

    def fill(self, steps: Sequence[Placement]) -> None:
        """Reads everything, in the order of the files.

        Memory is first touched here, which takes longer than to read what is put there; so a large
        model on a CPU is filled by several threads.

        Raises:
            CheckpointError: a file cannot be read, or holds what is not a number.
        """
        steps = sorted(steps, key=lambda step: self._views[step.sources[0].name].place)
        sizes = [sum(self._nbytes(source) for source in step.sources) for step in steps]
        self._total = sum(sizes)
        several = self._work.type == "cpu" and self._total >= MANY_BYTES
        in_threads(
            [partial(self._fill, step) for step in steps],
            min(MOST_THREADS, compute_cores()) if several else 1,
            lambda: _Hand(self._directory),
            alone=[size > CHUNK_BYTES for size in sizes],
        )

    def _fill(self, step: Placement, hand: _Hand) -> None:
        parts = self._parts[step.target]
        if parts[0].segment is None:
            assert isinstance(parts[0].holder, nn.Parameter)
            self._fill_plain(step, parts[0].holder[step.index], hand)
            return
        shape = parts[0].holder.shape
        rows = rows_of(step, torch.Size((*shape[:-2], _height(parts), shape[-1])))
        for part in parts:
            segment = part.segment
            assert segment is not None
            if segment.start <= rows.start < segment.stop:
                rows = slice(rows.start - segment.start, rows.stop - segment.start)
                self._fill_part(step, part, rows, hand)
                break

    def _fill_plain(self, step: Placement, region: Tensor, hand: _Hand) -> None:
        _touch(region)
        if step.change is None and step.order is None:
            (source,) = step.sources
            for rows, chunk in self._chunks(source, region, hand):
                if chunk is not None:
                    _copy(region[rows], chunk, source.name)
            return
        if step.change is dequantized:
            codes, scales = step.sources
            numbers, factors = self._codes(codes, hand), self._chunk(scales, None, hand)
            dequantize_into(region, numbers, factors, hand.room(6 * FP8_BLOCK * region.shape[1]))
            _require_range(region, step.sources[0].name)
            return
        tensors = [self._chunk(source, source.rows, hand) for source in step.sources]
        if step.change is None:
            assert step.order is not None
            changed = tensors[0][step.order.to(self._work)]
        else:
            changed = step.change(tensors, region.dtype)
        _copy(region, changed, step.sources[0].name)

    def _fill_part(self, step: Placement, part: Part, rows: slice, hand: _Hand) -> None:
        holder = part.holder
        stack = step.index[:1] if holder.dim() == 3 else ()
        if not isinstance(holder, Weight):
            self._fill_plain(step, holder[stack][rows], hand)
            return
        for some, planes in self._planes(step, part, rows, hand.reader):
            pairs = zip(holder.planes(), planes, holder.format.per, strict=True)
            for whole, plane, per in pairs:
                if plane is not None:
                    region = whole[stack][some.start // per : -(-some.stop // per)]
                    assert region.shape == plane.shape, step.target
                    region.copy_(plane)

    def _planes(
        self, step: Placement, part: Part, rows: slice, reader: TensorReader
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
                _touch(region)
                if view.read_into(reader, some, region):
                    there = True
                    check_planes(view.name, [region], keeping, False)
            planes: list[Tensor | None]
            if step.change is dequantized:
                _, scales = step.sources
                codes = None if there else view.read(reader, None, self._work)
                factors = self._views[scales.name].read(reader, None, self._work)
                planes = [codes, factors.float()]
                self._count(scales, self._views[scales.name].elements)
            else:
                planes = view.planes(reader, some, self._work, there)
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
        return self._views[source.name].nbytes_of(source.rows, source.columns)

    def _chunks(
        self, source: Source, region: Tensor, hand: _Hand
    ) -> Iterator[tuple[slice, Tensor | None]]:
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
            if direct and view.read_into(hand.reader, some, region[place]):
                check_numbers(view.name, region[place], self._specs[source.name].kind)
                self._count(source, region[place].numel())
                yield place, None
            else:
                yield place, self._chunk(source, some, hand)

    def _chunk(self, source: Source, rows: slice | None, hand: _Hand) -> Tensor:
        view = self._views[source.name]
        chunk = view.read(hand.reader, rows, self._work)
        if source.columns is not None:
            chunk = chunk[:, source.columns]
        check_numbers(view.name, chunk, self._specs[source.name].kind)
        self._count(source, chunk.numel())
        return chunk

    def _codes(self, source: Source, hand: _Hand) -> Tensor:
        """An FP8 matrix, valid until the next one."""
        view = self._views[source.name]
        if self._work.type != "cpu":
            return self._chunk(source, None, hand)
        codes = hand.codes(view.elements).view(torch.float8_e4m3fn).view(view.shape)
        if not view.read_into(hand.reader, slice(0, view.shape[0]), codes):
            return self._chunk(source, None, hand)
        check_numbers(view.name, codes, self._specs[source.name].kind)
        self._count(source, codes.numel())
        return codes

    def _count(self, source: Source, elements: int) -> None:
        view = self._views[source.name]
        with self._counting:
            self._done += elements * (view.nbytes / view.elements)
            if self._progress is not None:
                self._progress(round(self._done), round(self._total))


def _touch(region: Tensor) -> None:
    """Gets the memory of a region that is about to be filled."""
    if region.device.type == "cpu" and region.is_contiguous():
        touch(region.data_ptr(), region.nbytes)


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
    _require_range(region, name)


def _require_range(region: Tensor, name: str) -> None:
    if region.dtype == torch.float16 and not bool(region.isfinite().all()):
        raise CheckpointError(
            f"{name} holds values out of range of float16; load with dtype bfloat16 or float32."
        )
