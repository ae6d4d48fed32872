"""The real servers of the server's tests, for its client."""

from __future__ import annotations

from tests.server.conftest import ending, endless

__all__ = ["ending", "endless"]
