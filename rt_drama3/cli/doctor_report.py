"""What the doctor found, line by line, and how it is printed; ``doctor`` has what it looks at.

A probe may fail without harm to the others: its failure is a line of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

Status = Literal["ok", "note", "missing", "failed"]

_STYLES: dict[Status, str] = {"ok": "green", "note": "cyan", "missing": "yellow", "failed": "red"}


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was looked at.
        value: what was found.
        status: "ok"; "note" for what is worth knowing; "missing" for what can be installed;
            "failed" when the probe itself broke.
        advice: what to do about it, or empty.
    """

    name: str
    value: str
    status: Status = "ok"
    advice: str = ""


@dataclass(frozen=True)
class Report:
    """What ``collect`` found, by section; ``dataclasses.asdict`` gives its JSON form."""

    machine: tuple[Finding, ...]
    compute: tuple[Finding, ...]
    audio: tuple[Finding, ...]
    folders: tuple[Finding, ...]
    plan: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """True when no probe failed."""
        return not any(
            finding.status == "failed"
            for section in fields(self)
            for finding in getattr(self, section.name)
        )


Probe = Callable[[], Iterable[Finding]]


def run_probes(probes: Mapping[str, Mapping[str, Probe]]) -> Report:
    """Runs probes, given by section, then by name; never raises."""
    names = [section.name for section in fields(Report)]
    return Report(**{name: tuple(_run(probes.get(name, {}))) for name in names})


def render(report: Report, console: Console) -> None:
    """Prints a report for people, one table with a heading per section."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for section in fields(report):
        table.add_row(Text(section.name, style="bold"))
        for finding in getattr(report, section.name):
            status = Text(f"  {finding.status}", style=_STYLES[finding.status])
            table.add_row(status, Text(finding.name), Text(finding.value))
            if finding.advice:
                table.add_row("", "", Text(f"-> {finding.advice}", style="bold"))
    console.print(table)


def _run(probes: Mapping[str, Probe]) -> Iterator[Finding]:
    for name, probe in probes.items():
        try:
            yield from list(probe())
        except Exception as error:  # noqa: BLE001 - whatever broke, it is what the report is for
            yield Finding(name, f"{type(error).__name__}: {error}", "failed")
