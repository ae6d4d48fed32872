"""Checksums of the compiled binaries in the cache, verified before one is opened.

A shared library that was cut short ends the process with a bus error, and flipped bytes with a
segmentation fault, so the loader cannot be the one to find out.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SUFFIX = ".sha256"


class DamagedFileError(Exception):
    """A file differs from its checksum, or has none."""


def sidecar(path: Path) -> Path:
    """Returns the path of a file's checksum."""
    return path.with_name(path.name + SUFFIX)


def publish(made: Path, path: Path) -> None:
    """Moves a complete file to ``path``, after its checksum.

    Raises:
        OSError: a file cannot be written or moved.
    """
    checksum = made.with_name(made.name + SUFFIX)
    checksum.write_text(_describe(made), encoding="ascii")
    os.replace(checksum, sidecar(path))
    os.replace(made, path)


def published(path: Path) -> bool:
    """Whether a file and its checksum exist; cheap, and says nothing about the content."""
    return path.exists() and sidecar(path).exists()


def verify(path: Path) -> None:
    """Compares a file with its checksum.

    Raises:
        DamagedFileError: they differ, or there is no checksum.
        OSError: the file cannot be read.
    """
    try:
        expected = sidecar(path).read_bytes().decode("ascii", "replace").strip()
    except FileNotFoundError:
        raise DamagedFileError("it has no checksum") from None
    size = path.stat().st_size
    if not expected.startswith(f"{size} ") or _describe(path) != expected:
        raise DamagedFileError(f"its {size} bytes do not match its checksum")


def _describe(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{path.stat().st_size} {digest}"
