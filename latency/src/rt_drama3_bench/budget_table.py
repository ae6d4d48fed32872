"""The budget table of the README: a few figures of several scenarios, for the machine named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rt_drama3_bench.errors import BenchError
from rt_drama3_bench.estimates import Summary, summarize
from rt_drama3_bench.result import Result

BEGIN, END = "<!-- bench:budget -->", "<!-- /bench:budget -->"
# Scenario, series, and title in the table.
ROWS = (
    ("step", "step of 1, eager", "frame step, eager"),
    ("step", "step of 1, compiled", "frame step, compiled"),
    ("step", "step of 2, compiled", "frame step of two streams, compiled"),
    ("codec", "codec, group of 1, compiled", "codec, one frame"),
    ("codec", "codec, group of 4, compiled", "codec, four frames"),
    ("engine", "growing groups, overlapped: first pcm", "engine: first PCM"),
    ("engine", "growing groups, overlapped: first audible", "engine: first audible sample"),
    ("engine", "barge in, until the engine is done with the stream", "engine: barge-in"),
    ("server", "added from PCM to the client", "server: added from PCM to the client"),
    ("server", "bare echo of the same messages", "a bare echo of the same messages"),
    ("client", "first pcm", "client in another process: first PCM"),
    ("client", "first audible", "client: first audible sample"),
    ("client", "barge in to its answer", "client: barge-in to its answer"),
    ("client", "underrun worst", "client: worst underrun of an utterance"),
)


def table(results: Sequence[Result]) -> str:
    """The table as Markdown, with the machine in front.

    Raises:
        BenchError: none of the runs has any of its figures.
    """
    lines: list[str] = []
    for scenario, name, title in ROWS:
        for result in results:
            if result.scenario != scenario:
                continue
            lines += [
                _row(title, summarize(series.samples))
                for series in result.series
                if series.name == name and series.unit == "ms"
            ]
    if not lines:
        raise BenchError("none of these runs has a figure of the budget; run step, codec, ...")
    head = ["| what, ms | p50 | 95 % interval | p95 | max | n |", "|---|---|---|---|---|---|"]
    return "\n".join([_machine(results), "", *head, *lines])


def write(file: Path, results: Sequence[Result]) -> None:
    """Puts the table between the two marks of a file.

    Raises:
        BenchError: the file cannot be read, or has no such marks.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot read {file}: {error.strerror}; check the path.") from error
    start, end = text.find(BEGIN), text.find(END)
    if start < 0 or end < start:
        raise BenchError(f"{file} has no {BEGIN} followed by {END} to put the table between.")
    made = f"{text[: start + len(BEGIN)]}\n{table(results)}\n{text[end:]}"
    file.write_text(made, encoding="utf-8")


def _row(title: str, found: Summary) -> str:
    low, high = found.p50_interval.low, found.p50_interval.high
    sure = "?" if low is None or high is None else f"{low:.2f}..{high:.2f}"
    return (
        f"| {title} | {found.p50:.2f} | {sure} | {found.p95:.2f} | {found.longest:.2f} "
        f"| {found.n} |"
    )


def _machine(results: Sequence[Result]) -> str:
    where = results[0].environment
    gpu = (where.get("gpu") or {}).get("name")
    words = [
        f"{results[0].facts.get('model', 'nano')} voice",
        f"{where.get('cores')} cores of {where.get('cpu')}",
        *([str(gpu)] if gpu else []),
        f"torch {where.get('torch')}",
        f"rt-drama3 {where.get('rt_drama3')}",
    ]
    noisy = [r.scenario for r in results if r.noise is not None and r.noise.noisy]
    tail = f" The machine was noisy during: {', '.join(noisy)}." if noisy else ""
    return f"{'; '.join(words)}.{tail}"
