"""Compiled packages: parts of the model compiled ahead of time for a CPU, kept on disk, run.

A package is made by AOTInductor, takes its weights as inputs (so one serves every checkpoint of the
same sizes), loads in milliseconds and needs no compiler to run. Building takes up to a minute of
one core, so it happens in a process of its own at low priority while the eager form already works.
Packages are keyed by everything they depend on: sizes, dtype, torch, processor, and the sources of
what was compiled. What failed is remembered for a while (``package_notes``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rt_drama3.aot import notes as package_notes
from rt_drama3.system.paths import cache_dir

log = logging.getLogger(__name__)

Run = Callable[[list[Tensor]], list[Tensor]]
_RUNNER_SOURCE = Path(__file__).with_name("runner.cpp")


class BrokenPackageError(RuntimeError):
    """A package that is there and does not load.

    Attributes:
        path: of the package.
    """

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(f"{path} does not load: {error}")
        self.path = path


def compiler() -> str | None:
    """The C++ compiler that a build would use, or None; ``$CXX`` alone where that is set."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++", "cl"]
    return next((found for c in candidates if (found := shutil.which(c))), None)


def folder() -> Path:
    """Where packages are kept."""
    return cache_dir() / "packages"


def package_path(name: str, facts: Any, sources: Sequence[str]) -> Path:
    """Where a package is, or would be, kept.

    Args:
        name: of the package; becomes the file's name.
        facts: sizes and dtypes that it was made for, as JSON values.
        sources: files and folders of this package that its code comes from.
    """
    everything = {
        "facts": facts,
        "torch": torch.__version__,
        "python": sys.version_info[:2],
        "machine": (platform.system(), platform.machine(), cpu_name()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "sources": _digest(tuple(sources)),
    }
    key = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:20]
    return folder() / key / f"{name}.pt2"


@functools.cache
def cpu_name() -> str:
    """The processor's model name, as well as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


@functools.cache
def _digest(sources: tuple[str, ...]) -> str:
    here, digest = Path(__file__).parents[1], hashlib.sha256()
    for name in sources:
        path = here / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def compile_package(module: nn.Module, inputs: tuple[Any, ...], shapes: Any, path: Path) -> None:
    """Compiles a module into ``path``, which appears whole or not at all.

    Args:
        module: without weights of its own.
        inputs: of its forward; lists of tensors.
        shapes: which dims are open, as torch.export wants them; None for none.
        path: of the package.
    """
    from torch._inductor import aoti_compile_and_package

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as work, torch.no_grad():
        program = torch.export.export(module, inputs, dynamic_shapes=shapes)
        package = aoti_compile_and_package(
            program,
            package_path=str(Path(work) / path.name),
            inductor_configs={"cpp.threads": torch.get_num_threads()},
        )
        os.replace(package, path)


def load_package(path: Path) -> Run:
    """Loads a package; the result runs it on the flattened inputs.

    Raises:
        BrokenPackageError: the file is missing, cut short, or was made for something else.
    """
    try:
        if _load_runner():
            number = torch.ops.rt_drama3.load(str(path))
            operator = torch.ops.rt_drama3.run.default
            return functools.partial(operator, number)
        # The public loader imports the whole compiler (seconds); this is the loader beneath it.
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    except (RuntimeError, OSError) as error:
        raise BrokenPackageError(path, error) from error
    run: Run = loader.run
    return run


def runner_path() -> Path:
    """Where the library is kept that runs packages without the interpreter lock."""
    facts = {"torch": torch.__version__, "source": _RUNNER_SOURCE.read_text()}
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]
    return folder() / f"runner-{key}.so"


def build_runner() -> None:
    """Compiles that library (seconds); without it packages run, but do not overlap.

    Raises:
        OSError, subprocess.SubprocessError: there is no compiler, or it failed.
    """
    program = compiler()
    if program is None or Path(program).stem == "cl":
        raise OSError("no g++ or clang++ found")
    target = runner_path()
    target.parent.mkdir(parents=True, exist_ok=True)
    home = Path(torch.__file__).parent
    includes = (home / "include", home / "include/torch/csrc/api/include")
    undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    abi = int(torch.compiled_with_cxx11_abi())
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work) / target.name
        subprocess.run(
            [
                *(program, "-O1", "-std=c++20", "-w", "-shared", "-fPIC", str(_RUNNER_SOURCE)),
                *("-o", str(made), f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
                *(f"-I{path}" for path in includes),
                *(f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10", *undefined),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        os.replace(made, target)


@functools.cache
def _load_runner() -> bool:
    """Whether the library is there and loaded; looked for once, when the first package loads."""
    path = runner_path()
    if not path.exists():
        return False
    try:
        torch.ops.load_library(path)
    except (OSError, RuntimeError) as error:
        log.warning("%s does not load (%s); packages run one at a time", path, error)
        package_notes.discard(path, str(error))
        return False
    return True
