"""Folders of this user: the cache, which can be rebuilt, and data, such as stored voices.

The names differ (``rt_drama3`` and ``rt-drama3``) and stay that way, so that existing files are
found.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from rt_drama3.errors import ConfigError


def cache_dir() -> Path:
    """Returns the cache folder, which may not exist yet.

    ``RT_DRAMA3_CACHE`` overrides the platform's: ``$XDG_CACHE_HOME/rt_drama3`` on Linux.

    Raises:
        ConfigError: this user has no home folder.
    """
    override = os.environ.get("RT_DRAMA3_CACHE")
    if override:
        try:
            return Path(override).expanduser().absolute()
        except RuntimeError as error:
            raise ConfigError(
                f"RT_DRAMA3_CACHE is {override!r}, but there is no such home folder; use an "
                "absolute path."
            ) from error
    return _user_folder("rt_drama3", "cache", "RT_DRAMA3_CACHE")


def data_dir() -> Path:
    """Returns the data folder, which may not exist yet: ``$XDG_DATA_HOME/rt-drama3`` on Linux.

    Raises:
        ConfigError: this user has no home folder.
    """
    return _user_folder("rt-drama3", "data", "XDG_DATA_HOME")


def _user_folder(name: str, kind: str, variable: str) -> Path:
    folders = platformdirs.PlatformDirs(name, appauthor=False)
    try:
        return folders.user_cache_path if kind == "cache" else folders.user_data_path
    except RuntimeError as error:
        raise ConfigError(
            f"this user has no home folder for the {kind} folder; set HOME or {variable} to an "
            "absolute path."
        ) from error
