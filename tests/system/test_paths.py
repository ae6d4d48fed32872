"""The cache and data folders on every platform."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix
from platformdirs.windows import Windows

from rt_drama3 import drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.errors import ConfigError
from rt_drama3.system.paths import cache_dir, data_dir
from tests.small import small_directory


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RT_DRAMA3_CACHE", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setattr(platformdirs, "PlatformDirs", Unix)
    return tmp_path


@pytest.mark.parametrize("platform", [Unix, MacOS, Windows])
def test_the_variable_overrides_every_platform(
    platform: type, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr(platformdirs, "PlatformDirs", platform)
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(home / "mine"))
    assert cache_dir() == home / "mine"
    monkeypatch.setenv("RT_DRAMA3_CACHE", "~/mine")
    assert cache_dir() == home / "mine"


def test_a_relative_variable_is_made_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RT_DRAMA3_CACHE", "here")
    assert cache_dir() == tmp_path / "here"


def test_linux(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    assert cache_dir() == home / ".cache" / "rt_drama3"
    assert data_dir() == home / ".local" / "share" / "rt-drama3"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "xdg"))
    assert cache_dir() == home / "xdg" / "rt_drama3"
    assert data_dir() == home / "xdg" / "rt-drama3"


@pytest.mark.parametrize("value", ["", "not/absolute"])  # its specification says to ignore both
def test_unusable_xdg_variables_are_ignored(
    value: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("XDG_DATA_HOME", value)
    assert cache_dir() == home / ".cache" / "rt_drama3"
    assert data_dir() == home / ".local" / "share" / "rt-drama3"


def test_macos(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(platformdirs, "PlatformDirs", MacOS)
    assert cache_dir() == home / "Library" / "Caches" / "rt_drama3"
    assert data_dir() == home / "Library" / "Application Support" / "rt-drama3"


def test_windows(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(platformdirs, "PlatformDirs", Windows)
    monkeypatch.setattr(
        "platformdirs.windows.get_win_folder", {"CSIDL_LOCAL_APPDATA": str(home)}.__getitem__
    )
    assert cache_dir() == home / "rt_drama3" / "Cache"
    assert data_dir() == home / "rt-drama3"


@pytest.mark.skipif(sys.platform == "win32", reason="users of Windows always have a home folder")
def test_a_missing_home_folder_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown_user(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown_user)
    with pytest.raises(ConfigError, match=r"no home folder.* set HOME or RT_DRAMA3_CACHE"):
        cache_dir()
    with pytest.raises(ConfigError, match=r"no home folder.* set HOME or XDG_DATA_HOME"):
        data_dir()
    monkeypatch.setenv("RT_DRAMA3_CACHE", "~/mine")
    with pytest.raises(ConfigError, match=r"RT_DRAMA3_CACHE is '~/mine'.* absolute path"):
        cache_dir()
    monkeypatch.setenv("RT_DRAMA3_CACHE", os.sep)
    assert cache_dir() == Path(os.sep)


@pytest.mark.skipif(sys.platform == "win32", reason="needs the pwd module")
def test_a_user_without_a_home_folder_can_speak(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import pwd

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    with pytest.raises(ConfigError, match="no home folder"):
        data_dir()
    with drama3.load(small_directory(), engine=EngineConfig(step_mode="auto")) as drama:
        assert drama.generate("Hi.", seed=1, max_frames=2).codes.shape[1] == 2
    assert "continuing in eager mode: this user has no home folder" in caplog.text
