"""Where rt_drama3 keeps what users made: named voices, steering vectors."""

from __future__ import annotations

import os
from pathlib import Path


def default_data_folder() -> Path:
    """``$XDG_DATA_HOME/rt-drama3`` or its like; it may not exist yet."""
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    else:
        base = os.environ.get("XDG_DATA_HOME", "~/.local/share")
    return Path(base).expanduser() / "rt-drama3"
