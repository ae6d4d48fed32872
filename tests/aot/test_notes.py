"""Failures of compiled packages: remembered for a day and one compiler, then tried again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rt_drama3.aot import notes as package_notes
from rt_drama3.aot import packages
from rt_drama3.aot.notes import KEPT, discard, failure, notes, remember_failure


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a package would be."""
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    path = tmp_path / "packages" / "key" / "step-1.pt2"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=1e9)
    monkeypatch.setattr(package_notes, "time", SimpleNamespace(time=lambda: now.seconds))
    return now


def test_a_failure_expires(package: Path, clock: SimpleNamespace) -> None:
    assert failure(package) is None
    remember_failure(package, "Traceback\nOSError: no room\n")
    assert failure(package) == f"OSError: no room (details: {package.with_suffix('.failed')})"
    clock.seconds += KEPT - 1
    assert failure(package) is not None
    clock.seconds += 2
    assert failure(package) is None
    assert notes() == [(package.with_suffix(".failed"), "OSError: no room", False)]


def test_a_clock_that_was_set_back_keeps_no_failure_for_ever(
    package: Path, clock: SimpleNamespace
) -> None:
    remember_failure(package, "x")
    clock.seconds -= 10 * KEPT
    assert failure(package) is None


def test_another_compiler_is_tried(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("old")
    monkeypatch.setattr(packages, "compiler", lambda: str(compiler))
    remember_failure(package, "x")
    assert failure(package) is not None
    compiler.write_text("newer")
    assert failure(package) is None
    remember_failure(package, "x")
    monkeypatch.setattr(packages, "compiler", lambda: None)
    assert failure(package) is None


@pytest.mark.parametrize("content", ["", "Traceback\nOSError: of an earlier version", "[]", "{}"])
def test_a_note_that_cannot_be_read_counts_for_nothing(package: Path, content: str) -> None:
    package.with_suffix(".failed").write_text(content)
    assert failure(package) is None
    assert notes() == [(package.with_suffix(".failed"), "it cannot be read", False)]


def test_a_package_is_built_anew_once(package: Path, clock: SimpleNamespace) -> None:
    package.write_bytes(b"half")
    assert discard(package, "cut short")
    assert not package.exists()
    assert failure(package) is None
    package.write_bytes(b"half again")
    assert not discard(package, "cut short again")
    assert not package.exists()
    assert "cut short again" in str(failure(package))
    clock.seconds += KEPT + 1
    assert failure(package) is None
    assert discard(package, "x")


def test_a_cache_that_cannot_be_written_is_not_rebuilt(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package.write_bytes(b"half")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)
    assert not discard(package, "x")
