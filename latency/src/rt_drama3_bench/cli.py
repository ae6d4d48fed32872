"""``rt-drama3-bench``, also mounted as ``rt-drama3 bench``; docs/latency.md has the definitions.

Heavy imports wait until a command runs, so that ``--help`` stays fast.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from rt_drama3_bench import options
from rt_drama3_bench.errors import BenchError, require_rt_drama3

if TYPE_CHECKING:
    from rt_drama3_bench.result import Result

_console = Console(stderr=True)  # stdout is for results only


class _Commands(TyperGroup):
    """Reports a known error as one sentence and exit code 1, not as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _known_errors() as error:
            _console.print(
                f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True
            )
            raise typer.Exit(1) from None


def _known_errors() -> tuple[type[Exception], ...]:
    """Ours, and those of rt_drama3 where a command has imported it."""
    theirs = sys.modules.get("rt_drama3.errors")
    return (BenchError,) if theirs is None else (BenchError, theirs.RtDrama3Error)


bench_app = typer.Typer(
    cls=_Commands,
    help="Measure latency: this machine, this server, or another one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Runs the command line; Ctrl-C is exit code 130."""
    try:
        bench_app(prog_name="rt-drama3-bench")
    except KeyboardInterrupt:
        _console.print("stopped")
        sys.exit(130)


def _scenario(
    local: bool = False, check_by_default: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turns a function that fills a ``Result`` in into a command.

    The function's first parameter is the result; the others are the command's options, to which
    ``--json``, ``--html`` and ``--check`` are added.

    Args:
        local: the scenario runs rt_drama3 in this process.
        check_by_default: a missed limit is exit code 1 without ``--check``, unless ``--no-check``.
    """

    def register(work: Callable[..., None]) -> Callable[..., None]:
        def command(
            context: typer.Context,
            to: options.Json = None,
            html: options.Html = None,
            check: options.Check = check_by_default,
            **arguments: Any,
        ) -> None:
            from rt_drama3_bench import report, runner, tables

            for path in (to, html):
                _check_folder(path)
            if local:
                require_rt_drama3(f"bench {context.info_name}")
                importlib.import_module("torch")  # before anything is timed
            result = runner.run(str(context.info_name), arguments, work)
            tables.show(result, _out())
            if to is not None:
                to.write_text(result.as_json(), encoding="utf-8")
            if html is not None:
                html.write_text(report.page(result), encoding="utf-8")
            if check and not result.met:
                raise typer.Exit(1)

        names = {"Result": object}
        _, *own = inspect.signature(work, eval_str=True, locals=names).parameters.values()
        context, *shared, _ = inspect.signature(command, eval_str=True).parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [one.replace(kind=keyword) for one in (context, *own, *shared)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        command.__doc__ = work.__doc__
        bench_app.command(work.__name__)(command)
        return work

    return register


@_scenario(local=True)
def step(
    result: Result,
    model: options.Model = "nano",
    device: options.Device = "auto",
    streams: Annotated[list[int], typer.Option(min=1, help="Batch size; repeatable.")] = [1, 2],  # noqa: B006
    frames: Annotated[int, typer.Option(min=24, help="Frames to time per variant.")] = 480,
    eager: options.Eager = False,
) -> None:
    """Time one frame of all streams: eager against compiled."""
    from rt_drama3_bench.local import parts

    parts.step(result, model, device, streams, frames, not eager)


@_scenario(local=True)
def codec(
    result: Result,
    model: options.Model = "nano",
    device: options.Device = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="Takes to decode.")] = 12,
    eager: options.Eager = False,
) -> None:
    """Time decoding by batch size, in one call and in windows; our resampler against soxr HQ."""
    from rt_drama3_bench.local import parts

    parts.codec(result, model, device, rounds, not eager)


@_scenario(local=True)
def engine(
    result: Result,
    model: options.Model = "nano",
    device: options.Device = "auto",
    step_mode: options.Step = "compile",
    times: options.Times = 12,
    ratios: Annotated[bool, typer.Option(help="Also measure the ratios of the core.")] = True,
) -> None:
    """Time utterances without a server; compare batching, overlap, eager step and warm voices."""
    from rt_drama3_bench.local import utterances

    utterances.engine(result, model, device, step_mode, times, ratios)


@_scenario(local=True)
def server(
    result: Result,
    model: options.Model = "nano",
    step_mode: options.Step = "compile",
    streams: Annotated[int, typer.Option(min=1, help="Concurrent streams.")] = 1,
    rate: options.Rate = 16_000,
    large: Annotated[int, typer.Option(min=0, help="Background upload size, MB.")] = 0,
    most: Annotated[
        bool, typer.Option("--most", help="Find how many of --streams stay realtime.")
    ] = False,
) -> None:
    """Time what the server adds to the engine, next to a bare echo of the same bytes."""
    from rt_drama3_bench.local import served_engine

    served_engine.serve(result, model, step_mode, streams, rate, large, most)


@_scenario()
def client(
    result: Result,
    model: options.Model = "nano",
    step_mode: options.ServedStep = None,
    times: options.Times = 20,
    barge_ins: options.BargeIns = 5,
    rate: options.Rate = 16_000,
) -> None:
    """Measure as a listener; rt-drama3 serves in another process."""
    from rt_drama3_bench import remote

    remote.client(result, model, step_mode, times, barge_ins, rate)


@_scenario()
def peer(
    result: Result,
    url: Annotated[str, typer.Argument(help="A server, such as https://api.example.com.")],
    dialect: options.Dialect = "native",
    key_env: options.KeyEnv = None,
    model: options.PeerModel = None,
    voice: options.Voice = None,
    rate: options.PeerRate = 0,
    channels: options.Channels = 1,
    setting: options.Setting = None,
    times: options.Times = 20,
    barge_ins: options.BargeIns = 5,
    pause: Annotated[float, typer.Option(min=0, help="Seconds between utterances.")] = 0.3,
    timeout: options.Timeout = 60.0,
) -> None:
    """Measure any server that speaks one of four dialects, by the same metrics."""
    from rt_drama3_bench import remote
    from rt_drama3_bench.endpoint import Endpoint, extra_fields, key_of

    key, extra = key_of(dialect, key_env), extra_fields(setting or ())
    endpoint = Endpoint(url, dialect, key, model, voice, rate, extra, timeout, channels)
    remote.peer(result, endpoint, times, barge_ins, pause)


@_scenario()
def load(
    result: Result,
    url: options.Url = None,
    dialect: options.Dialect = "native",
    key_env: options.KeyEnv = None,
    voice: options.Voice = None,
    pattern: Annotated[str, typer.Option(help="steady, fixed, poisson or turns.")] = "steady",
    level: Annotated[
        list[float] | None,
        typer.Option(help="Concurrent streams, or requests per second; repeatable."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds per level.")] = 20.0,
    seed: options.Seed = 0,
    model: options.Model = "nano",
    step_mode: options.ServedStep = None,
    max_streams: Annotated[
        int, typer.Option(min=1, help="Max streams for the started server.")
    ] = 64,
    price: Annotated[float | None, typer.Option(help="Machine cost per hour.")] = None,
) -> None:
    """Raise the load until listeners hear underruns: how many streams stay realtime."""
    from rt_drama3_bench import remote
    from rt_drama3_bench.endpoint import Endpoint, key_of

    endpoint = None
    if url is not None:
        endpoint = Endpoint(url, dialect, key_of(dialect, key_env), voice=voice)
    remote.load(
        result, endpoint, pattern, level or (), seconds, seed, model, step_mode, max_streams, price
    )


@_scenario(local=True)
def sink(
    result: Result,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="null, wav, flac, mic, speaker, or what speak --sink accepts; repeatable."
        ),
    ] = None,
    model: options.Model = "nano",
    step_mode: options.Step = "auto",
    times: Annotated[int, typer.Option(min=1, help="Takes per output.")] = 3,
) -> None:
    """Play a real utterance into audio outputs: writes, buffers, underruns, stops."""
    from rt_drama3_bench.local import sink

    sink.sink(result, kind or sink.KINDS, model, step_mode, times)


@_scenario(local=True)
def resample(result: Result) -> None:
    """Compare our streaming resampler with soxr HQ: cost and delay."""
    from rt_drama3_bench.local import parts

    parts.resampling(result)


@_scenario(local=True)
def loading(
    result: Result,
    folder: Annotated[Path, typer.Argument(help="Where the checkpoint is made; 4.6 GB.")],
    expand: Annotated[
        bool, typer.Option("--expand", help="Dequantise the experts at load, as on a CPU.")
    ] = False,
) -> None:
    """Measure peak memory and time of loading a checkpoint, in another process (Linux)."""
    from rt_drama3_bench.local import loading

    loading.loading(result, folder, expand)


@_scenario(check_by_default=True)
def soak(
    result: Result,
    hours: Annotated[float, typer.Option(min=0.001, help="Duration.")] = 1.0,
    callers: Annotated[int, typer.Option(min=1, help="Concurrent conversations.")] = 2,
    model: options.Model = "nano",
    step_mode: options.ServedStep = None,
    seed: options.Seed = 0,
) -> None:
    """Run mixed work for hours; fail when memory, files, threads, buffers or latency drift."""
    from rt_drama3_bench import soak

    soak.soak(result, hours, callers, model, step_mode, seed, lambda line: _console.print(line))


@_scenario(local=True, check_by_default=True)
def ci(result: Result, model: options.Model = "nano") -> None:
    """Check structural properties in under two minutes; no absolute time can fail it."""
    from rt_drama3_bench.local import ci

    ci.ci(result, model)


@bench_app.command("compare")
def compare_runs(
    before: Annotated[Path, typer.Argument(help="JSON of one run.")],
    after: Annotated[Path, typer.Argument(help="JSON of another run.")],
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 when something got worse.")
    ] = False,
) -> None:
    """Show what got better or worse between two runs, beyond noise."""
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
    html: Annotated[Path, typer.Argument(help="The HTML file to write.")],
) -> None:
    """Write the HTML report of an earlier run."""
    from rt_drama3_bench import report
    from rt_drama3_bench.result import read

    _check_folder(html)
    html.write_text(report.page(read(run)), encoding="utf-8")


@bench_app.command("budget")
def budget(
    runs: Annotated[list[Path], typer.Argument(help="JSON of step, codec, engine, ... runs.")],
    into: Annotated[
        Path | None,
        typer.Option(help="A Markdown file; replaces the table between its two marks."),
    ] = None,
) -> None:
    """Print the README's latency table, from runs on one machine."""
    from rt_drama3_bench import budget_table
    from rt_drama3_bench.result import read

    results = [read(run) for run in runs]
    if into is None:
        typer.echo(budget_table.table(results))
    else:
        budget_table.write(into, results)


@bench_app.command()
def gpu(
    to: options.Json = None,
    layers: Annotated[int, typer.Option(min=1, help="Backbone layers at full size.")] = 40,
    batch: Annotated[list[int], typer.Option(min=1, help="Batch size; repeatable.")] = [1, 2, 4, 8],  # noqa: B006
    seconds: Annotated[float, typer.Option(help="Time limit, seconds.")] = 450.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tiny sizes, on the CPU.")] = False,
) -> None:
    """Check and measure everything on a CUDA device, in under eight minutes."""
    require_rt_drama3("bench gpu")
    from rt_drama3_bench.local import gpu

    _check_folder(to)
    raise typer.Exit(gpu.measure(to, layers, batch, seconds, dry_run))


def _check_folder(path: Path | None) -> None:
    if path is not None and not path.parent.is_dir():
        raise BenchError(f"cannot write {path}: {path.parent} is not a folder; create it first.")


def _out() -> Console:
    """Standard output; wide enough for the tables where it is not a terminal."""
    out = Console()
    return out if out.is_terminal else Console(width=140)
