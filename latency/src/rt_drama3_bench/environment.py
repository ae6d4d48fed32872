"""The machine that a measurement was taken on, as every JSON of this harness carries it."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Any

import torch

import rt_drama3
from rt_drama3.aot.packages import cpu_name


def environment() -> dict[str, Any]:
    """Versions, processor, threads and load; the GPU when there is one."""
    facts: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rt_drama3": rt_drama3.__version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "gpu": None,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts["gpu"] = {
            "name": properties.name,
            "memory": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return facts
