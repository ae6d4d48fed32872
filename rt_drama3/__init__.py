"""rt_drama3: Fish Audio Drama 3 as a realtime, self-hosted voice.

Names are loaded on first use, so that parts without models (the protocol, the sinks) import
without torch.
"""

from __future__ import annotations

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
    from rt_drama3.drama3 import Drama3, Take
    from rt_drama3.loading import load

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "ConfigError",
    "DeviceError",
    "Drama3",
    "Overloaded",
    "RequestError",
    "RtDrama3Error",
    "SinkError",
    "Take",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("Drama3", "Take"):
        from rt_drama3 import drama3

        return getattr(drama3, name)
    if name == "load":
        from rt_drama3.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
