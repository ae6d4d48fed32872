"""The frame step compiled ahead of time for a CPU, built once per machine and kind of model.

The unit is exported once per batch size, with the attention length, the context and the length of a
take left open, and packaged by AOTInductor without weights; loading a package takes milliseconds
and needs no compiler. Building takes about a minute of one core, so it happens in a process of its
own at low priority while the eager step already speaks, and a failure is remembered, not retried.

Packages are keyed by everything they depend on: sizes, dtype, torch, CPU, and the sources of the
step. Weights are inputs, so one package serves every checkpoint of the same sizes.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rt_drama3.cache import cache_dir
from rt_drama3.config import BackboneConfig, ModelConfig, TowerConfig
from rt_drama3.errors import ConfigError
from rt_drama3.graph_step import FrameOutput, FrameStep, StepTensors, frame_step
from rt_drama3.model import SpeechModel, StreamState
from rt_drama3.sampling import SlotSampling

log = logging.getLogger(__name__)

LARGEST_MODEL = 1_000_000_000  # parameters; beyond, a CPU is not realtime and a build not worth it
_SOURCES = ("compiled_step.py", "graph_step.py", "sampling.py", "model")


def compiler() -> str | None:
    """The C++ compiler that a build would use, or None."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++", "cl"]
    return next((found for c in candidates if (found := shutil.which(c))), None)


def package_path(config: ModelConfig, dtype: torch.dtype, streams: int) -> Path:
    """Where the package for ``streams`` streams is, or would be, kept."""
    facts = {
        "config": dataclasses.asdict(config),
        "dtype": str(dtype),
        "torch": torch.__version__,
        "python": sys.version_info[:2],
        "machine": (platform.system(), platform.machine(), cpu_name()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "sources": _source_digest(),
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]
    return cache_dir() / "steps" / key / f"streams-{streams}.pt2"


def cpu_name() -> str:
    """The processor's model name, as well as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


def _source_digest() -> str:
    folder, digest = Path(__file__).parent, hashlib.sha256()
    for name in _SOURCES:
        path = folder / name
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


class _Unit(nn.Module):
    """``frame_step`` over a flat list of tensors."""

    def __init__(self, model: SpeechModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        frame_step(self.model, _rebuild(tensors, self.model.config))
        return []


class _Exportable(nn.Module):
    """The unit with its weights as inputs.

    As constants of the package, small weights would be compiled into its code by value.
    """

    def __init__(self, model: SpeechModel) -> None:
        super().__init__()
        self._names = [f"model.{name}" for name, _ in model.named_parameters()]
        self._unit = [_Unit(model)]  # in a list, so that its weights are not this module's

    def forward(self, weights: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
        named = dict(zip(self._names, weights, strict=True))
        result: list[Tensor] = functional_call(self._unit[0], named, (tensors,))
        return result


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


def build(config: ModelConfig, dtype: torch.dtype, streams: int, path: Path) -> None:
    """Compiles the step for ``streams`` streams into ``path`` (made whole or not at all)."""
    from torch._inductor import aoti_compile_and_package
    from torch.export import Dim, export

    model = SpeechModel(config, "cpu", dtype)
    step = FrameStep(model, streams, context=64, max_frames=16)
    tensors = step.tensors(0, streams, 32)
    context, length, frames = (Dim(n, min=2) for n in ("context", "length", "frames"))
    cached = len(tensors.state.keys) * 2 + len(tensors.state.tower_keys) * 2
    shapes: list[dict[int, Dim]] = [
        {2: context} if i < cached else {} for i, _ in enumerate(tensors.state.tensors())
    ]
    shapes += [{1: frames} if t.dim() == 3 else {} for t in tensors.sampling.tensors()]
    shapes += [{} for _ in tensors.output.tensors()]
    shapes += [{1: context}, {1: context}, {0: length}]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, torch.no_grad():
        weights = [weight.zero_() for weight in model.parameters()]
        program = export(
            _Exportable(model),
            (weights, _flatten(tensors)),
            dynamic_shapes=([{}] * len(weights), shapes),
        )
        package = aoti_compile_and_package(
            program,
            package_path=str(Path(folder) / path.name),
            inductor_configs={"cpp.threads": torch.get_num_threads()},
        )
        os.replace(package, path)


class CompiledStep:
    """Runs the step of one ``FrameStep`` through packages of some batch sizes.

    A stream's numbers do not depend on the size of the batch it is computed in, bit for bit: every
    product is one reduction per row (see ``linear``). So streams are spread over whatever packages
    there are, and a package may join while takes are running.

    Args:
        step: whose tensors are advanced.
        sizes: batch sizes to load, 1 among them; more may be added.

    Raises:
        RuntimeError: a package is missing or does not load.
    """

    def __init__(self, step: FrameStep, sizes: Sequence[int]) -> None:
        self._step = step
        self._weights = list(step.model.parameters())
        self._packages: dict[int, Callable[[list[Tensor]], Any]] = {}
        self._inputs: dict[tuple[int, int, int], list[Tensor]] = {}
        for size in sizes:
            self.add(size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes that can be used now, ascending."""
        return tuple(sorted(self._packages))

    def add(self, size: int) -> None:
        """Loads the package of a batch size."""
        model = self._step.model
        path = package_path(model.config, model.dtype, size)
        # The public loader imports the whole compiler (seconds); this is the loader beneath it.
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
        self._packages[size] = loader.run

    def __call__(self, streams: int, length: int) -> None:
        """One frame for the active ones of the leading slots; see ``FrameStep.run``."""
        for start, size in self._spread(streams):
            key = (start, size, length)
            inputs = self._inputs.get(key)
            if inputs is None:
                tensors = self._step.tensors(start, start + size, length)
                inputs = self._inputs[key] = [*self._weights, *_flatten(tensors)]
            self._packages[size](inputs)

    def _spread(self, streams: int) -> Iterator[tuple[int, int]]:
        """First slot and size of each batch; idle slots fill a batch up, or are left out."""
        sizes, start = self.sizes, 0
        while start < streams:
            if not self._step.is_active(start):
                start += 1
                continue
            fitting = [n for n in sizes if n <= self._step.slots - start]
            size = next((n for n in fitting if n >= streams - start), fitting[-1])
            yield start, size
            start += size


class StepBuilder:
    """Finds or builds the packages that a model needs, without ever making it wait.

    Args:
        model: the checkpoint.
        batch_sizes: ascending batch sizes.
    """

    def __init__(self, model: SpeechModel, batch_sizes: Sequence[int]) -> None:
        self._model = model
        self._sizes = tuple(batch_sizes)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = cache_dir() / "steps" / "build.log"
        parameters = sum(p.numel() for p in model.parameters())
        self.obstacle: str | None = None  # why there will be no compiled step
        if parameters > LARGEST_MODEL:
            self.obstacle = "the model is too large for a realtime step on a CPU"
        elif not self.ready() and compiler() is None:
            self.obstacle = "there is no C++ compiler; install g++ or clang for a faster step"

    def _paths(self) -> list[Path]:
        return [package_path(self._model.config, self._model.dtype, n) for n in self._sizes]

    def ready(self) -> bool:
        """Whether every package is there."""
        return self.built() == self._sizes

    def built(self) -> tuple[int, ...]:
        """Batch sizes whose package is there."""
        found = zip(self._sizes, self._paths(), strict=True)
        return tuple(size for size, path in found if path.exists())

    def failure(self) -> str | None:
        """What a build died of, or None."""
        for path in self._paths():
            note = path.with_suffix(".failed")
            if note.exists():
                return f"{note.read_text().strip().splitlines()[-1]} (details: {note})"
        return None

    def start(self) -> None:
        """Starts building what is missing in a process of its own, which may outlive this one."""
        if self._process is not None or self.obstacle or self.ready() or self.failure():
            return
        config = json.dumps(dataclasses.asdict(self._model.config))
        arguments = ["--dtype", str(self._model.dtype).removeprefix("torch."), "--config", config]
        sizes = [str(n) for n in self._sizes]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *arguments, "--streams", *sizes],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def building(self) -> bool:
        """Whether the process started here still works."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the process started here.

        Raises:
            ConfigError: it did not produce the packages.
        """
        if self._process is not None:
            self._process.wait(timeout)
        if not self.ready():
            raise ConfigError(
                "the compiled step could not be built: "
                f"{self.obstacle or self.failure() or f'see {self._log}'}; use step mode eager."
            )


def _main() -> None:
    """Builds packages: what ``StepBuilder`` runs in the background."""
    parser = argparse.ArgumentParser(description="Build compiled frame steps.")
    parser.add_argument("--config", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--streams", nargs="+", type=int, required=True)
    options = parser.parse_args()
    if hasattr(os, "nice"):
        os.nice(10)
    torch.set_num_threads(1)
    config, dtype = _parse_config(options.config), getattr(torch, options.dtype)
    for streams in options.streams:
        path = package_path(config, dtype, streams)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with filelock.FileLock(path.with_suffix(".lock"), timeout=0):
                if not path.exists():
                    build(config, dtype, streams, path)
        except filelock.Timeout:
            return  # another process is at it, and will go on to the other sizes
        except Exception:
            path.with_suffix(".failed").write_text(traceback.format_exc())
            raise


def _parse_config(text: str) -> ModelConfig:
    def tuples(values: dict[str, Any]) -> dict[str, Any]:
        return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}

    values = json.loads(text)
    values["backbone"] = BackboneConfig(**tuples(values["backbone"]))
    values["tower"] = TowerConfig(**tuples(values["tower"]))
    return ModelConfig(**values)


if __name__ == "__main__":
    _main()
