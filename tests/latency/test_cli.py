"""The commands: what they say, write and refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rt_drama3.cli.main import app
from rt_drama3_bench import remote
from rt_drama3_bench.result import Result, Verdict, read

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "latency.md").read_text(encoding="utf-8")
SCENARIOS = [
    *("step", "codec", "engine", "server", "client", "sink", "soak", "load", "peer"),
    *("resample", "loading", "ci", "compare", "report", "budget", "gpu"),
]
runner = CliRunner()


def test_every_scenario_is_a_command_and_documented() -> None:
    found = runner.invoke(app, ["bench", "--help"], env={"COLUMNS": "120"})
    assert found.exit_code == 0
    for name in SCENARIOS:
        assert re.search(rf"\b{name}\b", found.output), name
        assert re.search(rf"bench {name}\b|\*\*{name}\*\*", PAGE), name


@pytest.mark.parametrize("name", SCENARIOS)
def test_help_needs_no_model(name: str) -> None:
    found = runner.invoke(app, ["bench", name, "--help"])
    assert found.exit_code == 0


def fake(monkeypatch: pytest.MonkeyPatch, value: float = 1.0) -> list[tuple[object, ...]]:
    """Replaces a measurement; returns what it was called with."""
    calls: list[tuple[object, ...]] = []

    def peer(result: Result, *arguments: object) -> None:
        calls.append(arguments)
        result.add("first pcm", "ms", [value + 0.01 * n for n in range(20)])
        result.verdicts.append(Verdict("first pcm", value, 2.0))

    monkeypatch.setattr(remote, "peer", peer)
    return calls


def test_a_run_is_shown_written_and_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = fake(monkeypatch)
    monkeypatch.setenv("MY_KEY", "secret")
    to, html = tmp_path / "run.json", tmp_path / "run.html"
    options = ["--dialect", "openai", "--key-env", "MY_KEY", "--set", "speed=1.5", "--set", "x=y"]
    command = ["bench", "peer", "http://h", *options, "--json", str(to), "--html", str(html)]
    found = runner.invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "first pcm" in found.output
    target = calls[0][0]
    assert getattr(target, "key", None) == "secret"
    assert getattr(target, "extra", None) == {"speed": 1.5, "x": "y"}
    assert read(to).scenario == "peer"
    assert read(to).arguments == {
        **{"url": "http://h", "dialect": "openai", "key_env": "MY_KEY", "model": None},
        **{"voice": None, "rate": 0, "channels": 1, "setting": ["speed=1.5", "x=y"], "times": 20},
        **{"barge_ins": 5, "pause": 0.3, "timeout": 60.0},
    }
    assert "secret" not in to.read_text() + html.read_text()
    again = tmp_path / "again.html"
    assert runner.invoke(app, ["bench", "report", str(to), str(again)]).exit_code == 0
    assert again.read_text() == html.read_text()


def test_a_missing_folder_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(monkeypatch)
    to, nowhere = tmp_path / "run.json", tmp_path / "missing" / "page"
    runner.invoke(app, ["bench", "peer", "http://h", "--json", str(to)])
    found = runner.invoke(app, ["bench", "report", str(to), str(nowhere)])
    assert found.exit_code == 1
    assert f"cannot write {nowhere}" in found.output
    result = Result("step")
    result.add("step of 1, eager", "ms", [1.0])
    to.write_text(result.as_json())
    found = runner.invoke(app, ["bench", "budget", str(to), "--into", str(nowhere)])
    assert found.exit_code == 1
    assert f"cannot read {nowhere}" in found.output


def test_check_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, 3.0)
    assert runner.invoke(app, ["bench", "peer", "http://h"]).exit_code == 0
    assert runner.invoke(app, ["bench", "peer", "http://h", "--check"]).exit_code == 1


@pytest.mark.parametrize("name", ["ci", "soak"])
def test_ci_and_soak_check_by_default(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fails(result: Result, *_: object) -> None:
        result.verdicts.append(Verdict("utterances that failed", 1, 0))

    monkeypatch.setattr(f"rt_drama3_bench.{'local.ci' if name == 'ci' else name}.{name}", fails)
    for options, code in (([], 1), (["--check"], 1), (["--no-check"], 0)):
        found = runner.invoke(app, ["bench", name, *options])
        assert found.exit_code == code, found.output
        assert "utterances that failed" in found.output


def test_every_scenario_has_the_check_that_the_docs_promise() -> None:
    judged = set(SCENARIOS) - {"report", "budget", "gpu"}  # gpu always checks
    for name in judged:
        found = runner.invoke(app, ["bench", name, "--help"], env={"COLUMNS": "120"})
        assert "--check" in found.output, name


def test_the_timeout_of_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake(monkeypatch)
    found = runner.invoke(app, ["bench", "peer", "http://h", "--timeout", "2.5"])
    assert found.exit_code == 0, found.output
    assert getattr(calls[0][0], "timeout", None) == 2.5


def test_compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file, value in zip(files, (1.0, 90.0), strict=True):
        fake(monkeypatch, value)
        runner.invoke(app, ["bench", "peer", "http://h", "--json", str(file)])
    one, two = map(str, files)
    worse = runner.invoke(app, ["bench", "compare", one, two, "--check"])
    assert "worse" in worse.output
    assert worse.exit_code == 1
    assert runner.invoke(app, ["bench", "compare", two, one, "--check"]).exit_code == 0
    assert runner.invoke(app, ["bench", "compare", one, one, "--check"]).exit_code == 0
    assert worse.output.count("http://h, dialect native") == 2
    files[1].write_text(Result("load").as_json())
    refused = runner.invoke(app, ["bench", "compare", one, two])
    assert refused.exit_code == 1
    assert refused.output.startswith("error: the runs are of different scenarios, peer and load")


def test_invalid_options_are_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = fake(monkeypatch)
    monkeypatch.delenv("NO_KEY", raising=False)
    bad = [
        ["--dialect", "french"],
        ["--key-env", "NO_KEY"],
        ["--set", "nonsense"],
        ["--json", str(tmp_path / "missing" / "run.json")],
    ]
    for options in bad:
        found = runner.invoke(app, ["bench", "peer", "http://h", *options])
        assert found.exit_code == 1, options
        assert found.output.startswith("error: "), options
    found = runner.invoke(app, ["bench", "load", "--pattern", "chaos", "--url", "http://h"])
    assert found.exit_code == 1
    assert "pattern is 'chaos'" in found.output
    assert calls == []


def test_the_module_is_a_command() -> None:
    command = [sys.executable, "-m", "rt_drama3_bench", "--help"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "compare" in found.stdout
