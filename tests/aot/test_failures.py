"""Failures of compiled packages: recorded for a day and one compiler, then retried."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from rt_drama3.aot import failures
from rt_drama3.aot.failures import KEPT, discard, failure, record, records
from rt_drama3.system import checksums


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
    monkeypatch.setattr(failures, "time", SimpleNamespace(time=lambda: now.seconds))
    return now


def test_a_failure_expires(package: Path, clock: SimpleNamespace) -> None:
    assert failure(package) is None
    record(package, "Traceback\nOSError: no room\n")
    assert failure(package) == f"OSError: no room (details: {package.with_suffix('.failed')})"
    clock.seconds += KEPT - 1
    assert failure(package) is not None
    clock.seconds += 2
    assert failure(package) is None
    assert records() == [(package.with_suffix(".failed"), "OSError: no room", False)]


def test_a_clock_that_was_set_back_does_not_keep_a_failure_forever(
    package: Path, clock: SimpleNamespace
) -> None:
    record(package, "x")
    clock.seconds -= 10 * KEPT
    assert failure(package) is None


def test_a_failure_does_not_apply_to_another_compiler(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("old")
    monkeypatch.setattr(failures, "compiler", lambda: str(compiler))
    record(package, "x")
    assert failure(package) is not None
    compiler.write_text("newer")
    assert failure(package) is None
    record(package, "x")
    monkeypatch.setattr(failures, "compiler", lambda: None)
    assert failure(package) is None


@pytest.mark.parametrize(
    "content", ["", "Traceback\nOSError: of an earlier version", "[]", "{}", "[" * 100_000]
)
def test_a_record_that_cannot_be_read_is_ignored(package: Path, content: str) -> None:
    package.with_suffix(".failed").write_text(content)
    assert failure(package) is None
    assert records() == [(package.with_suffix(".failed"), "it cannot be read", False)]


def test_a_package_is_rebuilt_once(package: Path, clock: SimpleNamespace) -> None:
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


def published_at(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name("made")
    made.write_bytes(content)
    checksums.publish(made, path)


@pytest.mark.parametrize("damage", [b"", b"conten", b"c0ntent", b"content and more"])
def test_a_damaged_file_does_not_match_its_checksum(package: Path, damage: bytes) -> None:
    published_at(package, b"content")
    checksums.verify(package)
    package.write_bytes(damage)
    with pytest.raises(checksums.DamagedFileError, match="do not match its checksum"):
        checksums.verify(package)


def test_a_file_without_a_checksum_is_not_published(package: Path) -> None:
    published_at(package, b"content")
    assert checksums.published(package)
    checksums.sidecar(package).unlink()
    assert not checksums.published(package)
    with pytest.raises(checksums.DamagedFileError, match="no checksum"):
        checksums.verify(package)


def test_damaged_runners_and_packages_are_found_and_cleared(package: Path) -> None:
    runner = failures.folder() / "runner-0.so"
    with zipfile.ZipFile(package.with_name("made.zip"), "w") as made:
        made.writestr("model.so", b"code")
    content = package.with_name("made.zip").read_bytes()
    for path in (package, runner):
        published_at(path, content)
    assert failures.packages() == ([package, runner], [])
    runner.write_bytes(content[:100])
    package.write_bytes(content.replace(b"code", b"c0de"))
    assert failures.packages() == ([], [package, runner])
    assert failures.clear() == [package, runner]
    assert not checksums.sidecar(runner).exists()
    assert failures.packages() == ([], [])


def test_the_record_of_a_removed_package_does_not_delay_its_build(package: Path) -> None:
    published_at(package, b"half")
    discard(package, "cut short")
    assert not checksums.sidecar(package).exists()
    assert records() == [(package.with_suffix(".discarded"), "cut short", False)]
