"""C++ that is compiled once for a machine and kept in the cache, next to its checksum."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rt_drama3.system.checksums import publish


def compiler() -> str | None:
    """The C++ compiler that a build would use, or None; only ``$CXX`` where that is set."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++", "cl"]
    return next((found for c in candidates if (found := shutil.which(c))), None)


def compile_library(source: Path, target: Path, options: Sequence[str]) -> None:
    """Compiles a shared library, which appears whole or not at all.

    Args:
        source: one C++ file.
        target: path of the library; its folder is made.
        options: for g++ or clang++.

    Raises:
        OSError, subprocess.SubprocessError: there is no such compiler, or it failed.
    """
    program = compiler()
    if program is None or Path(program).stem == "cl":
        raise OSError("no g++ or clang++ found")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work) / target.name
        command = [program, "-w", "-shared", "-fPIC", str(source), "-o", str(made), *options]
        subprocess.run(command, check=True, capture_output=True, text=True)
        publish(made, target)
