"""What the plugin's README shows works as pasted, and names every argument."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from rt_drama3.audio import read_audio
from rt_drama3_client import VoiceOptions
from tests.clients.livekit.tools import rtdrama3
from tests.integrations.tools import Watched, samples_of
from tests.small import WAIT

ROOT = Path(__file__).parents[3] / "clients" / "livekit"
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
ADDRESS = "127.0.0.1:8035"


@pytest.mark.parametrize("block", BLOCKS, ids=[str(n) for n in range(len(BLOCKS))])
def test_python(
    block: str, server: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ADDRESS in block
    block = block.replace(ADDRESS, f"127.0.0.1:{server.place.port}")
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    if "asyncio.run" not in block:
        return
    server.place.until_free()
    assert len(server.speeches) == 2
    frames = sum(speech.result(WAIT).codes.shape[1] for speech in server.speeches)
    for path in tmp_path.iterdir():
        heard, rate = read_audio(path)
        assert rate == 24_000
        # LiveKit may add 10 ms to each.
        assert -2 <= len(heard) - samples_of(frames, rate) <= 2 * rate // 100 + 2


def test_arguments() -> None:
    known = {*inspect.signature(rtdrama3.TTS.__init__).parameters, *VoiceOptions.__annotations__}
    for name in known - {"self", "options"}:
        assert f"`{name}`" in TEXT or f"`{name}=" in TEXT, name
