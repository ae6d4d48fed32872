"""The harness alone: only rt-drama3-bench and what it declares, a server in another process."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from packaging.requirements import Requirement
from websockets.asyncio.server import ServerConnection, serve

from rt_drama3_bench.result import read

PROJECT = Path(__file__).parents[2] / "latency"
RATE, FRAME, FRAMES = 16_000, 743, 12
PCM = (9_000 * np.sin(np.arange(FRAME) / 5)).astype("<i2").tobytes()

# Refuses every installed package that the harness does not declare, as if it were not installed.
# argv: the top-level names that exist here but are not declared, then the command line.
ALONE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Absent())

import importlib.util
found = importlib.util.find_spec
def find_spec(name, package=None):
    return None if name in absent else found(name, package)
importlib.util.find_spec = find_spec

from rt_drama3_bench.cli import main
main()
"""


def absent() -> set[str]:
    """Top-level modules of this environment that ``pip install rt-drama3-bench`` does not bring."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    queue, declared = list(project["dependencies"]), {"rt-drama3-bench"}
    while queue:
        requirement = Requirement(queue.pop())
        name = requirement.name.lower().replace("_", "-")
        if name not in declared and (requirement.marker is None or requirement.marker.evaluate()):
            declared.add(name)
            queue += [one for one in importlib.metadata.requires(name) or [] if "extra" not in one]
    names = importlib.metadata.packages_distributions()
    kept = {
        module
        for module, owners in names.items()
        if declared & {owner.lower().replace("_", "-") for owner in owners}
    }
    return ({*names, "torch", "rt_drama3"} - kept) - {"rt_drama3_bench"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ALONE, ",".join(sorted(absent())), *arguments]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


async def native(socket: ServerConnection) -> None:
    """The native dialect, faster than real time; a cancel ends an utterance."""
    number = 0
    async for data in socket:
        message = msgpack.unpackb(data)
        if message["type"] != "start":
            continue
        number += 1
        name = f"u{number}"

        async def put(name: str = name, **fields: Any) -> None:
            await socket.send(msgpack.packb({"id": name, **fields}))

        await put(type="ready", sample_rate=RATE)
        end = "done"
        for _ in range(FRAMES):
            await put(type="audio", audio=PCM)
            try:
                async with asyncio.timeout(0.01):
                    await socket.recv()
            except TimeoutError:
                continue
            end = "cancelled"
            break
        await put(type=end)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    ready, stop = threading.Event(), threading.Event()
    ports: list[int] = []

    async def work() -> None:
        async with serve(native, "127.0.0.1", 0) as server:
            ports.append(next(iter(server.sockets)).getsockname()[1])
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    assert ready.wait(30)
    yield f"http://127.0.0.1:{ports[0]}"
    stop.set()
    thread.join(30)


@pytest.mark.serial
def test_servers_are_measured_without_torch_and_rt_drama3(url: str, tmp_path: Path) -> None:
    runs = [tmp_path / "one.json", tmp_path / "two.json"]
    for run in runs:
        options = ["--times", "6", "--barge-ins", "2", "--pause", "0", "--json", str(run)]
        found = bench("peer", url, *options)
        assert found.returncode == 0, found.stderr
        assert "first pcm" in found.stdout
    result = read(runs[0])
    series = {one.name: one.samples for one in result.series}
    assert len(series["first pcm"]) == 6
    assert len(series["barge in to its answer"]) == 2
    assert result.environment["threads"] is None  # torch was not there

    one, two = map(str, runs)
    compared = bench("compare", one, two)
    assert compared.returncode == 0, compared.stderr
    assert "first pcm" in compared.stdout
    page = tmp_path / "page.html"
    assert bench("report", one, str(page)).returncode == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")

    loaded = bench("load", "--url", url, "--level", "2", "--seconds", "1", "--json", two)
    assert loaded.returncode == 0, loaded.stderr
    assert read(runs[1]).facts["levels"][0]["asked"] == 2


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        (["step"], "bench step needs rt-drama3 itself"),
        (["gpu"], "bench gpu needs rt-drama3 itself"),
        (["client"], "starting a server needs rt-drama3 itself"),
    ],
)
def test_what_needs_rt_drama3_names_what_to_install(command: list[str], needs: str) -> None:
    found = bench(*command)
    assert found.returncode == 1
    assert found.stderr.startswith(f"error: {needs}: pip install 'rt-drama3-bench[engine]'")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nimport rt_drama3.cli.main\n"
        "heavy = {'torch', 'numpy', 'websockets', 'rt_drama3_bench.local'} & set(sys.modules)\n"
        "sys.exit(f'{heavy}' if heavy else 0)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert bench("--help").returncode == 0


def test_without_the_harness_the_product_names_what_to_install() -> None:
    program = (
        "import importlib.util, sys\n"
        "sys.modules['rt_drama3_bench'] = None\n"
        "importlib.util.find_spec = lambda name: None\n"
        "from rt_drama3.cli.main import main\n"
        "sys.argv = ['rt-drama3', 'bench', 'peer', 'http://h', '--times', '3']\n"
        "main()\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.returncode == 1
    assert "rt-drama3 bench needs rt-drama3-bench: pip install rt-drama3-bench" in found.stderr
