"""Two runs compared: what got better or worse beyond noise, what is the same, and what is unknown.

The bootstrap gives an interval of the difference of two medians (and, of enough samples, of two
95th percentiles), which is widened on both sides by the noise floor of the two machines. Better and
worse leave no difference out of it; the same lies within ``SAME`` as a whole; of anything else,
these samples cannot tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rt_drama3_bench.errors import BenchError
from rt_drama3_bench.estimates import Floats, Interval, bootstrap, percentile, share_difference
from rt_drama3_bench.result import Result, Series
from rt_drama3_bench.tables import bounds, number

FEWEST = {0.5: 5, 0.95: 40}  # samples on each side, below which a percentile is not compared
LEAST = {"ms": 0.05, "us": 1.0, "s": 0.001}  # differences that are always the same, by unit
SAME = 0.10  # of the first run: a difference of at most this is the same, where it is certain
RATIO = 10.0  # times LEAST, below which a value is near zero and its ratio means nothing
Word = Literal["better", "worse", "other", "same", "cannot tell"]


@dataclass(frozen=True)
class Comparison:
    """One percentile of one series in two runs.

    Attributes:
        name, unit: of the series.
        share: which percentile; None for the mean of samples that are 0 or 1.
        before, after: its values.
        ratio: after by before; None where one of them is negative or near zero.
        ratio_interval: 95 % confidence.
        word: the verdict.
    """

    name: str
    unit: str
    share: float | None
    before: float
    after: float
    ratio: float | None
    ratio_interval: Interval
    word: Word


def compare(before: Result, after: Result) -> list[Comparison]:
    """Every series that both runs have.

    Raises:
        BenchError: the runs are of different scenarios, or have no series in common.
    """
    if before.scenario != after.scenario:
        raise BenchError(
            f"the runs are of different scenarios, {before.scenario} and {after.scenario}; "
            "compare two runs of one scenario."
        )
    floor = max((r.noise.floor for r in (before, after) if r.noise is not None), default=0.02)
    others = {series.name: series for series in after.series}
    changes = [
        change
        for series in before.ranked
        if series.name in others
        for share in FEWEST
        for change in _compare_one(series, others[series.name], share, floor)
    ]
    if not changes:
        raise BenchError(f"these runs of {before.scenario} have no figure in common.")
    return changes


def _compare_one(one: Series, two: Series, share: float, floor: float) -> list[Comparison]:
    if one.unit == "share":
        return [_compare_shares(one, two)] if share == 0.5 else []
    fewest = min(len(one.samples), len(two.samples))
    a, b = percentile(one.samples, share), percentile(two.samples, share)
    least = LEAST.get(one.unit, 0.001)
    ratio = b / a if min(a, b) >= RATIO * least else None
    if fewest < FEWEST[share]:
        if share != 0.5:
            return []
        nothing = Interval(None, None)
        return [Comparison(one.name, one.unit, share, a, b, ratio, nothing, "cannot tell")]

    def difference(x: Floats, y: Floats) -> float:
        return _rank(y, share) - _rank(x, share)

    apart = bootstrap(difference, one.samples, two.samples)
    low, high = (b - a if bound is None else bound for bound in (apart.low, apart.high))
    bound = Interval(None, None) if ratio is None else Interval((a + low) / a, (a + high) / a)
    word = _word(low, high, abs(a) * floor, max(SAME * abs(a), least), least)
    opposite: dict[Word, Word] = {"worse": "better", "better": "worse"}
    if word in opposite and one.better != "lower":
        word = opposite[word] if one.better == "higher" else "other"
    return [Comparison(one.name, one.unit, share, a, b, ratio, bound, word)]


def _word(low: float, high: float, noise: float, margin: float, least: float) -> Word:
    """The verdict where lower is better.

    Args:
        low, high: interval of the difference.
        noise: by which the machine alone may have shifted it.
        margin: differences up to here are the same.
        least: differences that are the same whatever the noise.
    """
    if -least <= low and high <= least:
        return "same"
    if low > noise:
        return "worse"
    if high < -noise:
        return "better"
    return "same" if -margin <= low - noise and high + noise <= margin else "cannot tell"


def _compare_shares(one: Series, two: Series) -> Comparison:
    """Compares how many samples are 1, not 0; the noise of a machine has no part in it."""
    counts = [(int(sum(side.samples)), len(side.samples)) for side in (one, two)]
    (a, b), apart = (count / n for count, n in counts), share_difference(*counts)
    word: Word = "same" if a == b else "cannot tell"
    if apart.low is not None and apart.high is not None and apart.low * apart.high > 0:
        word = "better" if (b < a) == (one.better == "lower") else "worse"
    return Comparison(one.name, one.unit, None, a, b, None, Interval(None, None), word)


def _rank(samples: Floats, share: float) -> float:
    place = max(0, int(np.ceil(share * len(samples) - 1e-9)) - 1)
    return float(np.partition(samples, place)[place])


def show(before: Result, after: Result, changes: list[Comparison], console: Console) -> None:
    """Prints the comparison."""
    for which, run in (("before", before), ("after", after)):
        line = f"{which}: {', '.join(part for part in (_machine(run), run.target) if part)}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if before.environment.get("cpu") != after.environment.get("cpu"):
        console.print("[yellow]the machines are not the same[/yellow]")
    for which, run in (("first", before), ("second", after)):
        if run.noise is not None and run.noise.noisy:
            reasons = "; ".join(run.noise.reasons)
            console.print(f"[red]the {which} run was noisy:[/red] {escape(reasons)}")
    table = Table(box=None, pad_edge=False)
    for heading in ("", "of", "before", "after", "ratio", "", ""):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    colours = {"better": "green", "worse": "red", "other": "yellow", "cannot tell": "yellow"}
    for change in changes:
        colour = colours.get(change.word, "dim")
        name = f"{change.name}, {change.unit}" if change.unit else change.name
        which = "mean" if change.share is None else f"p{100 * change.share:g}"
        table.add_row(
            *map(escape, (name, which, number(change.before), number(change.after))),
            *map(escape, _ratio(change)),
            f"[{colour}]{change.word}[/{colour}]",
        )
    console.print(table)
    for name, names in (("first", _only(before, after)), ("second", _only(after, before))):
        if names:
            console.print(f"only in the {name}: {', '.join(names)}", markup=False, highlight=False)


def _ratio(change: Comparison) -> tuple[str, str]:
    if change.ratio is None:
        return "", ""
    return f"{change.ratio:.3f}", bounds(change.ratio_interval)


def _only(one: Result, two: Result) -> list[str]:
    others = {series.name for series in two.series}
    return [series.name for series in one.series if series.name not in others]


def _machine(run: Result) -> str:
    where = run.environment
    version = where.get("rt_drama3")
    known = [f"rt-drama3 {version}"] if version else []
    return ", ".join([run.scenario, str(where.get("cpu")), *known, str(where.get("time"))])
