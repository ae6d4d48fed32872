"""Runs as JSON and as pages, and what a comparison says of them."""

from __future__ import annotations

import random
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from rt_drama3_bench import budget_table, plots, report, runner, tables
from rt_drama3_bench.calibration import Calibration, Noise, judge
from rt_drama3_bench.compare import compare, show
from rt_drama3_bench.errors import BenchError
from rt_drama3_bench.estimates import Interval
from rt_drama3_bench.metrics import Arrival, Recording
from rt_drama3_bench.result import Result, Series, Verdict, read
from rt_drama3_bench.soak import RoundSample
from rt_drama3_bench.soak import judge as judge_soak

RATE = 10_000


def utterance(number: int = 0, gap: float = 0.0) -> Recording:
    due = 100.0 + number
    made = Recording(due, RATE, due, label=f"stream <{number}>", first_byte=due + 0.01)
    for place in range(5):
        stamps = {"prefilled": 5.0, "sampled": 10.0 * place + 9, "decoded": 10.0 * place + 14}
        stamps["sent"] = stamps["decoded"] + 0.5
        at = due + 0.02 + 0.01 * place + (gap + 0.4 if gap and place > 2 else 0)
        pcm = np.full(500, 0.1, np.float32)
        made.arrivals.append(Arrival(at, 500, 1000, pcm, stamps=stamps))
    made.ended = made.arrivals[-1].at
    return made


def run(**series: list[float]) -> Result:
    made = Result("peer", {"times": 3}, {"cpu": "abacus", "cores": 2, "time": "now"})
    for name, samples in series.items():
        made.add(name, "ms", samples)
    made.noise = Noise(False, 0.02)
    return made


def normal(mean: float, count: int = 60, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(mean, 0.05 * mean) for _ in range(count)]


def test_json_there_and_back(tmp_path: Path) -> None:
    made = runner.run("peer", {"url": "http://h"}, lambda result, url: _fill(result))
    file = tmp_path / "run.json"
    file.write_text(made.as_json())
    again = read(file)
    assert again == made
    assert again.environment["torch"]
    assert again.before is not None
    assert again.noise is not None
    assert "seconds" in again.facts
    assert again.facts["cost of a second of audio, processor seconds"] > 0


def _fill(result: Result) -> None:
    result.record("", [utterance(), utterance(1, 0.1), Recording(1.0, error="refused")])
    result.facts["audio seconds"] = 0.5
    result.verdicts.append(Verdict("x", 1.0, 2.0))


def test_every_figure_is_recorded_and_failures_are_noted() -> None:
    made = Result("peer")
    _fill(made)
    series = {one.name: one for one in made.series}
    assert series["first pcm"].samples == pytest.approx([20, 20])
    assert series["underrun worst"].samples == pytest.approx([0, 380])
    assert series["stage prefill"].samples == [5, 5]
    assert len(series["stage codec"].samples) == 10
    assert series["lead slope"].better == "higher"
    assert "1 of 3 utterances failed, the first with: refused" in made.notes[0]
    assert made.utterances[1]["pieces"][3]["lead_ms"] == pytest.approx(-380)


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"format": "other"}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(BenchError, match=r"x\.json"):
        read(file)
    with pytest.raises(BenchError, match="cannot be read"):
        read(tmp_path / "missing.json")


def test_a_page_is_whole_and_fetches_nothing() -> None:
    made = Result("load", environment={"cpu": "a <b>"}, noise=Noise(True, 0.3, ["it <rattles>"]))
    made.record("", [utterance(n, 0.1 * (n % 2)) for n in range(4)])
    made.verdicts = [Verdict("continuity", 300, 100), Verdict("y", 1, 2, unsure="busy")]
    text = report.page(made)
    assert not re.search(r"(src|href)=|url\(|<script|@import", text)
    assert "it &lt;rattles&gt;" in text
    assert "<b>" not in text
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 5  # timeline, closer, first audio, lead, continuity
    for picture in pictures:
        ElementTree.fromstring(picture)
    for lane in ("prefill", "frames", "codec", "send", "playback"):
        assert f">{lane}</text>" in pictures[0]
    assert pictures[4].count("<circle") == 4


def test_a_page_names_the_server_and_fits_phones_and_dark_screens() -> None:
    made = Result("peer", {"url": "https://me:secret@a.b/<x>", "dialect": "openai"})
    text = report.page(made)
    shown = text[: text.index("<pre>")]
    assert shown.count("https://a.b/&lt;x&gt;, dialect openai") == 2  # the title and the page
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "color-scheme: light dark" in text
    assert "@media (prefers-color-scheme: dark)" in text
    used, defined = set(re.findall(r"var\((--\w+)\)", text)), re.findall(r"(--\w+): ", text)
    assert used
    assert all(defined.count(name) == 2 for name in used)  # in both schemes


def test_plots_take_their_colours_from_the_scheme() -> None:
    named = [("a", [(0.0, 1.0), (1.0, 2.0)]), ("b", [(0.0, 2.0)])]
    pictures = plots.lines(named, "x", "y", level=1.0) + plots.histogram([1.0, 2.0], "ms")
    assert not re.findall(r"(?:fill|stroke)=\"#", pictures)
    assert ">b</text>" in pictures


def test_load_is_drawn_over_the_level() -> None:
    made = Result("load")
    level = {"failed": 0, "stuttered": 1, "waited": 0, "asked": 4, "worst_ms": 150.0}
    levels = [level | {"load": n, "first_p95_ms": 50.0 * n if n < 3 else None} for n in (1, 2, 3)]
    made.facts = {"levels": levels, "pattern": "steady", "unit": "streams"}
    pictures = re.findall(r"<svg.*?</svg>", report.page(made), re.DOTALL)
    assert len(pictures) == 2
    for picture, names in zip(
        pictures,
        (("first audio, p95", "worst underrun"), ("failed", "stuttered", "waited")),
        strict=True,
    ):
        ElementTree.fromstring(picture)
        assert "load (steady), streams" in picture
        assert all(f">{name}</text>" in picture for name in names)


def test_a_soak_is_drawn_over_time() -> None:
    made = Result("soak")
    rounds = [RoundSample(20.0 * n, {"threads": 9.0 + n}, worst_ms=5.0 * n) for n in range(12)]
    judge_soak(made, rounds)
    text = report.page(made)
    pictures = re.findall(r"<h2>([^<]*)</h2>(<svg.*?</svg>)", text, re.DOTALL)
    names = [name for name, _ in pictures]
    assert names == ["threads", "worst underrun, ms", "utterances that failed"]
    for _, picture in pictures:
        ElementTree.fromstring(picture)
        assert "s since the beginning" in picture
        assert picture.count("<circle") == 12


def test_a_page_of_nothing() -> None:
    assert "<svg" not in report.page(Result("step"))


def test_ticks_are_round() -> None:
    assert plots.ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert plots.ticks(-0.03, 0.05, 4) == pytest.approx([-0.02, 0, 0.02, 0.04])
    assert "<svg" in plots.histogram([3.0, 3.0], "ms")


def words(before: Result, after: Result) -> dict[tuple[str, float], str]:
    return {(one.name, one.share): one.word for one in compare(before, after)}


def test_what_changed_beyond_noise() -> None:
    before = run(slow=normal(10), same=normal(5), fast=normal(20), gone=[1.0])
    after = run(slow=normal(12, seed=1), same=normal(5, seed=2), fast=normal(15, seed=3))
    found = words(before, after)
    assert found["slow", 0.5] == "worse"
    assert found["slow", 0.95] == "worse"
    assert found["same", 0.5] == "same"
    assert found["fast", 0.5] == "better"
    assert ("gone", 0.5) not in found


def test_higher_may_be_better_and_nothing_may_be_neither() -> None:
    before, after = run(), run()
    for one, mean in ((before, 10.0), (after, 12.0)):
        one.series.append(Series("lead", "ms", normal(mean), "higher"))
        one.series.append(Series("size", "", normal(mean), "neither"))
    found = words(before, after)
    assert found["lead", 0.5] == "better"
    assert found["size", 0.5] == "other"


def test_a_noisy_machine_hides_small_differences() -> None:
    before, after = run(slow=normal(10)), run(slow=normal(12, seed=1))
    after.noise = Noise(True, 0.5, ["it rattles"])
    assert words(before, after)["slow", 0.5] == "cannot tell"
    assert words(before, run(slow=normal(10, seed=1)))["slow", 0.5] == "same"


def test_few_samples_prove_nothing() -> None:
    assert words(run(x=[1.0, 1.1]), run(x=[9.0, 9.1]))["x", 0.5] == "cannot tell"
    assert words(run(x=[0.0] * 9), run(x=[0.0] * 9))["x", 0.5] == "same"


def test_a_clear_difference_is_not_hidden_by_restless_turns_of_the_processor() -> None:
    before, after = run(first=normal(120, 25)), run(first=normal(132, 25, seed=1))
    for one, spread in ((before, 1.12), (after, 3.33)):
        calm = Calibration(100, 1.0, 1.05, spread, spread, 0.97)
        one.noise = judge(calm, calm)
    assert after.noise is not None
    assert after.noise.noisy
    assert words(before, after)["first", 0.5] == "worse"
    after.noise = Noise(True, 2.33, ["the machine's speed changed by 233 % during the run"])
    assert words(before, after)["first", 0.5] == "cannot tell"


def test_a_wide_interval_around_no_difference_is_unknown() -> None:
    wide = [40.0, 60.0, 80.0, 100.0, 120.0, 140.0, 160.0]
    assert words(run(x=wide), run(x=[one + 1 for one in wide]))["x", 0.5] == "cannot tell"


def test_ratios_of_values_near_zero_are_not_printed() -> None:
    before = run(late=[0.01] * 9, lead=[-300.0] * 9, first=[100.0] * 9)
    changes = compare(before, run(late=[4.0] * 9, lead=[20.0] * 9, first=[150.0] * 9))
    ratios = {one.name: (one.ratio, one.ratio_interval) for one in changes}
    nothing = (None, Interval(None, None))
    assert ratios == {"late": nothing, "lead": nothing, "first": (1.5, Interval(1.5, 1.5))}
    out = Console(record=True, width=140)
    show(before, before, changes, out)
    text = out.export_text()
    assert "400.0" not in text
    assert "?" not in text


def test_runs_that_have_nothing_to_compare_are_refused() -> None:
    with pytest.raises(BenchError, match="different scenarios, peer and load"):
        compare(run(x=normal(1)), Result("load"))
    with pytest.raises(BenchError, match="no figure in common"):
        compare(run(x=normal(1)), run(y=normal(1)))


def test_a_comparison_names_the_servers_without_their_passwords() -> None:
    before, after = run(x=normal(1)), run(x=normal(1))
    before.arguments = {"url": "http://me:secret@one:1", "dialect": "openai", "voice": "alloy"}
    after.arguments = {"url": "http://two:2", "dialect": "native", "model": None}
    out = Console(record=True, width=60)
    show(before, after, compare(before, after), out)
    text = out.export_text()
    assert "http://one:1, dialect openai, voice alloy" in text
    assert "http://two:2, dialect native" in text
    assert "secret" not in text


def test_comparison_and_tables_are_printed() -> None:
    out = Console(record=True, width=140)
    before, after = run(slow=normal(10), gone=[1.0]), run(slow=normal(12, seed=1))
    after.noise = Noise(True, 0.02, ["it rattles"])
    show(before, after, compare(before, after), out)
    before.verdicts = [Verdict("continuity", 300, 100), Verdict("y", 1, 2, unsure="busy")]
    before.notes = ["left out: [x]"]
    tables.show(before, out)
    text = out.export_text()
    for wanted in ("worse", "it rattles", "only in the first: gone", "MISS", "busy", "out: [x]"):
        assert wanted in text, wanted


def test_verdicts() -> None:
    assert Verdict("x", 2, 2).met
    assert not Verdict("x", 2.1, 2).met
    assert Verdict("x", 2.1, 2, at_least=True).met
    assert Verdict("x", 9, 2, unsure="noise").met


def test_the_budget_table(tmp_path: Path) -> None:
    step = Result("step", environment={"cores": 2, "cpu": "abacus", "torch": "2"})
    step.add("step of 1, compiled", "ms", [2.0, 2.5, 3.0])
    step.noise = Noise(True, 0.3, ["rattles"])
    text = budget_table.table([step])
    assert "| frame step, compiled | 2.50 | ? | 3.00 | 3.00 | 3 |" in text
    assert "noisy during: step" in text
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- bench:budget -->\nold\n<!-- /bench:budget -->\nafter\n")
    budget_table.write(page, [step])
    budget_table.write(page, [step])
    assert page.read_text().startswith(
        "before\n<!-- bench:budget -->\nnano voice; 2 cores of abacus"
    )
    assert page.read_text().endswith("| 3 |\n<!-- /bench:budget -->\nafter\n")
    assert "old" not in page.read_text()
    page.write_text("no marks")
    with pytest.raises(BenchError, match="bench:budget"):
        budget_table.write(page, [step])
    with pytest.raises(BenchError, match="none of these runs"):
        budget_table.table([Result("peer")])
