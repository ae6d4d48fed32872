"""docs/protocol.md: its examples, tables and limits are those of the code."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from rt_drama3.protocol import FORMATS, KINDS, ProtocolLimits, load_schema
from tests.protocol.examples import MARK, PAGE, examples, written

TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(examples()))
def test_every_message_has_its_example_as_the_code_makes_it(name: str) -> None:
    shown = {mark[1]: mark[3] for mark in MARK.finditer(TEXT)}
    assert name in shown, "add it, then run python -m tests.protocol.examples"
    assert shown[name] == written(examples()[name]), "run python -m tests.protocol.examples"


def test_every_message_of_the_schemas_has_an_example() -> None:
    for dialect, schema in (("native", "native"), ("fish", "fish_live"), ("listen", "listen")):
        for name in load_schema(schema)["$defs"]:
            side, _, message = name.partition("_")
            if side in ("client", "server") and message:
                assert f"{dialect} {message}" in examples()


def rows(first: str) -> list[list[str]]:
    """Cells of the table whose header begins with that cell, header and rule left out."""
    table = re.search(rf"^\| {first} \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert table, f"no table begins with {first}"
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table[1].splitlines()]


def test_the_table_of_errors_is_complete() -> None:
    assert rows("code") == [
        [f"`{code}`", str(k.http), str(k.close), "yes" if k.retriable else "no", k.remedy]
        for code, k in KINDS.items()
    ]


def test_the_table_of_limits_is_complete() -> None:
    limits = ProtocolLimits()
    shown = {name.strip("`"): value for name, value, _ in rows("limit")}
    assert shown == {
        field.name: f"{getattr(limits, field.name):_.0f}".replace("_", " ")
        for field in fields(limits)
    }


def test_the_table_of_formats_is_complete() -> None:
    shown = {name.strip("`"): rates for name, _, rates, _ in rows("format")}
    assert shown == {name: ", ".join(map(str, kind.rates)) for name, kind in FORMATS.items()}
