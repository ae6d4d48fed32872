"""``rt-drama3 bench``: latency, measured; docs/latency.md has the definitions.

Heavy imports wait until a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from rt_drama3.cli import bench_options as options
from rt_drama3.cli import options as cli_options
from rt_drama3.errors import RequestError, RtDrama3Error

if TYPE_CHECKING:
    from rt_drama3_bench.result import Result
    from rt_drama3_bench.target import Target

bench_app = typer.Typer(
    help="Measure latency: this machine, this server, or another one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_console = Console(stderr=True)


def main() -> None:
    """The commands by themselves: ``python -m rt_drama3_bench``."""
    try:
        bench_app(prog_name="latency")
    except RtDrama3Error as error:
        _console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        _console.print("stopped")
        sys.exit(130)


@bench_app.command()
def step(
    context: typer.Context,
    model: cli_options.Model = "nano",
    device: cli_options.Device = "auto",
    streams: Annotated[list[int], typer.Option(min=1, help="Batch size; repeatable.")] = [1, 2],  # noqa: B006
    frames: Annotated[int, typer.Option(min=24, help="Frames of each side.")] = 480,
    eager: options.Eager = False,
    to: options.Json = None,
    html: options.Html = None,
    check: options.Check = False,
) -> None:
    """One frame of every stream: eager against compiled, each frame timed."""
    from rt_drama3_bench import scenario_model

    def work(result: Result) -> None:
        scenario_model.step(result, model, device, streams, frames, not eager)

    _run(context, work, to, html, check)


@bench_app.command()
def codec(
    context: typer.Context,
    model: cli_options.Model = "nano",
    device: cli_options.Device = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="Takes that are decoded.")] = 12,
    eager: options.Eager = False,
    to: options.Json = None,
    html: options.Html = None,
    check: options.Check = False,
) -> None:
    """Decoding by group size, at once and in windows; our resampler beside soxr HQ."""
    from rt_drama3_bench import scenario_model

    def work(result: Result) -> None:
        scenario_model.codec(result, model, device, rounds, not eager)

    _run(context, work, to, html, check)


@bench_app.command()
def engine(
    context: typer.Context,
    model: cli_options.Model = "nano",
    device: cli_options.Device = "auto",
    step_mode: options.Step = "compile",
    times: options.Times = 12,
    ratios: Annotated[bool, typer.Option(help="Measure the core's ratios, too.")] = True,
    to: options.Json = None,
    html: options.Html = None,
    check: options.Check = False,
) -> None:
    """Utterances without a server; groups, overlap, eager step and warm voices compared."""
    from rt_drama3_bench import scenario_engine

    def work(result: Result) -> None:
        scenario_engine.engine(result, model, device, step_mode, times, ratios)

    _run(context, work, to, html, check)


@bench_app.command()
def server(
    context: typer.Context,
    model: cli_options.Model = "nano",
    step_mode: options.Step = "compile",
    streams: Annotated[int, typer.Option(min=1, help="That speak at the same time.")] = 1,
    rate: options.Rate = 16_000,
    large: Annotated[int, typer.Option(min=0, help="Megabytes posted meanwhile.")] = 0,
    to: options.Json = None,
    html: options.Html = None,
    check: options.Check = False,
) -> None:
    """What the server adds to the engine, beside a bare echo of the same bytes."""
    from rt_drama3_bench import scenario_server

    def work(result: Result) -> None:
        scenario_server.serve(result, model, step_mode, streams, rate, large)

    _run(context, work, to, html, check)


@bench_app.command()
def client(
    context: typer.Context,
    model: cli_options.Model = "nano",
    step_mode: options.ServedStep = None,
    times: options.Times = 20,
    barge_ins: options.BargeIns = 5,
    rate: options.Rate = 16_000,
    to: options.Json = None,
    html: options.Html = None,
    check: options.Check = False,
) -> None:
    """What a listener has of our server, which runs in another process."""
    from rt_drama3_bench import scenario_wire

    def work(result: Result) -> None:
        scenario_wire.client(result, model, step_mode, times, barge_ins, rate)

    _run(context, work, to, html, check)


@bench_app.command()
def peer(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="A server, such as https://api.example.com.")],
    dialect: options.Dialect = "native",
    key_env: options.KeyEnv = None,
    model: options.PeerModel = None,
    voice: options.Voice = None,
    rate: options.Rate = 0,
    setting: options.Setting = None,
    times: options.Times = 20,
    barge_ins: options.BargeIns = 5,
    pause: Annotated[float, typer.Option(min=0, help="Seconds between utterances.")] = 0.3,
    to: options.Json = None,
    html: options.Html = None,
    check: options.Check = False,
) -> None:
    """Any server that speaks one of four dialects, by the same metrics."""
    from rt_drama3_bench import scenario_wire

    target = _target(url, dialect, key_env, model, voice, rate, setting)

    def work(result: Result) -> None:
        scenario_wire.peer(result, target, times, barge_ins, pause)

    _run(context, work, to, html, check)


@bench_app.command()
def load(
    context: typer.Context,
    url: options.Url = None,
    dialect: options.Dialect = "native",
    key_env: options.KeyEnv = None,
    voice: options.Voice = None,
    pattern: Annotated[str, typer.Option(help="steady, fixed, poisson or turns.")] = "steady",
    level: Annotated[
        list[float] | None, typer.Option(help="Streams or requests a second; repeatable.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Of one level.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of the schedule.")] = 0,
    model: cli_options.Model = "nano",
    step_mode: options.ServedStep = None,
    max_streams: Annotated[int, typer.Option(min=1, help="Of the server that is started.")] = 64,
    price: Annotated[float | None, typer.Option(help="Of the machine for an hour.")] = None,
    to: options.Json = None,
    html: options.Html = None,
    check: options.Check = False,
) -> None:
    """More and more streams until listeners hear gaps: how many stay realtime."""
    from rt_drama3_bench import scenario_wire

    target = None
    if url is not None:
        target = _target(url, dialect, key_env, None, voice, 0, None)

    def work(result: Result) -> None:
        scenario_wire.load(
            result,
            target,
            pattern,
            level or (),
            seconds,
            seed,
            model,
            step_mode,
            max_streams,
            price,
        )

    _run(context, work, to, html, check)


@bench_app.command()
def sink(
    context: typer.Context,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="null, wav, flac, mic, speaker, or as of speak --sink; repeatable."),
    ] = None,
    model: cli_options.Model = "nano",
    step_mode: options.Step = "auto",
    times: Annotated[int, typer.Option(min=1, help="Takes in each output.")] = 3,
    to: options.Json = None,
    html: options.Html = None,
    check: options.Check = False,
) -> None:
    """Outputs at the pace of a real utterance: writes, buffers, underruns, stops."""
    from rt_drama3_bench import scenario_sink

    def work(result: Result) -> None:
        scenario_sink.sink(result, kind or scenario_sink.KINDS, model, step_mode, times)

    _run(context, work, to, html, check)


@bench_app.command()
def resample(
    context: typer.Context,
    to: options.Json = None,
    html: options.Html = None,
    check: options.Check = False,
) -> None:
    """Our streaming resampler beside soxr HQ: cost, and what is held back."""
    from rt_drama3_bench import scenario_model

    _run(context, scenario_model.resampling, to, html, check)


@bench_app.command()
def soak(
    context: typer.Context,
    hours: Annotated[float, typer.Option(min=0.001, help="Of work.")] = 1.0,
    callers: Annotated[int, typer.Option(min=1, help="Conversations at the same time.")] = 2,
    model: cli_options.Model = "nano",
    step_mode: options.ServedStep = None,
    seed: Annotated[int, typer.Option(help="Of the schedule.")] = 0,
    to: options.Json = None,
    html: options.Html = None,
) -> None:
    """Hours of mixed work; fails when memory, files, threads, lead or first audio drift."""
    from rt_drama3_bench import scenario_soak

    def work(result: Result) -> None:
        scenario_soak.soak(
            result, hours, callers, model, step_mode, seed, lambda line: _console.print(line)
        )

    _run(context, work, to, html, check=True)


@bench_app.command()
def ci(
    context: typer.Context,
    model: cli_options.Model = "nano",
    to: options.Json = None,
    html: options.Html = None,
) -> None:
    """Under two minutes; fails on structural properties alone, never on absolute time."""
    from rt_drama3_bench import scenario_ci

    def work(result: Result) -> None:
        scenario_ci.ci(result, model)

    _run(context, work, to, html, check=True)


@bench_app.command("compare")
def compare_runs(
    before: Annotated[Path, typer.Argument(help="JSON of a run.")],
    after: Annotated[Path, typer.Argument(help="JSON of another.")],
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 1 when something got worse.")
    ] = False,
) -> None:
    """What got better or worse between two runs, beyond noise."""
    from rt_drama3_bench import compare
    from rt_drama3_bench.result import read

    one, two = read(before), read(after)
    changes = compare.compare(one, two)
    compare.show(one, two, changes, _out())
    if check and any(change.word == "worse" for change in changes):
        raise typer.Exit(1)


@bench_app.command("report")
def draw(
    run: Annotated[Path, typer.Argument(help="JSON of a run.")],
    html: Annotated[Path, typer.Argument(help="The page to write.")],
) -> None:
    """Draws a run that was written earlier."""
    from rt_drama3_bench import report
    from rt_drama3_bench.result import read

    _check_place(html)
    html.write_text(report.page(read(run)), encoding="utf-8")


@bench_app.command("budget")
def budget(
    runs: Annotated[list[Path], typer.Argument(help="JSON of step, codec, engine, ...")],
    into: Annotated[
        Path | None, typer.Option(help="A Markdown file with the two marks of the table.")
    ] = None,
) -> None:
    """The table of the README, from runs on one machine."""
    from rt_drama3_bench import budget_table
    from rt_drama3_bench.result import read

    results = [read(run) for run in runs]
    if into is None:
        typer.echo(budget_table.table(results))
    else:
        budget_table.write(into, results)


@bench_app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)
def gpu(context: typer.Context) -> None:
    """Everything about a CUDA device, in under eight minutes; --dry-run, --json and more."""
    from rt_drama3_bench import gpu as everything

    raise typer.Exit(everything.main(context.args, "rt-drama3 bench gpu"))


def _run(
    context: typer.Context,
    work: Callable[[Result], None],
    to: Path | None,
    html: Path | None,
    check: bool,
) -> None:
    """Runs a scenario, shows it, writes what was asked for.

    Args:
        context: of the command, whose name and arguments the result keeps.
        work: the scenario.
        to, html, check: see the options.
    """
    from rt_drama3_bench import report, runner, tables

    for path in (to, html):
        _check_place(path)
    arguments = {
        name: value for name, value in context.params.items() if name not in ("to", "html", "check")
    }
    result = runner.run(str(context.info_name), arguments, work)
    tables.show(result, _out())
    if to is not None:
        to.write_text(result.as_json(), encoding="utf-8")
    if html is not None:
        html.write_text(report.page(result), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)


def _check_place(path: Path | None) -> None:
    if path is not None and not path.parent.is_dir():
        raise RequestError(f"cannot write {path}: {path.parent} is not a folder; create it first.")


def _out() -> Console:
    """Standard output; as wide as the tables need where it is no terminal."""
    out = Console()
    return out if out.is_terminal else Console(width=140)


def _target(
    url: str,
    dialect: str,
    key_env: str | None,
    model: str | None,
    voice: str | None,
    rate: int,
    settings: list[str] | None,
) -> Target:
    from rt_drama3_bench.target import Target, key_of

    extra: dict[str, Any] = {}
    for setting in settings or []:
        name, separator, value = setting.partition("=")
        if not separator or not name:
            raise RequestError(f"--set {setting!r} is not key=value.")
        try:
            extra[name] = json.loads(value)
        except json.JSONDecodeError:
            extra[name] = value
    key = key_of(dialect, key_env)
    return Target(url, dialect, key, model, voice, rate, extra)
