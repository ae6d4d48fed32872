"""npm's fish-audio and fish-audio-sdk, and LiveKit's JavaScript plugin, unchanged.

They are looked for in tests/integrations/js/node_modules (``npm install`` there brings them) or in
the folder that RT_DRAMA3_NODE_MODULES names. Not here: the WebSocket of fish-audio-sdk, which keeps
one message and drops those that come before it was taken, from any server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integrations.tools import FLUSH, SENTENCES, Watched, assert_same, footprint
from tests.small import WAIT, until

HERE = Path(__file__).parent / "js"
MODULES = Path(os.environ.get("RT_DRAMA3_NODE_MODULES", HERE / "node_modules"))
NODE = shutil.which("node")
RATE = 16_000
UTTERANCES = int(os.environ.get("RT_DRAMA3_UTTERANCES", "4"))  # over one socket where it can be
ADDRESS = "127.0.0.1:8035"
PACKAGES = {
    "fish-audio-http": "fish-audio",
    "fish-audio-websocket": "fish-audio",
    "fish-audio-sdk-http": "fish-audio-sdk",
    "livekit": "@livekit/agents-plugin-fishaudio",
}


PAGE = Path(__file__).parents[2] / "docs" / "integrations" / "javascript.md"
BLOCKS = re.findall(r"```js\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def node(folder: Path, package: str, *arguments: str, text: str = "") -> None:
    """Runs a script in a folder that has the packages."""
    if NODE is None:
        pytest.skip("needs Node.js")
    if not (MODULES / package).exists():
        pytest.skip(f"needs the npm package {package}: npm install in tests/integrations/js")
    (folder / "node_modules").symlink_to(MODULES.resolve())
    ran = subprocess.run(
        [NODE, *arguments],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=2 * WAIT + UTTERANCES,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2_000:] + ran.stderr[-2_000:]


@pytest.mark.slow
@pytest.mark.parametrize("client", PACKAGES)
def test_utterances(client: str, server: Watched, tmp_path: Path) -> None:
    shutil.copy(HERE / "speak.mjs", tmp_path)
    texts = [SENTENCES[number % len(SENTENCES)] for number in range(UTTERANCES)]
    arguments = ("speak.mjs", client, server.url, str(tmp_path))
    node(tmp_path, PACKAGES[client], *arguments, text=json.dumps(texts))
    expected: dict[str, bytes] = {}
    for number, text in enumerate(texts):
        heard = (tmp_path / f"{number}.pcm").read_bytes()
        # LiveKit flushes behind every sentence.
        parts = (f"{text} ", FLUSH) if client == "livekit" else (text,)
        if text not in expected:
            expected[text] = server.native(*parts, sample_rate=RATE)
        assert_same(heard, expected[text])
    until(lambda: footprint(server.place.port).server_sockets == 0, "closing the sockets")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_of_the_page(number: int, server: Watched, tmp_path: Path) -> None:
    code = BLOCKS[number]
    (package,) = {name for name in PACKAGES.values() if f'"{name}"' in code}
    (tmp_path / "block.mjs").write_text(code.replace(ADDRESS, server.url.removeprefix("http://")))
    node(tmp_path, package, "block.mjs")
    written = [path for path in tmp_path.iterdir() if path.suffix in (".mp3", ".pcm")]
    assert len(written) == ("writeFile" in code)
    assert all(path.stat().st_size > 1_000 for path in written)
    assert bool(server.speeches) == bool(written)
