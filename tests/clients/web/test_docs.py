"""docs/integrations/web.md, docs/obs.md and the package's README: every block runs as pasted.

Only the address is another one, since the documented port may be taken.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.web.chromium import Page, needs_chromium
from tests.clients.web.pages import serve_folder
from tests.server.tools import Place
from tests.sinks.private_pulse import Daemon, needs_pulse

Browser = Callable[..., Page]
ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "integrations" / "web.md"
README = ROOT / "clients" / "web" / "README.md"
OBS = ROOT / "docs" / "obs.md"


def blocks(path: Path, kind: str) -> list[str]:
    found = re.findall(rf"^ *```{kind}\n(.*?)^ *```", path.read_text(encoding="utf-8"), re.M | re.S)
    return list(found)


SCRIPTS = [
    pytest.param(code, id=f"{path.stem}-{number}")
    for path in (GUIDE, README)
    for number, code in enumerate(blocks(path, "js"))
]


@needs_chromium
@needs_pulse
@pytest.mark.browser
@pytest.mark.serial
@pytest.mark.parametrize("code", SCRIPTS)
def test_scripts(card: Daemon, browser: Browser, nano_place: Place, code: str) -> None:
    page = browser(autoplay=False)
    page.open(nano_place.url)
    # What is pasted into the console counts as the user's doing.
    page.run(f"(async () => {{ {code} }})()", gesture=True)
    # Logged is what the code logs: nothing went wrong.
    assert len(page.console) >= code.count("console.log") > 0
    nano_place.until_free()


@needs_chromium
@needs_pulse
@pytest.mark.browser
@pytest.mark.serial
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_own_page(card: Daemon, browser: Browser, nano_place: Place, tmp_path: Path) -> None:
    (tmp_path / "clients").symlink_to(ROOT / "clients")
    [copy] = [code for code in blocks(GUIDE, "sh") if "cp -r" in code]
    subprocess.run(["bash", "-euo", "pipefail", "-c", copy], cwd=tmp_path, check=True)
    [html] = blocks(GUIDE, "html")
    assert "http://127.0.0.1:8035" in html
    html = html.replace("http://127.0.0.1:8035", nano_place.url)
    (tmp_path / "my-page" / "index.html").write_text(html, encoding="utf-8")
    with serve_folder(tmp_path / "my-page") as address:
        page = browser(autoplay=False)
        page.open(address)
        page.click("#speak")
        page.until("document.getElementById('caption').textContent.startsWith('Hello there.')")
        page.click("#stop")
        page.until("document.getElementById('caption').textContent.endsWith(' s were heard.')")
        nano_place.until_free()
        assert [line for line in page.console if "favicon" not in line] == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_recipes_of_the_obs_page(nano_place: Place, tmp_path: Path) -> None:
    codes = [code for code in blocks(OBS, "sh") if "curl" in code]
    assert len(codes) == 2
    for code in codes:
        code = code.replace("127.0.0.1:8035", f"127.0.0.1:{nano_place.port}")
        code = code.replace("curl -s", "curl -sf")
        environment = {**os.environ, "NO_PROXY": "*", "no_proxy": "*"}
        command = ["bash", "-euo", "pipefail", "-c", code]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)


def test_pictures_exist_and_are_small() -> None:
    names = re.findall(r"!\[[^]]+\]\(([^)]+)\)", OBS.read_text(encoding="utf-8"))
    assert names
    sizes = [(OBS.parent / name).stat().st_size for name in names]
    assert sum(sizes) < 200_000


@pytest.mark.parametrize("path", [GUIDE, README, OBS], ids=lambda path: path.stem)
def test_links_are_valid(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text):
        assert (path.parent / target).exists(), target
