"""Where the cache folder is, on every platform."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rt_drama3.system.cache import cache_dir


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("RT_DRAMA3_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_variable_wins_everywhere(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(home / "mine"))
    for system in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sys, "platform", system)
        assert cache_dir() == home / "mine"


def test_a_relative_variable_is_made_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RT_DRAMA3_CACHE", "here")
    assert cache_dir() == tmp_path / "here"


def test_linux(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_dir() == home / ".cache" / "rt_drama3"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert cache_dir() == home / "xdg" / "rt_drama3"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # to be ignored, says its specification
    assert cache_dir() == home / ".cache" / "rt_drama3"


def test_macos(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_dir() == home / "Library" / "Caches" / "rt_drama3"


def test_windows(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert cache_dir() == home / "AppData" / "Local" / "rt_drama3" / "cache"
    monkeypatch.setenv("LOCALAPPDATA", str(home / "local"))
    assert cache_dir() == home / "local" / "rt_drama3" / "cache"
