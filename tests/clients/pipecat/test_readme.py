"""What the service's README shows works as pasted, and names every argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.pipecat.tools import ours
from tests.clients.plugin_readme import PluginReadme
from tests.integrations.tools import Watched

README = PluginReadme("pipecat")


@pytest.mark.parametrize("number", range(len(README.blocks)))
def test_python(
    number: int, server: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for more, rate in README.run(README.blocks[number], server, tmp_path):
        assert rate == 24_000
        assert abs(more) <= 2  # each is rounded


def test_arguments() -> None:
    assert README.unnamed(ours.RtDrama3TTSService.__init__, {"self", "more"}) == []
