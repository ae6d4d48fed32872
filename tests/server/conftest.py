"""One server for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.tools import Place, serving
from tests.small import ending_drama, shared_drama


@pytest.fixture(scope="session")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Its speech ends after a few frames; the same request gives the same bits."""
    same = {"codec_batch_frames": 1}  # groups depend on the time, and round otherwise
    with serving(ending_drama(), tmp_path_factory.mktemp("ending"), same) as place:
        yield place


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Its speech continues until a limit or a cancel."""
    with serving(shared_drama(), tmp_path_factory.mktemp("endless")) as place:
        yield place
