"""A free port of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Its number; the system does not give it out again for a while."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
