"""rt_drama3: Fish Audio Drama 3 as a realtime, self-hosted voice.

Names are loaded on first use, so that parts without models (the protocol, the sinks) import
without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rt_drama3.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    Overloaded,
    RequestError,
    RtDrama3Error,
    SinkError,
)

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3, Take, load
    from rt_drama3.engine.config import EngineConfig
    from rt_drama3.engine.engine import Engine
    from rt_drama3.engine.speech import SpeechRequest

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "ConfigError",
    "DeviceError",
    "Drama3",
    "Engine",
    "EngineConfig",
    "Overloaded",
    "RequestError",
    "RtDrama3Error",
    "SinkError",
    "SpeechRequest",
    "Take",
    "__version__",
    "load",
]


_PLACES = {
    "Drama3": "rt_drama3.drama3",
    "Engine": "rt_drama3.engine.engine",
    "EngineConfig": "rt_drama3.engine.config",
    "SpeechRequest": "rt_drama3.engine.speech",
    "Take": "rt_drama3.drama3",
    "load": "rt_drama3.drama3",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
