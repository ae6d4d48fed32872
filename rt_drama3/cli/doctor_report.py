"""The report of ``rt-drama3 doctor``: findings, probes and rendering."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
        name: subject of the probe.
        value: result.
        status: "ok"; "note" for information; "missing" for something that can be installed or
            fixed; "failed" when the probe itself raised.
        advice: how to fix it, or empty.
    """

    name: str
    value: str
    status: Status = "ok"
    advice: str = ""


Probe = Callable[[], Iterable[Finding]]
Report = dict[str, list[Finding]]  # by section


def run_probes(probes: Mapping[str, Mapping[str, Probe]]) -> Report:
    """Runs probes by section, then by name; never raises."""
    return {section: list(_run(named)) for section, named in probes.items()}


def render(report: Report, console: Console) -> None:
    """Prints a report as a table with a heading per section."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for section, findings in report.items():
        table.add_row(Text(section, style="bold"))
        for finding in findings:
            status = Text(f"  {finding.status}", style=_STYLES[finding.status])
            table.add_row(status, Text(finding.name), Text(finding.value))
            if finding.advice:
                table.add_row("", "", Text(f"-> {finding.advice}", style="bold"))
    console.print(table)


def _run(probes: Mapping[str, Probe]) -> Iterator[Finding]:
    for name, probe in probes.items():
        try:
            yield from list(probe())
        except Exception as error:  # noqa: BLE001 - failures are part of the report
            yield Finding(name, f"{type(error).__name__}: {error}", "failed")
