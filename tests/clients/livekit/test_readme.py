"""What the plugin's README shows works as pasted, and names every argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.livekit.tools import rtdrama3
from tests.clients.plugin_readme import PluginReadme
from tests.integrations.tools import Watched

README = PluginReadme("livekit")


@pytest.mark.parametrize("number", range(len(README.blocks)))
def test_python(
    number: int, server: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for more, rate in README.run(README.blocks[number], server, tmp_path):
        assert rate == 24_000
        assert -2 <= more <= 2 * rate // 100 + 2  # LiveKit may add 10 ms to each


def test_arguments() -> None:
    assert README.unnamed(rtdrama3.TTS.__init__, {"self", "options"}) == []
