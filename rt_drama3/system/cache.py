"""Where rt_drama3 keeps what it can make again: compiled steps and the like."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """Returns the cache folder, which may not exist yet.

    ``RT_DRAMA3_CACHE`` names it; otherwise it is the platform's place for caches:
    ``%LOCALAPPDATA%`` on Windows, ``~/Library/Caches`` on macOS, ``$XDG_CACHE_HOME`` or
    ``~/.cache`` elsewhere.
    """
    named = os.environ.get("RT_DRAMA3_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        base = Path(local) if local else Path.home() / "AppData" / "Local"
        return base / "rt_drama3" / "cache"
    elif sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rt_drama3"
    else:
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
        return base / "rt_drama3"
