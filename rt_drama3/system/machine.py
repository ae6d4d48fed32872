"""Machine facts that the standard library does not report in one call. No torch in this file."""

from __future__ import annotations

import functools
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes; None where the system does not report a value.

    Attributes:
        total: installed memory.
        free: memory available without swapping.
        limit: container limit of this process.
    """

    total: int | None = None
    free: int | None = None
    limit: int | None = None


def usable_cores() -> int:
    """Returns the number of CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Returns the CPU quota of this process's control groups in cores; None without one.

    Reads the interfaces of versions 1 and 2, of every group from the process's own upwards.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    limits: list[float] = []
    for line in _words_of(root / "proc/self/cgroup", "\n"):
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounts = ("cpu", "cpu,cpuacct") if controllers else ("", "unified")
        for folder in (root / "sys/fs/cgroup" / mount for mount in mounts):
            path = folder / group.strip("/")
            for place in (path, *(p for p in path.parents if p == folder or folder in p.parents)):
                quota = _words_of(place / "cpu.max")
                if not quota:
                    quota = _words_of(place / "cpu.cfs_quota_us")
                    quota += _words_of(place / "cpu.cfs_period_us")
                if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
                    limits.append(int(quota[0]) / max(1, int(quota[1])))
    return min(limits, default=None)


def compute_cores(limit: float | None = None) -> int:
    """Returns the number of threads that can compute without being throttled.

    Args:
        limit: CPU quota in cores; None reads that of this process.
    """
    limit = cpu_limit() if limit is None else limit
    cores = usable_cores()
    return cores if limit is None else max(1, min(cores, int(limit)))


def _words_of(file: Path, separator: str | None = None) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").split(separator)
    except OSError:
        return []


def cpuinfo(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Returns Linux's description of the first core; empty on other systems."""
    try:
        first = path.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


@functools.cache
def processor_name() -> str:
    """Returns the model name of the processor, or else its architecture."""
    return cpuinfo().get("model name") or platform.processor() or platform.machine()


def memory() -> Memory:
    """Returns the size of main memory and how much of it is free."""
    if sys.platform == "win32":
        import ctypes

        names = ("total", "free", "c", "d", "e", "f", "g")

        class Status(ctypes.Structure):
            _fields_ = (
                *(("length", ctypes.c_ulong), ("load", ctypes.c_ulong)),
                *((name, ctypes.c_ulonglong) for name in names),
            )

        status = Status(length=ctypes.sizeof(Status))
        if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            return Memory()
        return Memory(int(status.total), int(status.free))
    else:
        free = limit = None
        meminfo = Path("/proc/meminfo")
        if meminfo.exists():
            for line in meminfo.read_text(encoding="ascii").splitlines():
                if line.startswith("MemAvailable:"):
                    free = int(line.split()[1]) * 1024
        cgroup = Path("/sys/fs/cgroup/memory.max")
        if cgroup.exists():
            text = cgroup.read_text(encoding="ascii").strip()
            limit = int(text) if text.isdigit() else None
        return Memory(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), free, limit)


def sound_servers() -> list[str] | None:
    """Returns which of PulseAudio and PipeWire accept a connection; None on other systems."""
    if sys.platform == "linux":
        runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
        named = os.environ.get("PULSE_SERVER", "").removeprefix("unix:")
        pulse = Path(named) if named.startswith("/") else runtime / "pulse" / "native"
        sockets = {"PulseAudio": pulse, "PipeWire": runtime / "pipewire-0"}
        return [name for name, path in sockets.items() if _accepts(path)]
    else:
        return None


if sys.platform != "win32":
    import socket

    def _accepts(path: Path) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(1.0)
            try:
                client.connect(os.fspath(path))
            except OSError:
                return False
        return True


class _Silence:
    """The blocks that silence standard error at the moment, and what it was before."""

    lock = threading.Lock()
    blocks = 0
    kept: int | None = None


@contextmanager
def silent_stderr() -> Iterator[None]:
    """Redirects file descriptor 2 to the null device inside the block; any thread.

    C libraries bypass ``sys.stderr``: ALSA complains about every card that is absent.
    """
    with _Silence.lock:
        _Silence.blocks += 1
        if _Silence.blocks == 1:
            _Silence.kept = _silence()
    try:
        yield
    finally:
        with _Silence.lock:
            _Silence.blocks -= 1
            kept = _Silence.kept
            if _Silence.blocks == 0 and kept is not None:
                os.dup2(kept, 2)
                os.close(kept)


def _silence() -> int | None:
    """Redirects file descriptor 2 and returns a copy of it; None if it is closed."""
    try:
        kept = os.dup(2)
    except OSError:
        return None
    if sys.stderr is not None:
        sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    return kept
