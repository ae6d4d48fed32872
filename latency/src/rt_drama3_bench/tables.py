"""A run as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rt_drama3_bench.estimates import Interval, summarize
from rt_drama3_bench.result import Result, Series


def show(result: Result, console: Console) -> None:
    """Prints samples, verdicts, preparation times, and whether the machine was quiet."""
    heading = f"[bold]{escape(result.scenario)}[/bold] on {escape(result.machine)}"
    console.print(heading, highlight=False)
    if result.preparation:
        parts = (f"{name} {seconds:.2f} s" for name, seconds in result.preparation.items())
        console.print(f"before the measurement: {', '.join(parts)}", highlight=False)
    if result.series:
        console.print(_series(result))
    if result.verdicts:
        console.print(_verdicts(result))
    for name, fact in result.facts.items():
        if isinstance(fact, str | int | float):
            text = f"{fact:.4g}" if isinstance(fact, float) else str(fact)
            console.print(f"{escape(name)}: {escape(text)}", highlight=False)
    for note in result.notes:
        console.print(f"[yellow]{escape(note)}[/yellow]", highlight=False, soft_wrap=True)
    if result.noise is not None and result.noise.noisy:
        reasons = "; ".join(result.noise.reasons)
        console.print(f"[red]noisy machine:[/red] {escape(reasons)}", highlight=False)


def _series(result: Result) -> Table:
    caption = "[a..b]: 95 % confidence, ? where n is too small; --json and --html have more"
    table = Table(box=None, pad_edge=False, caption=escape(caption))
    table.add_column("", overflow="fold")
    for heading in ("n", "p50", "", "p95", "", "p99", "max"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for series in result.series:
        if not series.minor:
            table.add_row(*map(escape, cells(series)))
    return table


def cells(series: Series) -> tuple[str, ...]:
    """Title, count, p50 and p95 each with its interval, p99 and the longest sample."""
    found = summarize(series.samples)
    return (
        *(series.title, str(found.n), number(found.p50), bounds(found.p50_interval)),
        *(number(found.p95), bounds(found.p95_interval)),
        *(number(found.p99), number(found.longest)),
    )


def _verdicts(result: Result) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "value", "limit", "", ""):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for verdict in result.verdicts:
        word = "[green]ok[/green]" if verdict.met else "[red]MISS[/red]"
        table.add_row(
            "[yellow]not judged[/yellow]" if verdict.unsure else word,
            number(verdict.value),
            f"{'>=' if verdict.at_least else '<='} {verdict.limit:g}",
            escape(verdict.name),
            escape(verdict.unsure or verdict.detail),
        )
    return table


def number(value: float) -> str:
    """Three or four digits that matter."""
    size = abs(value)
    return f"{value:.0f}" if size >= 1000 else f"{value:.{1 if size >= 100 else 2}f}"


def bounds(interval: Interval) -> str:
    """An interval as short as it can be."""
    low, high = ("?" if v is None else number(v) for v in (interval.low, interval.high))
    return f"[{low}..{high}]"
