"""The machine that a measurement was taken on, as every JSON of this harness carries it.

Nothing is imported for it: torch describes itself where a scenario has loaded it.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
    """Versions, processor, threads and load; the GPU when there is one."""
    torch = sys.modules.get("torch")
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rt_drama3": _version("rt-drama3"),
        "rt_drama3_bench": _version("rt-drama3-bench"),
        "python": sys.version.split()[0],
        "torch": _version("torch") if torch is None else torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": None if torch is None else torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "gpu": _gpu(),
    }


def cpu_name() -> str:
    """The processor's model name, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


def nvidia_smi(*fields: str) -> list[str] | None:
    """What the driver reports of the first GPU, by the names of ``nvidia-smi --query-gpu``.

    None without an NVIDIA driver or GPU.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = answer.stdout.splitlines()
    return [value.strip() for value in lines[0].split(",")] if lines else None


def _gpu() -> dict[str, Any] | None:
    torch = sys.modules.get("torch")
    if torch is not None:
        if not torch.cuda.is_available():
            return None
        properties = torch.cuda.get_device_properties(0)
        return {
            "name": properties.name,
            "memory": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    found = nvidia_smi("name", "memory.total", "compute_cap")
    if found is None or len(found) != 3:
        return None
    name, mebibytes, capability = found
    memory = int(mebibytes) << 20 if mebibytes.isdigit() else None
    return {"name": name, "memory": memory, "capability": capability, "cuda": None}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
