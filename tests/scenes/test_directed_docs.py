"""docs/directed.md: its code and commands run as written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rt_drama3.cli.main import app
from rt_drama3.scenes.takes import FAMILY, MAX_ARTEFACT, SCHEMA
from tests.server.tools import serving
from tests.small import ending_drama, small_directory

PAGE = Path(__file__).parents[2] / "docs" / "directed.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- python: (\w+) -->\n\n```python\n(.*?)```", TEXT, re.DOTALL))


def adapted(code: str) -> str:
    """The same code for a small checkpoint instead of the full one."""
    code = code.replace("fishaudio/drama-3", str(small_directory()))
    return re.sub(r"(layer[ =])24", r"\g<1>1", code)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_the_code_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    exec(compile(adapted(BLOCKS[name]), str(PAGE), "exec"), {})


def test_every_python_block_is_run() -> None:
    assert len(BLOCKS) == 4
    assert TEXT.count("```python") == len(BLOCKS) + 1  # the other is for a client


@pytest.mark.slow
def test_a_client_runs(tmp_path: Path) -> None:
    found = re.search(r"<!-- client: websocket -->\n\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert found
    with serving(ending_drama(), tmp_path) as place:
        exec(compile(found[1].replace("8035", str(place.port)), str(PAGE), "exec"), {})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_gets_a_take(tmp_path: Path) -> None:
    found = re.search(r"^curl .*$", TEXT, re.MULTILINE)
    assert found
    with serving(ending_drama(), tmp_path) as place:
        line = found[0].replace("8035", str(place.port))
        result = subprocess.run(line, shell=True, capture_output=True, timeout=60, check=True)
    assert json.loads(result.stdout)["take"]["family"] == FAMILY


@pytest.mark.slow
def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    count = 0
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("curl"):
                continue  # has its own test
            if line.startswith("printf"):
                lines, _, target = line.removeprefix("printf ").rpartition(" > ")
                Path(target).write_text(lines.strip("'").replace("\\n", "\n"))
                continue
            _, *arguments = shlex.split(adapted(line))
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, (line, result.output, result.exception)
            count += 1
    assert count == 8


def test_the_artefact_in_the_page_is_valid() -> None:
    shown = json.loads(re.search(r"```json\n(.*?)```", TEXT, re.DOTALL)[1])  # type: ignore[index]
    assert (shown["family"], shown["schema"]) == (FAMILY, SCHEMA)
    assert f"larger than {MAX_ARTEFACT >> 20} MiB" in " ".join(TEXT.split())
