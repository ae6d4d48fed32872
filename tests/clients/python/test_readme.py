"""What the client's README shows works as pasted."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

import rt_drama3_client
from rt_drama3_client import ClientError, Options, Settings
from rt_drama3_client.address import URL_VARIABLE
from rt_drama3_client.cli import _parser
from tests.clients.python.test_routes import clip
from tests.server.tools import Place

README = Path(rt_drama3_client.__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[str(n) for n in range(len(BLOCKS))])
def test_python(
    block: str, endless: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(URL_VARIABLE, endless.url)
    for name in ("me.wav", "you.wav"):
        (tmp_path / name).write_bytes(clip())
    # The endless voice would speak for long; what is shown is the same without the limit.
    limited = block.replace("client.speak(", "client.speak(max_seconds=0.2, text=")
    limited = limited.replace("def main", "def main").replace("stream(", "stream(max_seconds=2, ")
    exec(compile(limited, str(README), "exec"), {"__name__": "__main__"})
    endless.until_free()
    assert endless.service.voices.all() == []


def test_commands() -> None:
    lines = [line for line in TEXT.splitlines() if "rt-drama3-client" in line]
    shown = [re.split(r"#|\|(?! rt)", line)[0].split("| ")[-1] for line in lines]
    commands = [shlex.split(line)[1:] for line in shown if line.strip().startswith("rt-drama3-c")]
    assert len(commands) >= 6
    for arguments in commands:
        _parser().parse_args(arguments)  # exits at what it does not know


def test_tables() -> None:
    for field in fields(Settings):
        assert f"`{field.name}`" in TEXT
    for option in Options.__annotations__:
        assert f"`{option}`" in TEXT
    names = [getattr(rt_drama3_client, name) for name in rt_drama3_client.__all__]
    for kind in names:
        if isinstance(kind, type) and issubclass(kind, ClientError) and kind is not ClientError:
            assert f"`{kind.__name__}`" in TEXT
