"""Servers for other people's clients, watched while a test runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from rt_drama3.drama3 import Drama3
from tests.integrations.tools import Watched, watching
from tests.server.conftest import ending, endless  # noqa: F401 - fixtures
from tests.server.tools import Place, serving

TIMEOUT = 120.0  # seconds for what a test does in a loop; reached only by what is stuck


@pytest.fixture
def server(ending: Place) -> Iterator[Watched]:  # noqa: F811
    """Speaks a few frames of noise for every sentence, the same for the same text."""
    with watching(ending) as watched:
        yield watched


@pytest.fixture
def talkative(endless: Place) -> Iterator[Watched]:  # noqa: F811
    """Speaks until it is interrupted."""
    with watching(endless) as watched:
        yield watched


@pytest.fixture(scope="session")
def nano_place(nano: Drama3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The embedded voice behind a server."""
    with serving(nano, tmp_path_factory.mktemp("nano"), {"codec_batch_frames": 1}) as place:
        yield place


@pytest.fixture
def speaker(nano_place: Place) -> Iterator[Watched]:
    """Speaks English."""
    with watching(nano_place) as watched:
        yield watched


def run(work: Coroutine[Any, Any, Any], seconds: float = TIMEOUT) -> Any:
    """Runs a client's coroutine, and fails instead of hanging."""
    return asyncio.run(asyncio.wait_for(work, seconds))
