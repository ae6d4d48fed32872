"""The rooms of rt_drama3 and what each may import: the table «Floors» of CONTRIBUTING.md."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from graphlib import TopologicalSorter

import pytest

from tests.house.imports import (
    PACKAGE,
    ROOT,
    Import,
    all_imports,
    imports_of,
    modules,
    sources,
)

ENTRANCES = ("__init__", "__main__")  # above all floors; no room imports them
MOST_FILES = 12  # directly in rt_drama3/

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FLOORS = {
    int(floor): [re.findall(r"`(\w+)`", group) for group in rooms.split("·")]
    for floor, rooms in re.findall(r"^\| (\d) \| (.*) \|$", CONTRIBUTING, re.MULTILINE)
}
FLOOR_OF = {room: floor for floor, groups in FLOORS.items() for group in groups for room in group}


def torch_free() -> list[str]:
    sentence = re.search(r"No torch is imported by (.*?),\s+directly", CONTRIBUTING, re.DOTALL)
    assert sentence
    return re.findall(r"`([\w.]+)`", sentence[1])


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def short(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.")


def apart(one: str, other: str) -> bool:
    """Whether two rooms of one floor do not know each other."""
    groups = [group for groups in FLOORS.values() for group in groups]
    together = any(one in group and other in group for group in groups)
    return FLOOR_OF[one] == FLOOR_OF[other] and not together


def between_rooms() -> list[Import]:
    return [
        found
        for found in all_imports()
        if room_of(found.importer) != room_of(found.imported)
        and room_of(found.importer) not in ENTRANCES
    ]


def wrong(found: Import) -> bool:
    importer, imported = room_of(found.importer), room_of(found.imported)
    return (
        imported in ENTRANCES
        or FLOOR_OF[imported] > FLOOR_OF[importer]
        or apart(importer, imported)
    )


def lines(found: Iterable[Import]) -> str:
    return "\n".join(map(str, found))


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(module) for module in modules()} - set(ENTRANCES)
    assert rooms == set(FLOOR_OF)


def test_imports_go_down() -> None:
    found = [found for found in between_rooms() if wrong(found)]
    assert not found, f"these go up, or sideways to a room that is to stay unknown:\n{lines(found)}"


def test_rooms_have_no_cycles() -> None:
    graph = defaultdict(set)
    for found in between_rooms():
        graph[room_of(found.importer)].add(room_of(found.imported))
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the rooms


def test_modules_have_no_cycles() -> None:
    graph = defaultdict(set)
    for found in all_imports():
        graph[short(found.importer)].add(short(found.imported))
    TopologicalSorter(graph).prepare()


def test_few_files_lie_outside_of_the_rooms() -> None:
    files = sorted(path.name for path in (ROOT / PACKAGE).iterdir() if path.is_file())
    assert len(files) <= MOST_FILES, files


def test_the_benchmarks_are_mounted_in_one_place() -> None:
    importers = {
        module
        for module, path in modules().items()
        for found in imports_of(module, path)
        if found.imported.split(".")[0] == "rt_drama3_bench"
    }
    assert len(importers) <= 1, importers
    assert all(module.startswith(f"{PACKAGE}.cli.") for module in importers), importers


def of_room(name: str) -> list[str]:
    full = f"{PACKAGE}.{name}"
    return [module for module in modules() if module == full or module.startswith(f"{full}.")]


@pytest.mark.parametrize("name", torch_free())
def test_no_torch(name: str) -> None:
    names = of_room(name)
    assert names
    direct = [
        found
        for module in names
        for found in imports_of(module, modules()[module])
        if found.imported.split(".")[0] == "torch"
    ]
    assert not direct, lines(direct)
    load_without(["torch"], names)


def test_the_python_client_needs_neither_torch_nor_the_server() -> None:
    directory = ROOT / "clients" / "python" / "src" / "rt_drama3_client"
    found = sources(directory, "rt_drama3_client")
    assert found
    load_without(["torch", "rt_drama3", "rt_drama3_bench"], list(found))


def test_measuring_servers_needs_neither_torch_nor_rt_drama3() -> None:
    found = sources(ROOT / "latency" / "src" / "rt_drama3_bench", "rt_drama3_bench")
    assert found
    names = [name for name in found if not name.startswith("rt_drama3_bench.local")]
    load_without(["torch", "rt_drama3", "rt_drama3_client"], names)


def load_without(absent: list[str], names: list[str]) -> None:
    """Imports modules in a fresh process that lacks some packages; its traceback has the way."""
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({absent!r}))\n"
        f"for name in {names!r}:\n"
        "    if not name.endswith('.__main__'):\n"
        "        importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_of_the_package_count_as_the_modules_that_define_them() -> None:
    found = {one.imported for one in imports_of(PACKAGE, modules()[PACKAGE])}
    assert f"{PACKAGE}.drama3" in found
