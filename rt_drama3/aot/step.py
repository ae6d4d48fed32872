"""The frame step compiled ahead of time for a CPU, one package per batch size.

The attention length, the context and the length of a take are dynamic dimensions of the package,
and the weights are its inputs (see ``packages``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from rt_drama3.aot.packages import Packages, compile_package, package_path
from rt_drama3.config import ModelConfig
from rt_drama3.graph_step import FrameOutput, FrameStep, StepTensors, frame_step
from rt_drama3.model import SpeechModel, StreamState
from rt_drama3.model.sampling import SlotSampling

_SOURCES = ("aot/step.py", "aot/packages.py", "graph_step.py", "model")


def step_package(config: ModelConfig, dtype: torch.dtype, streams: int) -> Path:
    """Returns the path of the package for ``streams`` streams."""
    facts = {"config": dataclasses.asdict(config), "dtype": str(dtype)}
    return package_path(f"step-{streams}", facts, _SOURCES)


class _Unit(nn.Module):
    """``frame_step`` over a flat list of tensors."""

    def __init__(self, model: SpeechModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        frame_step(self.model, _rebuild(tensors, self.model.config))
        return []


def _flatten(tensors: StepTensors) -> list[Tensor]:
    return [
        *tensors.state.tensors(),
        *tensors.sampling.tensors(),
        *tensors.output.tensors(),
        *tensors.ropes,
        tensors.column,
    ]


def _rebuild(tensors: list[Tensor], config: ModelConfig) -> StepTensors:
    left = list(tensors)

    def take(count: int) -> list[Tensor]:
        taken = left[:count]
        del left[:count]
        return taken

    linear = config.backbone.layer_types.count("linear_attention")
    full, tower = config.backbone.layers - linear, config.tower.layers
    keys, values, tower_keys = take(full), take(full), take(tower)
    tower_values, tails, matrices = take(tower), take(linear), take(linear)
    rest = take(5)
    state = StreamState(keys, values, tower_keys, tower_values, tails, matrices, *rest)
    sampling = SlotSampling(*take(len(dataclasses.fields(SlotSampling))))
    output = FrameOutput(*take(len(dataclasses.fields(FrameOutput))))
    back_rope, tower_rope, column = take(3)
    return StepTensors(state, sampling, output, (back_rope, tower_rope), column)


def build_step(config: ModelConfig, dtype: torch.dtype, streams: int, path: Path) -> None:
    """Compiles the step for ``streams`` streams."""
    from torch.export import Dim

    model = SpeechModel(config, "cpu", dtype)
    weights = {f"model.{name}": weight.zero_() for name, weight in model.named_parameters()}
    tensors = FrameStep(model, streams, context=64, max_frames=16).tensors(0, streams, 32)
    context, length, frames = (Dim(n, min=2) for n in ("context", "length", "frames"))
    cached = 2 * (len(tensors.state.keys) + len(tensors.state.tower_keys))
    shapes: list[dict[int, Dim]] = [
        {2: context} if i < cached else {} for i, _ in enumerate(tensors.state.tensors())
    ]
    shapes += [{1: frames} if t.dim() == 3 else {} for t in tensors.sampling.tensors()]
    shapes += [{} for _ in tensors.output.tensors()]
    shapes += [{1: context}, {1: context}, {0: length}]
    compile_package(_Unit(model), weights, (_flatten(tensors),), (shapes,), path)


class CompiledStep(Packages):
    """A runner that runs the step through packages of some batch sizes.

    A stream's numbers do not depend on the size of the batch it is computed in, bit for bit: every
    product is one reduction per row (see ``linear``). So streams are spread over the available
    packages, and a package may be added while takes are running. A CFG pair needs a package of two;
    one that starts without it runs eagerly to its end, since eager and compiled steps agree in
    their codes but not in every bit.

    Args:
        step: owns the tensors that are advanced.
        sizes: batch sizes to load, 1 among them; more may be added.

    Raises:
        RuntimeError: a package is missing or does not load.
    """

    def __init__(self, step: FrameStep, sizes: Sequence[int]) -> None:
        self._step = step
        self._weights = list(step.model.parameters())
        self._inputs: dict[tuple[int, int, int], list[Tensor]] = {}
        self._eager_pairs: set[int] = set()  # by their first slot
        config, dtype = step.model.config, step.model.dtype
        super().__init__(lambda streams: step_package(config, dtype, streams), sizes)

    def __call__(self, slots: int, length: int) -> None:
        """Makes one frame for the active streams in the leading slots; see ``FrameStep.run``."""
        for start, size in self._batches(slots):
            if start in self._eager_pairs:
                frame_step(self._step.model, self._step.tensors(start, start + size, length))
                continue
            key = (start, size, length)
            inputs = self._inputs.get(key)
            if inputs is None:
                tensors = self._step.tensors(start, start + size, length)
                inputs = self._inputs[key] = [*self._weights, *_flatten(tensors)]
            self._packages[size](inputs)

    def _batches(self, slots: int) -> list[tuple[int, int]]:
        """First slot and size of each batch; idle slots fill a batch up, or are left out.

        Updates which CFG pairs run eagerly.
        """
        step, sizes, start, batches = self._step, self.sizes, 0, []
        self._eager_pairs = {n for n in self._eager_pairs if step.starts_pair(n)}
        while start < slots:
            if not step.is_active(start):
                start += 1
                continue
            # A pair that runs eagerly ends the batch in front of it.
            end = min((n for n in self._eager_pairs if n >= start), default=step.slots)
            fitting = [n for n in sizes if n <= end - start and not step.starts_pair(start + n - 1)]
            if fitting:
                size = next((n for n in fitting if n >= slots - start), fitting[-1])
            else:
                self._eager_pairs.add(start)
                size = 2
            batches.append((start, size))
            start += size
        return batches
