"""What every test shares: one torch thread, the gpu marker, the nano voice, a tiny checkpoint."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch

if TYPE_CHECKING:
    from rt_drama3 import Drama3
    from rt_drama3.engine.engine import Engine
    from tests.engine.simulation import Machine

# Tests of the compiled step ask for it; no other test may start a build in the background.
os.environ.setdefault("RT_DRAMA3_STEP_MODE", "eager")

# Event loops check what asyncio only checks in debug mode: calls from other threads, above all.
os.environ.setdefault("PYTHONASYNCIODEBUG", "1")

# Small models are slower, not faster, on more threads, and machines that run tests are shared.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Skips the tests marked ``gpu`` where there is no CUDA device, so that the report says so."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device (pytest -m gpu runs these on one)")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _no_build_is_left() -> Iterator[None]:
    """A build in the background takes a core from the tests, and from others when it stays."""
    yield
    children = psutil.Process().children(recursive=True)
    left = [child.cmdline() for child in children if "rt_drama3.aot.builder" in child.cmdline()]
    assert not left, "a test started a build of compiled packages; give it step_mode eager"


@pytest.fixture(autouse=True)
def _same_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a seed get the same seeds in every run: a take of any length is possible."""
    draws = random.Random(request.node.nodeid)
    monkeypatch.setattr("secrets.randbits", draws.getrandbits)


@pytest.fixture(scope="session")
def nano() -> Drama3:
    """The embedded nano voice on the CPU, loaded once; tests must not change it."""
    import rt_drama3

    return rt_drama3.load("nano", device="cpu")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint in the official layout, made once; tests must not change it."""
    from rt_drama3.checkpoint import make_tiny

    directory = tmp_path_factory.mktemp("checkpoint") / "tiny"
    make_tiny(directory, seed=0)
    return directory


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """An engine on a small random checkpoint; tests leave it as they found it."""
    from tests.small import running, shared_drama

    with running(shared_drama()) as engine:
        yield engine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """Makes engine cores on simulated machines; see ``simulation.make_machine``."""
    from tests.engine.simulation import make_machine

    def make(frames: int = 40, **settings: Any) -> Machine:
        return make_machine(monkeypatch, frames, **settings)

    return make
