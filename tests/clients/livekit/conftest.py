"""The watched servers of the integration tests, for the plugin of our own."""

from __future__ import annotations

from tests.integrations.conftest import server, talkative
from tests.server.conftest import ending, endless

__all__ = ["ending", "endless", "server", "talkative"]
