"""The README of a plugin: its code runs as pasted, and it names every argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rt_drama3.audio import read_audio
from rt_drama3_client import VoiceOptions
from tests.integrations.tools import Watched, samples_of
from tests.small import WAIT

CLIENTS = Path(__file__).parents[2] / "clients"
ADDRESS = "127.0.0.1:8035"


class PluginReadme:
    """See the module docstring.

    Args:
        folder: of the plugin, among the clients.
    """

    def __init__(self, folder: str) -> None:
        self.text = (CLIENTS / folder / "README.md").read_text(encoding="utf-8")
        self.blocks = re.findall(r"```python\n(.*?)```", self.text, re.DOTALL)

    def run(self, block: str, server: Watched, folder: Path) -> Iterator[tuple[int, int]]:
        """Runs a block in the current folder, with the server's own address.

        Yields:
            Of every sound file that it wrote there: how many samples it has beyond those that the
            engine made for it, and its rate in Hz.
        """
        assert ADDRESS in block
        block = block.replace(ADDRESS, f"127.0.0.1:{server.place.port}")
        exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
        if "asyncio.run" not in block:
            return
        server.place.until_free()
        assert len(server.speeches) == 2
        frames = sum(speech.result(WAIT).codes.shape[1] for speech in server.speeches)
        for path in folder.iterdir():
            heard, rate = read_audio(path)
            yield len(heard) - samples_of(frames, rate), rate

    def unnamed(self, method: Callable[..., Any], without: set[str]) -> list[str]:
        """Arguments of a method, voice options among them, that are not in the text."""
        known = {*inspect.signature(method).parameters, *VoiceOptions.__annotations__} - without
        return [n for n in sorted(known) if f"`{n}`" not in self.text and f"`{n}=" not in self.text]
