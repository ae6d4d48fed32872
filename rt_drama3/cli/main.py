"""The command line: speak, serve (in cli_serve), voice (in cli_voice), model, doctor.

Heavy imports wait until a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
)
from rich.table import Table

from rt_drama3 import __version__
from rt_drama3.cli import bench as cli_bench
from rt_drama3.cli import directed as cli_directed
from rt_drama3.cli import live as cli_live
from rt_drama3.cli import options as cli_options
from rt_drama3.cli import sinks as cli_sinks
from rt_drama3.cli.serve import serve
from rt_drama3.cli.voice import voice_app
from rt_drama3.errors import PipeClosed, RequestError, RtDrama3Error

if TYPE_CHECKING:
    from rt_drama3.checkpoint import CheckpointInfo
    from rt_drama3.checkpoint.memory import Budget
    from rt_drama3.engine.speech import Speech, SpeechSummary
    from rt_drama3.scenes.best_of import Chosen

app = typer.Typer(
    name="rt-drama3",
    help="Fish Audio Drama 3 as a realtime, self-hosted voice.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
model_app = typer.Typer(help="Look at checkpoints and make tiny ones.", no_args_is_help=True)
app.add_typer(model_app, name="model")
app.add_typer(voice_app, name="voice")
app.command()(serve)
cli_bench.register(app)
cli_sinks.register(app)
cli_live.register(app)

console = Console(stderr=True)  # stdout is for results only


def main() -> None:
    """Runs the command line; a known error is one sentence and an exit code, not a traceback.

    The code is 1, 141 where all that went wrong is that the reader of a pipe has gone away, and 130
    after Ctrl-C.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        app()
    except PipeClosed as error:  # as a shell reports a program that a closed pipe has ended
        console.print(escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(141)
    except RtDrama3Error as error:
        console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rt-drama3 {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@contextlib.contextmanager
def _bar(label: str, *columns: ProgressColumn) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr that is gone when done; yields ``update(done, total)``."""
    progress = Progress(
        SpinnerColumn(),
        TextColumn(escape(label)),
        BarColumn(),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = progress.add_task(label, total=None)
    with progress:
        yield lambda done, total: progress.update(task, completed=done, total=total)


@app.command()
def speak(
    text: Annotated[str, typer.Argument(help="What to say; - reads standard input.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The file to write, speech.wav unless there is a --sink: .wav, .flac, .mp3, "
            ".opus, .ogg, .aac, or .pcm and .raw (bare 16-bit samples); - writes a wav to stdout.",
            dir_okay=False,
        ),
    ] = None,
    sink: cli_sinks.SinkOption = None,
    model: cli_options.Model = "nano",
    revision: cli_options.Revision = None,
    device: cli_options.Device = "auto",
    dtype: cli_options.Dtype = None,
    threads: cli_options.Threads = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same take.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    head_temperature: Annotated[
        float | None, typer.Option(help="Of the codebook heads; default: as the main one.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus of every draw.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Most candidates of every draw.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Stop after so much speech; default: from the text.")
    ] = None,
    ref: Annotated[
        list[Path] | None,
        typer.Option(help="Reference of the voice: audio or a take; repeatable, ordered."),
    ] = None,
    ref_text: Annotated[
        list[str] | None,
        typer.Option(help="What that reference says; one per --ref, but takes bring their own."),
    ] = None,
    guidance: cli_directed.Guidance = None,
    steer: cli_directed.Steer = None,
    previous_takes_file: cli_directed.PreviousTakesFile = None,
    take_out: cli_directed.TakeOut = None,
    best_of: cli_directed.BestOf = None,
    asr_model: cli_directed.AsrModel = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print measurements as JSON on stdout, or on stderr with --out -."
        ),
    ] = False,
) -> None:
    """Speaks a text into a file, which grows while the speech is made, or plays it."""
    from rt_drama3 import drama3
    from rt_drama3.engine.speech import SpeechRequest

    # A polite stop leaves by exception, so that the file is closed with its true sizes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if text == "-":
        text = _standard_input()
    references = cli_directed.paired(ref, ref_text)
    if max_seconds is not None and not max_seconds > 0:
        raise RequestError(f"--max-seconds is {max_seconds}; it must be above 0.")
    out, specs = cli_sinks.places(out, sink)
    target = None if out is None else _target(out, [audio for _, audio in references])
    cli_directed.check_take_out(take_out)
    with _bar(f"loading {model}", DownloadColumn()) as update:
        loaded = drama3.load(
            model,
            device=device,
            dtype=dtype,
            revision=revision,
            threads=threads,
            progress=update,
        )
    with contextlib.closing(loaded):
        loaded.engine.wait_until_warm()
        limit = None
        if max_seconds is not None:
            limit = max(1, round(max_seconds * loaded.codec.config.frame_rate))
        speech = cli_directed.begin(
            loaded,
            SpeechRequest(
                text,
                references=cli_directed.read_grids(references, loaded.config),
                seed=seed,
                temperature=temperature,
                head_temperature=head_temperature,
                top_p=top_p,
                top_k=top_k,
                max_frames=limit,
                **cli_directed.settings(loaded.config, guidance, steer, previous_takes_file),
            ),
            best_of,
            asr_model,
        )
        if target is None:
            with _bar("speaking", MofNCompleteColumn()) as update:
                first_audio = cli_sinks.play(speech, specs, loaded.sample_rate, update)
            summary = speech.result()
        else:
            summary, first_audio = _write(speech, target, loaded.sample_rate)
        cli_directed.write_take_out(take_out, summary)
        seconds = summary.delivered * loaded.codec.config.frame_samples / loaded.sample_rate
        rate = _rate(target, loaded.sample_rate)
        figures = summary.durations.figures(summary.delivered, seconds)
        if as_json:
            facts = {
                "file": None if out is None else str(out),
                "sinks": specs,
                "seconds": seconds,
                "sample_rate": rate,
                "frames": summary.delivered,
                "complete": summary.complete,
                "seed": summary.seed,
                "model": model,
                "device": str(loaded.model.device),
                "dtype": str(loaded.model.dtype).removeprefix("torch."),
                "step": loaded.engine.step_mode,
                "first_audio_ms": first_audio,
                **figures,
            }
            typer.echo(json.dumps(facts), err=target is not out or cli_sinks.to_stdout(specs))
        else:
            speed = f", {1 / figures['rtf']:.1f}x real time" if figures["rtf"] else ""
            console.print(
                f"{escape(cli_sinks.done(out, specs))}: {seconds:.2f} s at {rate} Hz"
                f"{speed}, seed {summary.seed}",
                highlight=False,
                soft_wrap=True,
            )
            if not summary.segments:
                console.print("[yellow]there was nothing to speak in the text[/yellow]")
            if not summary.complete:
                console.print("[yellow]the speech was cut by its length limit[/yellow]")


def _rate(target: Path | BinaryIO | None, rate: int) -> int:
    """The rate in Hz that a file has, which may lack the model's."""
    from rt_drama3.audio.writer import format_of, rate_for

    return rate_for(format_of(target), rate) if isinstance(target, Path) else rate


def _target(out: Path, references: list[Path]) -> Path | BinaryIO:
    """Where the sound goes: a file, or standard output for "-"."""
    from rt_drama3.audio.writer import format_of

    if str(out) == "-":
        return sys.stdout.buffer
    if any(out.resolve() == audio.resolve() for audio in references):
        raise RequestError(f"--out {out} is a reference as well; choose another file.")
    if not out.parent.is_dir():
        raise RequestError(f"cannot write {out}: {out.parent} is not a folder; create it first.")
    format_of(out)  # refuses an unknown one before anything is made
    return out


def _write(
    speech: Speech | Chosen, target: Path | BinaryIO, rate: int
) -> tuple[SpeechSummary, float | None]:
    """Writes a stream as it comes; also tells the milliseconds until the first audio."""
    from rt_drama3.audio import AudioWriter, WavWriter

    first_audio, chunks = None, iter(speech)
    try:
        # The file is not touched before there is something to put into it.
        chunk = next(chunks, None)
        made = AudioWriter(target, rate) if isinstance(target, Path) else WavWriter(target, rate)
        with made as writer, _bar("speaking", MofNCompleteColumn()) as update:
            while chunk is not None:
                if first_audio is None:
                    first_audio = 1e3 * (chunk.stamps.decoded - chunk.stamps.accepted)
                writer.write(chunk.pcm)
                if not isinstance(target, Path):
                    target.flush()
                update(chunk.segment, speech.pieces)
                chunk = next(chunks, None)
    finally:
        speech.cancel()
        if not isinstance(target, Path):
            cli_sinks.let_go_of_stdout()
    return speech.result(), first_audio


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"standard input is not UTF-8 text (byte {error.start}); convert it first."
        ) from error


@model_app.command("info")
def model_info(
    path: Annotated[str, typer.Argument(help="nano, a checkpoint folder, or a hub id.")] = "nano",
    revision: cli_options.Revision = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Also: bytes per stream and frame, and the floor.")
    ] = False,
    streams: Annotated[
        int, typer.Option(min=1, help="Streams that --plan counts; a guided one is two.")
    ] = 1,
    dtype: Annotated[str, typer.Option(help="Dtype that --plan counts with.")] = "bfloat16",
    bandwidth: Annotated[
        float, typer.Option(min=0.001, help="Memory bandwidth for --plan, GB/s.")
    ] = 1000.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Tells what a checkpoint holds, and what it lacks, without loading its weights."""
    from rt_drama3 import checkpoint

    folder = checkpoint.resolve(path, revision)
    info = checkpoint.inspect(folder)
    budget = _budget(folder, streams, dtype) if plan else None
    if as_json:
        facts = dataclasses.asdict(info)
        if budget is not None:
            facts["plan"] = {
                **dataclasses.asdict(budget),
                "floor_ms": budget.floor_ms(bandwidth * 1e9),
            }
        typer.echo(json.dumps(facts, default=str))
    else:
        Console().print(_info_table(info))
        if budget is not None:
            Console().print(_plan_table(budget, bandwidth))
    if info.problems:
        raise typer.Exit(1)


def _budget(folder: Path, streams: int, dtype: str) -> Budget:
    from rt_drama3 import checkpoint
    from rt_drama3.checkpoint.memory import plan
    from rt_drama3.engine.config import read_engine_config

    config, engine = checkpoint.read_config(folder), read_engine_config()
    return plan(
        config,
        dtype=dtype,
        fp8=config.fp8_experts and dtype != "float32",
        context=engine.context,
        streams=streams,
    )


def _plan_table(budget: Budget, bandwidth: float) -> Table:
    """A budget as lines for people."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    mega = 1e6
    table.add_row("weights", f"{budget.weights / mega:,.1f} MB")
    table.add_row("per stream", f"{budget.stream / mega:,.1f} MB of state")
    table.add_row("resident", f"{budget.resident / mega:,.1f} MB with {budget.streams} streams")
    table.add_row(
        "per frame",
        f"{budget.frame / mega:,.1f} MB moved: dense {budget.dense / mega:,.1f}, "
        f"experts {budget.experts / mega:,.1f}, cache {budget.cached / mega:,.1f}, "
        f"DeltaNet state {budget.recurrent / mega:,.1f}",
    )
    table.add_row(
        "floor", f"{budget.floor_ms(bandwidth * 1e9):.3f} ms a frame at {bandwidth:g} GB/s"
    )
    return table


def _info_table(info: CheckpointInfo) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in info.rows():
        table.add_row(name, escape(value))
    for problem in info.problems:
        table.add_row("[red]problem[/red]", escape(problem))
    return table


@model_app.command("make-tiny")
def model_make_tiny(
    directory: Annotated[Path, typer.Argument(help="Where to write; new or empty.")],
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A config value, such as text_config.num_hidden_layers=8."),
    ] = None,
) -> None:
    """Writes a random checkpoint in the exact official layout, to test loaders with."""
    from rt_drama3 import checkpoint

    pairs: list[tuple[str, Any]] = []
    for setting in settings or []:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise RequestError(f"--set {setting!r} is not key=value.")
        try:
            pairs.append((key, json.loads(value)))
        except json.JSONDecodeError:
            pairs.append((key, value))
    checkpoint.make_tiny(directory, seed=seed, settings=pairs)
    console.print(f"wrote {directory}", highlight=False, soft_wrap=True)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="First remove damaged packages, and forget builds that failed."),
    ] = False,
) -> None:
    """Tells what this machine has, what will be used, and what to install."""
    from rt_drama3.aot import notes as package_notes
    from rt_drama3.cli import doctor as checks

    if fix:
        for path in package_notes.forget():
            console.print(f"removed {path}", highlight=False, markup=False, soft_wrap=True)
    report = checks.collect()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report), default=str))
    else:
        checks.render(report, Console())


if __name__ == "__main__":
    main()
