"""Experts that stay in their file: stacks of weights over a read-only memory map.

What the system has read of a map counts as memory of the process until it is needed elsewhere, so a
model whose experts are mapped runs with less memory than its files have, and starts without reading
them. The price: a file that is cut short while it is mapped ends the process.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rt_drama3.checkpoint.layouts import Segment
from rt_drama3.checkpoint.views import View


class MappedFiles:
    """Files of a checkpoint, each mapped when it is first needed.

    Args:
        directory: of the checkpoint.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Tensor] = {}

    def stack(self, segment: Segment, views: Mapping[str, View]) -> Tensor | None:
        """The codes of a segment of all experts, ``[experts, rows, width]``, over the file.

        None if they have to be read: their format is not the one in the file, or the matrices are
        not at equal distances in one file.
        """
        keeping = segment.keeping
        if keeping is None or not keeping.mappable:
            return None
        steps = sorted(segment.steps, key=lambda step: step.index[:1])
        found = [views[step.sources[0].name] for step in steps]
        if any(len(view.pieces) > 1 or view.undo is not None for view in found):
            return None
        shards = {view.place[0] for view in found}
        starts = [view.place[1] for view in found]
        strides = {after - before for before, after in pairwise(starts)}
        rows, width, dtype = segment.stop - segment.start, keeping.widths[0], keeping.dtypes[0]
        nbytes = rows * width * dtype.itemsize
        stride = strides.pop() if strides else nbytes
        aligned = starts[0] % dtype.itemsize == 0 == stride % dtype.itemsize
        if len(shards) > 1 or strides or stride < nbytes or not aligned:
            return None
        span = stride * (len(found) - 1) + nbytes
        numbers = self._file(shards.pop())[starts[0] : starts[0] + span].view(dtype)
        return numbers.as_strided(
            (len(found), rows, width),
            (stride // dtype.itemsize, width, 1),
            numbers.storage_offset(),
        )

    def _file(self, name: str) -> Tensor:
        if name not in self._files:
            whole = np.memmap(self._directory / name, dtype=np.uint8, mode="r")
            with warnings.catch_warnings():
                # torch has no read-only tensors, and warns; nothing writes to a weight.
                warnings.filterwarnings("ignore", message=".*not writable.*")
                self._files[name] = torch.from_numpy(whole)
        return self._files[name]
