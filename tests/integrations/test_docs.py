"""docs/integrations and clients/examples: every block and every example runs as pasted.

Only the address is another one, since the documented port may be taken.
"""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import shutil
import subprocess
import wave
from pathlib import Path

import pytest

from rt_drama3.audio import read_audio
from tests.integrations.tools import Watched, samples_of
from tests.small import WAIT

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "integrations"
EXAMPLES = ROOT / "clients" / "examples"
ADDRESS = "127.0.0.1:8035"
NEEDS = {
    "fish-audio-sdk": "fishaudio",
    "livekit": "livekit.plugins.fishaudio",
    "pipecat": "pipecat",
    "openai": "openai",
}
EXAMPLE_NEEDS = {"fish_audio_sdk_example": "fishaudio"} | {
    f"{name}_example": NEEDS[name] for name in ("livekit", "pipecat", "openai")
}
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
BLOCKS = [
    (page.stem, kind, code)
    for page in sorted(PAGES.glob("*.md"))
    if page.stem != "web"  # needs a browser: tests/clients/web runs it
    for kind, code in BLOCK.findall(page.read_text(encoding="utf-8"))
]


def of_kind(kind: str) -> list[tuple[str, str]]:
    return [(page, code) for page, its_kind, code in BLOCKS if its_kind == kind]


def ids(blocks: list[tuple[str, str]]) -> list[str]:
    return [f"{page}-{number}" for number, (page, _) in enumerate(blocks)]


def need(package: str) -> None:
    pytest.importorskip(package, reason=f"needs {package}", exc_type=ImportError)


@pytest.mark.parametrize(("page", "code"), of_kind("python"), ids=ids(of_kind("python")))
def test_python(
    page: str, code: str, server: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(NEEDS[page])
    monkeypatch.chdir(tmp_path)
    assert ADDRESS in code
    code = code.replace(ADDRESS, f"127.0.0.1:{server.place.port}")
    names = {"__name__": "__main__"}
    exec(compile(code, f"{page}.md", "exec"), names)
    if "asyncio.run" not in code and ("def voice" in code or "tts._base_url" in code):
        asyncio.run(check_fragment(names, server))
        return
    assert server.speeches, "nothing was said"
    for path in tmp_path.iterdir():
        assert len(read_sound(path)[0]) > 0, path
    # Every sample of the last utterance is somewhere in what was written.
    wavs = list(tmp_path.glob("*.wav"))
    for path in wavs if len(server.speeches) == 1 else []:
        samples, rate = read_sound(path)
        # Pipecat has each flushed piece resampled to its own end: a sample more for every one.
        assert 0 <= len(samples) - samples_of(server.frames(), rate) <= 2


async def check_fragment(names: dict[str, object], server: Watched) -> None:
    """The first blocks of the frameworks' pages make a voice that an application uses."""
    if "voice" in names:
        tts = names["voice"]()  # type: ignore[operator]
        assert tts._opts.get_ws_url("/v1/tts/live") == f"{server.url}/v1/tts/live".replace(
            "http", "ws", 1
        )
        await tts.aclose()
    else:
        base = f"{server.url}/v1/tts/live".replace("http", "ws", 1)
        assert names["tts"]._base_url == base  # type: ignore[attr-defined]


def read_sound(path: Path) -> tuple[object, int]:
    if path.suffix == ".pcm":
        data = path.read_bytes()
        assert len(data) % 2 == 0
        return data, 0
    return read_audio(path)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_shell(server: Watched, tmp_path: Path) -> None:
    """The recipes of the curl page, from the top to the bottom in one folder."""
    blocks = [code for page, code in of_kind("sh") if page == "curl"]
    assert len(blocks) >= 8
    for code in blocks:
        code = code.replace(ADDRESS, f"127.0.0.1:{server.place.port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=2 * WAIT,
            env={**os.environ, "NO_PROXY": "*", "no_proxy": "*"},
        )
        assert done.returncode == 0, (code, done.stdout, done.stderr)
    for path in tmp_path.iterdir():
        assert path.stat().st_size > 44, path
    for path in tmp_path.glob("*.wav"):
        assert len(read_audio(path)[0]) > 0
    assert server.place.service.voices.all() == []


def test_the_curl_page_has_every_route(server: Watched) -> None:
    document = server.place.get("/openapi.json").json()
    text = (PAGES / "curl.md").read_text(encoding="utf-8")
    for path in document["paths"]:
        assert f"{ADDRESS}{path.split('{')[0]}" in text, path


def test_every_block_is_run() -> None:
    assert {kind for _, kind, _ in BLOCKS} == {"python", "sh", "js"}  # js: test_javascript.py
    assert {page for page, _ in of_kind("js")} == {"javascript"}
    assert {page for page, _ in of_kind("sh")} == {"curl"}
    assert {page for page, _ in of_kind("python")} == set(NEEDS)


@pytest.mark.parametrize("page", [*NEEDS, "curl", "javascript"])
def test_pages_begin_with_five_lines_that_work(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    title, _, rest = text.partition("\n\n")
    assert title.startswith("# ")
    assert rest.startswith("```")
    lines = BLOCK.match(rest)[2].strip().splitlines()  # type: ignore[index]
    assert sum(bool(line) for line in lines) <= 5


@pytest.mark.parametrize("name", EXAMPLE_NEEDS)
def test_examples(
    name: str, server: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(EXAMPLE_NEEDS[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RT_DRAMA3_CLIENT_URL", server.url)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    (path,) = tmp_path.iterdir()
    with wave.open(str(path)) as sound:
        assert sound.getnframes() > 0
    assert server.speeches


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXAMPLE_NEEDS)
