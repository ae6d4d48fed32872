"""A private sound card, a browser and a server whose speech can be listened to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from rt_drama3.drama3 import Drama3
from tests.clients.web.chromium import Page, chromium
from tests.server.tools import Place, serving
from tests.sinks.private_pulse import Daemon, daemon
from tests.small import shared_drama


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A null sink at 44.1 kHz, where everything that this test starts is heard."""
    with daemon(monkeypatch) as running:
        yield running


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Starts a browser when called; keywords as of ``chromium``."""
    with ExitStack() as stack:

        def start(**more: bool) -> Page:
            running: AbstractContextManager[Page] = chromium(tmp_path, **more)
            return stack.enter_context(running)

        yield start


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server that lets pages listen; its speech continues until a limit or a cancel."""
    with serving(shared_drama(), tmp_path_factory.mktemp("web"), listen=True) as running:
        yield running


@pytest.fixture(scope="session")
def nano_place(nano: Drama3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The same with the embedded voice, whose sentences take as long as sentences do."""
    with serving(nano, tmp_path_factory.mktemp("nano"), listen=True) as running:
        yield running
