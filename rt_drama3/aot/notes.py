"""What is remembered of compiled packages that failed: for a day, and for the same compiler.

A note lies beside where the package would be. The package's own path changes with torch, the
processor and the sources, so a note is about those as they are now.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zipfile
from pathlib import Path

from rt_drama3.errors import ConfigError
from rt_drama3.system.paths import cache_dir

FAILED, DISCARDED = ".failed", ".discarded"
KEPT = 24 * 3600.0  # seconds


def remember_failure(path: Path, reason: str) -> None:
    """Notes that the package ``path`` could not be built, or not loaded once it was."""
    _write(path.with_suffix(FAILED), reason)


def failure(path: Path) -> str | None:
    """Why a package is not tried again for now, in one line that tells where to read on."""
    note = path.with_suffix(FAILED)
    reason = _read(note)
    if reason is None:
        return None
    return f"{(reason.strip().splitlines() or ['unknown'])[-1]} (details: {note})"


def discard(path: Path, reason: str) -> bool:
    """Removes a package that does not load, so that it is built again.

    That helps once, where its file was damaged. A second time within a day it is a failure that is
    remembered.

    Returns:
        Whether it is to be built again.
    """
    again = _read(path.with_suffix(DISCARDED)) is None
    try:
        if again:
            _write(path.with_suffix(DISCARDED), reason)
        else:
            remember_failure(path, reason)
        path.unlink(missing_ok=True)
    except OSError:  # the cache is not ours to write
        return False
    return again


def notes() -> list[tuple[Path, str, bool]]:
    """Every note in the cache: where it is, its last line, and whether it still counts."""
    found = []
    for path in _note_files():
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            lines = str(json.loads(path.read_text(encoding="utf-8"))["reason"]).strip().splitlines()
            found.append((path, (lines or ["unknown"])[-1], _read(path) is not None))
            continue
        found.append((path, "it cannot be read", False))
    return found


def packages() -> tuple[list[Path], list[Path]]:
    """Every package in the cache: the whole ones, and the damaged ones."""
    whole: list[Path] = []
    damaged: list[Path] = []
    for path in sorted(_folder().rglob("*.pt2")):
        (whole if zipfile.is_zipfile(path) else damaged).append(path)
    return whole, damaged


def forget() -> list[Path]:
    """Removes damaged packages and every note, so that the next start builds anew.

    Returns:
        What was removed.

    Raises:
        ConfigError: something cannot be removed.
    """
    removed = [*_note_files(), *packages()[1]]
    try:
        for path in removed:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot remove {error.filename}: {error.strerror}; make {_folder()} writable, or set "
            "RT_DRAMA3_CACHE to another folder."
        ) from error
    return removed


def _folder() -> Path:
    return cache_dir() / "packages"


def _note_files() -> list[Path]:
    kinds = (FAILED, DISCARDED)
    return sorted(p for kind in kinds for p in _folder().rglob(f"*{kind}") if p.is_file())


def _compiler_facts() -> str:
    """Tells one compiler from another, or from a newer one in its place."""
    from rt_drama3.aot.packages import compiler

    found = compiler()
    if found is None:
        return ""
    with contextlib.suppress(OSError):
        facts = os.stat(os.path.realpath(found))
        return f"{found} {facts.st_size} {facts.st_mtime_ns}"
    return found


def _write(note: Path, reason: str) -> None:
    facts = {"reason": reason, "time": time.time(), "compiler": _compiler_facts()}
    note.write_text(json.dumps(facts), encoding="utf-8")


def _read(note: Path) -> str | None:
    """The reason in a note that still counts; one that cannot be read does not."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        facts = json.loads(note.read_text(encoding="utf-8"))
        age = time.time() - float(facts["time"])
        if 0 <= age < KEPT and facts["compiler"] == _compiler_facts():
            return str(facts["reason"])
    return None
