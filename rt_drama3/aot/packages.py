"""Compiled packages: parts of the model compiled ahead of time for a CPU and cached on disk.

A package is made by AOTInductor, takes its weights as inputs (so one serves every checkpoint of the
same sizes), loads in milliseconds and needs no compiler to run. Building takes up to a minute of
one core, so it happens in a separate low-priority process while the eager form is in use. Packages
are keyed by everything they depend on: sizes, dtype, torch, processor, and the sources of what was
compiled. Each lies next to its checksum (see ``checksums``), and failures are recorded for a day
(see ``failures``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rt_drama3.aot import failures
from rt_drama3.aot.failures import folder
from rt_drama3.system.checksums import DamagedFileError, publish, published, verify
from rt_drama3.system.compiling import compile_library
from rt_drama3.system.machine import processor_name

log = logging.getLogger(__name__)

Run = Callable[[list[Tensor]], list[Tensor]]
_RUNNER_SOURCE = Path(__file__).with_name("runner.cpp")


class PackageLoadError(RuntimeError):
    """A package exists but does not load.

    Attributes:
        path: path of the package.
        damaged: the file is at fault, and not its surroundings, such as a full temporary folder.
    """

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(f"{path} does not load: {error}")
        self.path = path
        self.damaged = isinstance(error, DamagedFileError)


def package_path(name: str, facts: Any, sources: Sequence[str]) -> Path:
    """Returns the path of a package, which may not exist yet.

    Args:
        name: name of the package; becomes the file's name.
        facts: sizes and dtypes that it was made for, as JSON values.
        sources: files and folders of ``rt_drama3`` that its code comes from.
    """
    everything = {
        "facts": facts,
        "torch": torch.__version__,
        "python": sys.version_info[:2],
        "machine": (platform.system(), platform.machine(), processor_name()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "sources": _digest(tuple(sources)),
    }
    key = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:20]
    return folder() / key / f"{name}.pt2"


@functools.cache
def _digest(sources: tuple[str, ...]) -> str:
    here, digest = Path(__file__).parents[1], hashlib.sha256()
    for name in sources:
        path = here / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


class Exported(nn.Module):
    """A module whose weights are inputs.

    As constants of the package, small weights would be compiled into its code by value.
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names
        self._module = [module]  # in a list, so that its weights are not this module's

    def forward(self, weights: list[Tensor], inputs: tuple[Any, ...]) -> Any:
        named = dict(zip(self._names, weights, strict=True))
        return functional_call(self._module[0], named, inputs)


def compile_package(
    module: nn.Module, weights: dict[str, Tensor], inputs: tuple[Any, ...], shapes: Any, path: Path
) -> None:
    """Compiles a module into ``path``, which appears whole or not at all.

    The package takes the flattened ``weights`` and ``inputs``.

    Args:
        module: what is compiled.
        weights: its parameters and buffers by name.
        inputs: inputs of its forward; tensors and lists of tensors.
        shapes: dynamic dimensions of the inputs, in torch.export's form; None for none.
        path: path of the package.
    """
    from torch._inductor import aoti_compile_and_package

    exported, values = Exported(module, list(weights)), list(weights.values())
    dynamic: Any = None if shapes is None else ([{}] * len(values), shapes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as work, torch.no_grad():
        program = torch.export.export(exported, (values, inputs), dynamic_shapes=dynamic)
        package = aoti_compile_and_package(
            program,
            package_path=str(Path(work) / path.name),
            inductor_configs={"cpp.threads": torch.get_num_threads()},
        )
        publish(Path(package), path)


def load_package(path: Path) -> Run:
    """Loads a package; the result runs it on the flattened weights and inputs.

    Raises:
        PackageLoadError: the file is missing or damaged, or cannot be loaded here and now.
    """
    try:
        verify(path)
        if _load_runner():
            number = torch.ops.rt_drama3.load(str(path))
            operator = torch.ops.rt_drama3.run.default
            return functools.partial(operator, number)
        # The public loader imports the whole compiler (seconds); this is the loader beneath it.
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    except (DamagedFileError, RuntimeError, OSError) as error:
        raise PackageLoadError(path, error) from error
    run: Run = loader.run
    return run


class Packages:
    """The loaded packages of one kind, by batch size.

    Args:
        path: returns the path of the package of a batch size.
        sizes: batch sizes to load; more may be added.

    Raises:
        PackageLoadError: see ``load_package``.
    """

    def __init__(self, path: Callable[[int], Path], sizes: Iterable[int]) -> None:
        self._path = path
        self._packages: dict[int, Run] = {}
        for size in sizes:
            self.add(size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes that can be used now, ascending."""
        return tuple(sorted(self._packages))

    def add(self, size: int) -> None:
        """Loads the package of a batch size."""
        self._packages[size] = load_package(self._path(size))


def runner_path() -> Path:
    """Returns the path of the library that runs packages without the interpreter lock."""
    facts = {"torch": torch.__version__, "source": _RUNNER_SOURCE.read_text()}
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]
    return folder() / f"runner-{key}.so"


def build_runner() -> None:
    """Compiles that library (seconds); without it packages run one at a time.

    Raises:
        OSError, subprocess.SubprocessError: there is no compiler, or it failed.
    """
    home = Path(torch.__file__).parent
    includes = (home / "include", home / "include/torch/csrc/api/include")
    undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    abi = int(torch.compiled_with_cxx11_abi())
    options = [
        *("-O1", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
        *(f"-I{path}" for path in includes),
        *(f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10", *undefined),
    ]
    compile_library(_RUNNER_SOURCE, runner_path(), options)


@functools.cache
def _load_runner() -> bool:
    """Whether the library exists and is loaded; checked once, when the first package loads."""
    path = runner_path()
    if not published(path):
        return False
    try:
        verify(path)
        torch.ops.load_library(path)
    except (DamagedFileError, OSError, RuntimeError) as error:
        log.warning("%s does not load: %s; packages run one at a time", path, error)
        if isinstance(error, DamagedFileError):
            failures.discard(path, str(error))
        return False
    return True
