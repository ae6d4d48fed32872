"""Energy and processor time of a stretch of work, where the machine reports them.

Energy is that of the whole machine's processors (RAPL, Linux, often readable by root alone) and
GPUs (NVML through ``nvidia-smi``'s library), whatever used them.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RAPL = Path("/sys/class/powercap")


@dataclass(frozen=True)
class WorkCost:
    """The cost of a stretch of work.

    Attributes:
        seconds: elapsed.
        cpu_seconds: of processor time, of this process and its ended children, all threads.
        cpu_joules, gpu_joules: of the machine; None where it does not report them.
    """

    seconds: float
    cpu_seconds: float
    cpu_joules: float | None
    gpu_joules: float | None

    def per(self, audio_seconds: float) -> dict[str, float]:
        """Cost per second of audio, by resource; empty without audio."""
        if audio_seconds <= 0:
            return {}
        found = {"cpu_seconds": self.cpu_seconds / audio_seconds}
        for name in ("cpu_joules", "gpu_joules"):
            joules = getattr(self, name)
            if joules is not None:
                found[name] = joules / audio_seconds
        return found


class Meter:
    """Counts from its creation; ``spent`` returns the cost so far.

    Args:
        rapl: folder of the processors' counters.
        gpu: returns the GPUs' joules; None reads NVML.
    """

    def __init__(self, rapl: Path = RAPL, gpu: Callable[[], float] | None = None) -> None:
        self._zones = _zones(rapl)
        self._gpu = gpu if gpu is not None else nvml_joules()
        self._counts = {zone: _read(zone / "energy_uj") for zone in self._zones}
        self._joules_before = None if self._gpu is None else self._gpu()
        self._cpu = _cpu_seconds()
        self._started = time.monotonic()

    def spent(self) -> WorkCost:
        """The cost since the meter was created."""
        joules: float | None = None
        for zone, before in self._counts.items():
            now = _read(zone / "energy_uj")
            if before is None or now is None:
                continue
            if now < before:  # the counter wrapped around
                now += _read(zone / "max_energy_range_uj") or 0
            joules = (joules or 0.0) + max(0, now - before) / 1e6
        gpu = None
        if self._gpu is not None and self._joules_before is not None:
            gpu = self._gpu() - self._joules_before
        seconds = time.monotonic() - self._started
        return WorkCost(seconds, _cpu_seconds() - self._cpu, joules, gpu)


def nvml_joules() -> Callable[[], float] | None:
    """A function that returns the joules of all GPUs since the driver was loaded, or None."""
    try:
        nvml = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
    except OSError:
        return None
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return None
    handles: list[ctypes.c_void_p] = []
    for number in range(count.value):
        handle, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
        if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) != 0:
            continue
        if nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy)) == 0:
            handles.append(handle)
    if not handles:
        return None

    def joules() -> float:
        total = 0.0
        for handle in handles:
            millijoules = ctypes.c_ulonglong()
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
            total += millijoules.value / 1e3
        return total

    return joules


def _zones(folder: Path) -> list[Path]:
    """Whole packages; their parts (``intel-rapl:0:1``) are contained in them."""
    zones = [zone for zone in folder.glob("*rapl*:*") if zone.name.count(":") == 1]
    return sorted(zone for zone in zones if _read(zone / "energy_uj") is not None)


def _read(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _cpu_seconds() -> float:
    times = os.times()
    return time.process_time() + times.children_user + times.children_system
