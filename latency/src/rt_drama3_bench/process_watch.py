"""Memory, file descriptors and threads of another process, as Linux reports them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """Usage of one process; None where the system does not report it.

    Attributes:
        memory_mb: resident and its own (anonymous), in MiB.
        descriptors: open files and sockets.
        threads: of it.
    """

    memory_mb: float | None = None
    descriptors: int | None = None
    threads: int | None = None


def usage(pid: int, proc: Path = Path("/proc")) -> Usage:
    """Reads a process's usage; empty for one that has ended, or on another system."""
    folder = proc / str(pid)
    try:
        lines = (folder / "status").read_text(encoding="utf-8").splitlines()
        open_files = sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        return Usage()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    memory = found.get("RssAnon", "").split()
    threads = found.get("Threads", "").strip()
    return Usage(
        int(memory[0]) / 1024 if memory else None,
        open_files,
        int(threads) if threads.isdigit() else None,
    )
