"""README.md, docs/engine.md and docs/sinks.md: their code and their commands run as pasted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from click import Context
from typer.testing import CliRunner

from rt_drama3.aot.builder import PackageBuilder
from rt_drama3.audio import read_audio
from rt_drama3.cli.main import app
from tests.house.imports import ROOT

PAGES = {
    page: (ROOT / page).read_text(encoding="utf-8")
    for page in ("README.md", "docs/engine.md", "docs/sinks.md")
}
# These run anywhere; others need a sound card, a sound server, another program or real weights.
ELSEWHERE = ("--sink speaker", "--sink mic", "| aplay", "| ffplay", "fishaudio/")


def blocks(*kinds: str) -> list[tuple[str, str]]:
    return [
        (page, code)
        for page, text in PAGES.items()
        for kind, code in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
        if kind in kinds
    ]


def commands() -> list[str]:
    """Each ``rt-drama3 ...`` with what is piped into it, and what it is piped into."""
    lines = [line for _, code in blocks("sh") for line in code.splitlines()]
    return [line for line in lines if re.search(r"(^|\| )rt-drama3 ", line)]


def anywhere() -> list[str]:
    spoken = [command for command in commands() if "rt-drama3 speak" in command]
    return [command for command in spoken if not any(part in command for part in ELSEWHERE)]


def arguments(command: str) -> tuple[list[str], str | None]:
    """Those of ``rt-drama3``, and its standard input."""
    words = shlex.split(command, comments=True)
    before = words[: words.index("rt-drama3")]
    after = words[len(before) + 1 :]
    for end in ("|", "&"):
        after = after[: after.index(end)] if end in after else after
    return after, f"{before[1]}\n" if before else None


def numbered(found: list[tuple[str, str]]) -> list[str]:
    return [f"{page}-{number}" for number, (page, _) in enumerate(found)]


@pytest.mark.parametrize(("page", "code"), blocks("python"), ids=numbered(blocks("python")))
def test_python(page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Their default starts a build in the background, which would outlive the test.
    monkeypatch.setattr(PackageBuilder, "start", lambda _: None)
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
    for path in tmp_path.iterdir():
        assert len(read_audio(path)[0]) > 0, path


def test_the_pages_have_code_and_commands() -> None:
    assert {page for page, _ in blocks("python")} == set(PAGES)
    assert len(commands()) > 20
    assert len(anywhere()) >= 3


@pytest.mark.parametrize("command", commands())
def test_commands_exist_with_their_options(command: str) -> None:
    words, _ = arguments(command)
    group = typer.main.get_command(app)
    context = Context(group)
    while hasattr(group, "resolve_command"):
        _, group, words = group.resolve_command(context, words)
        assert group is not None
        context = Context(group, parent=context)
    group.parse_args(context, words)


@pytest.mark.slow
@pytest.mark.parametrize("command", anywhere())
def test_commands(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words, standard_input = arguments(command)
    done = CliRunner().invoke(app, words, input=standard_input)
    assert done.exit_code == 0, (done.output, done.exception)
    for path in tmp_path.iterdir():
        assert len(read_audio(path)[0]) > 0, path
