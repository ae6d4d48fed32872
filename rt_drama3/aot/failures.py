"""Records of compiled packages that failed: kept for a day, and for one compiler.

A record lies next to where the package would be. The package's own path changes with torch, the
processor and the sources, so a record always refers to the current ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zipfile
from pathlib import Path

from rt_drama3.errors import ConfigError
from rt_drama3.system.checksums import DamagedFileError, sidecar, verify
from rt_drama3.system.compiling import compiler
from rt_drama3.system.paths import cache_dir

FAILED, DISCARDED = ".failed", ".discarded"
KEPT = 24 * 3600.0  # seconds
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError)


def folder() -> Path:
    """Returns the folder of the packages and their records."""
    return cache_dir() / "packages"


def record(path: Path, reason: str) -> None:
    """Records that the package ``path`` could not be built, or could not be loaded afterwards."""
    _write(path.with_suffix(FAILED), reason)


def failure(path: Path) -> str | None:
    """Why a package is not built again for now, in one line with the path of the details."""
    file = path.with_suffix(FAILED)
    reason = _read(file)
    if reason is None:
        return None
    return f"{(reason.strip().splitlines() or ['unknown'])[-1]} (details: {file})"


def discard(path: Path, reason: str) -> bool:
    """Removes a package whose file is proven to be damaged, so that it is built again.

    A second time within a day is recorded as a failure.

    Returns:
        Whether the package is to be built again.
    """
    again = _read(path.with_suffix(DISCARDED)) is None
    try:
        if again:
            _write(path.with_suffix(DISCARDED), reason)
        else:
            record(path, reason)
        for file in (path, sidecar(path)):
            file.unlink(missing_ok=True)
    except OSError:  # the cache is read-only
        return False
    return again


def records() -> list[tuple[Path, str, bool]]:
    """Every record in the cache: path, last line, and whether a build waits for its expiry."""
    found = []
    for path in _files():
        with contextlib.suppress(*_UNREADABLE):
            lines = str(json.loads(path.read_text(encoding="utf-8"))["reason"]).strip().splitlines()
            waits = path.suffix == FAILED and _read(path) is not None
            found.append((path, (lines or ["unknown"])[-1], waits))
            continue
        found.append((path, "it cannot be read", False))
    return found


def packages() -> tuple[list[Path], list[Path]]:
    """Every binary in the cache: the intact ones and the damaged ones."""
    intact: list[Path] = []
    damaged: list[Path] = []
    for path in sorted([*folder().rglob("*.pt2"), *folder().glob("runner-*.so")]):
        (damaged if _is_damaged(path) else intact).append(path)
    return intact, damaged


def _is_damaged(path: Path) -> bool:
    """Whether a file is proven to be damaged; without a checksum it is merely not used."""
    try:
        if sidecar(path).exists():
            verify(path)
    except DamagedFileError:
        return True
    except OSError:
        return False
    return path.suffix == ".pt2" and not zipfile.is_zipfile(path)


def clear() -> list[Path]:
    """Removes damaged packages and every record, so that the next start builds from scratch.

    Returns:
        What was removed.

    Raises:
        ConfigError: a file cannot be removed.
    """
    removed = [*_files(), *packages()[1]]
    try:
        for path in removed:
            path.unlink(missing_ok=True)
            sidecar(path).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot remove {error.filename}: {error.strerror}; make {folder()} writable, or set "
            "RT_DRAMA3_CACHE to another folder."
        ) from error
    return removed


def _files() -> list[Path]:
    kinds = (FAILED, DISCARDED)
    return sorted(p for kind in kinds for p in folder().rglob(f"*{kind}") if p.is_file())


def _compiler_facts() -> str:
    """Distinguishes compilers, and versions of one that replace each other in place."""
    found = compiler()
    if found is None:
        return ""
    with contextlib.suppress(OSError):
        facts = os.stat(os.path.realpath(found))
        return f"{found} {facts.st_size} {facts.st_mtime_ns}"
    return found


def _write(file: Path, reason: str) -> None:
    facts = {"reason": reason, "time": time.time(), "compiler": _compiler_facts()}
    file.write_text(json.dumps(facts), encoding="utf-8")


def _read(file: Path) -> str | None:
    """The reason in a record that still applies; one that cannot be read does not."""
    with contextlib.suppress(*_UNREADABLE):
        facts = json.loads(file.read_text(encoding="utf-8"))
        age = time.time() - float(facts["time"])
        if 0 <= age < KEPT and facts["compiler"] == _compiler_facts():
            return str(facts["reason"])
    return None
