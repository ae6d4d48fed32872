"""Every import of a package's sources, read from their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "rt_drama3"


@dataclass(frozen=True)
class Import:
    """One module that another one imports, anywhere in its file, types included.

    Args:
        importer: the dotted name of the module that holds the statement.
        imported: the dotted name of the module that it names.
        line: of the statement.
    """

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def sources(directory: Path, package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in sorted(directory.rglob("*.py")):
        parts = [package, *path.relative_to(directory).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


@cache
def modules() -> dict[str, Path]:
    """Every module of rt_drama3 by its dotted name."""
    return sources(ROOT / PACKAGE, PACKAGE)


@cache
def exports() -> dict[str, str]:
    """The names that ``rt_drama3/__init__.py`` re-exports, and the module of each."""
    tree = ast.parse(modules()[PACKAGE].read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


@cache
def imports_of(module: str, path: Path) -> tuple[Import, ...]:
    """The imports of one file; a name that is a submodule counts as that module."""
    return tuple(
        Import(module, name, node.lineno)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in sorted(set(_imported(node)))
    )


def all_imports() -> Iterator[Import]:
    """The imports of rt_drama3 from itself."""
    for module, path in modules().items():
        for found in imports_of(module, path):
            if found.imported.split(".")[0] == PACKAGE:
                yield found


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, f"relative import in line {node.lineno}"
        package = node.module or ""
        for alias in node.names:
            name = f"{package}.{alias.name}"
            if name in modules():
                yield name
            elif package == PACKAGE and alias.name in exports():
                yield exports()[alias.name]
            elif name != f"{PACKAGE}.__version__":
                yield package
