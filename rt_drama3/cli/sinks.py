"""Commands about outputs (devices, mic, repair) and what ``speak --sink`` plays into.

Heavy imports wait until a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rt_drama3.errors import RequestError, SinkError

if TYPE_CHECKING:
    from rt_drama3.engine.speech import Speech
    from rt_drama3.scenes.best_of import Chosen
    from rt_drama3.sinks import Sink
    from rt_drama3.sinks.portaudio import AudioDevice
    from rt_drama3.sinks.virtual_mic import VirtualMic

SinkOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--sink",
        help="Play into speaker[:DEVICE], mic[:NAME], - or a file, while it is made; repeatable.",
    ),
]

mic_app = typer.Typer(
    help="The virtual microphone that other programs record from.", no_args_is_help=True
)
_console = Console(stderr=True)


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command()(devices)
    app.command()(repair)
    app.add_typer(mic_app, name="mic")


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Lists outputs, inputs and virtual microphones, with rates and reported latency."""
    found, mics, notes = _look()
    if as_json:
        facts = {
            "devices": [dataclasses.asdict(device) for device in found],
            "microphones": [dataclasses.asdict(mic) for mic in mics],
            "notes": notes,
        }
        typer.echo(json.dumps(facts))
        return
    out = Console()
    if found:
        out.print(_device_table(found))
    for mic in mics:
        state = "kept" if mic.kept else "in use" if mic.alive else "left behind"
        out.print(f"virtual microphone {mic.name!r}: {mic.rate} Hz, {state}", highlight=False)
    for note in notes:
        out.print(f"[yellow]{escape(note)}[/yellow]", highlight=False, soft_wrap=True)


def _look() -> tuple[list[AudioDevice], list[VirtualMic], list[str]]:
    """Returns PortAudio's devices, our microphones, and why there are none of either."""
    from rt_drama3.sinks import portaudio, virtual_mic

    found: list[AudioDevice] = []
    mics: list[VirtualMic] = []
    notes: list[str] = []
    try:
        audio = portaudio.start()
        try:
            found = portaudio.devices(audio)
        finally:
            portaudio.end(audio)
        if not any(device.outputs for device in found):
            notes.append(portaudio.nothing_plays())
    except SinkError as error:
        notes.append(str(error))
    if sys.platform == "linux":
        try:
            mics = virtual_mic.existing()
        except SinkError as error:
            notes.append(str(error))
    return found, mics, notes


def _device_table(found: Sequence[AudioDevice]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("#", "device", "by", "plays", "records", "rate", "latency", ""):
        table.add_column(column, overflow="fold", justify="right" if column == "#" else "left")
    for device in found:
        marks = [
            *(["default output"] if device.default_output else []),
            *(["default input"] if device.default_input else []),
            *(["virtual"] if device.virtual else []),
        ]
        latency = device.input_latency_ms
        if device.output_latency_ms is not None:
            latency = device.output_latency_ms
        table.add_row(
            str(device.index),
            escape(device.name),
            escape(device.host),
            str(device.outputs or "-"),
            str(device.inputs or "-"),
            f"{device.rate} Hz",
            "-" if latency is None else f"{latency:.0f} ms",
            ", ".join(marks),
        )
    return table


@mic_app.command("create")
def mic_create(
    name: Annotated[
        str | None, typer.Argument(help='What other programs see; "rt-drama3" by default.')
    ] = None,
    rate: Annotated[int, typer.Option(help="In Hz.")] = 48_000,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it there and return at once.")
    ] = False,
) -> None:
    """Makes the virtual microphone, and removes it again on Ctrl-C unless it is kept.

    One that is there already stays whose it is: then this says so and returns.
    """
    from rt_drama3.sinks import virtual_mic

    _need_linux()
    stopped = threading.Event()
    for number in () if keep else (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())  # first, so that nothing is left behind
    mic = virtual_mic.create(name or virtual_mic.NAME, rate, keep=keep, own=True)
    typer.echo(f"microphone {mic.name} at {mic.rate} Hz; play into sink {mic.sink}")
    if keep:
        return
    if not mic.ours:
        _console.print(_whose(mic), highlight=False, soft_wrap=True)
        return
    _console.print("it exists until Ctrl-C", highlight=False)
    stopped.wait()
    with contextlib.suppress(SinkError):  # a server that is gone has taken it along
        virtual_mic.release(mic)


def _whose(mic: VirtualMic) -> str:
    if mic.kept:
        return "it was there, kept: it exists until rt-drama3 mic remove"
    if mic.alive:
        return f"it was there: it belongs to process {mic.process}, and goes when that ends"
    return f"it was there: its process {mic.process} has ended, and it goes with who plays into it"


@mic_app.command("list")
def mic_list(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Lists the virtual microphones that rt-drama3 has made."""
    from rt_drama3.sinks import virtual_mic

    _need_linux()
    mics = virtual_mic.existing()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(mic) for mic in mics]))
        return
    for mic in mics:
        by = "kept" if mic.kept else f"of process {mic.process}"
        gone = "" if mic.alive else ", which has ended"
        typer.echo(f"{mic.name}\t{mic.rate} Hz\t{by}{gone}")


@mic_app.command("remove")
def mic_remove(
    name: Annotated[str | None, typer.Argument(help="Which; all of them by default.")] = None,
) -> None:
    """Removes virtual microphones, also kept ones and those of processes that have ended.

    One that is named has to be there.
    """
    from rt_drama3.sinks import virtual_mic

    _need_linux()
    removed = virtual_mic.remove(name)
    for mic in removed:
        typer.echo(f"removed {mic.name}")
    if removed:
        return
    if name is None:
        typer.echo("there is no virtual microphone of rt-drama3's")
        return
    others = [repr(mic.name) for mic in virtual_mic.existing()]
    raise SinkError(
        f"There is no virtual microphone {name!r} of rt-drama3's to remove; "
        + (f"there is {', '.join(others)}." if others else "there is none at all.")
    )


def repair(
    files: Annotated[list[Path], typer.Argument(help="WAV files.")],
) -> None:
    """Puts the true sizes into WAV files whose writer was killed; samples are never changed.

    A file that cannot be repaired does not keep the others from it; the exit code is then 1.
    """
    from rt_drama3.sinks import repair_wav

    failed = False
    for file in files:
        try:
            result = repair_wav(file)
        except SinkError as error:
            failed = True
            _console.print(
                f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True
            )
            continue
        what = "repaired" if result.changed else "was in order"
        typer.echo(f"{file}: {what}, {result.seconds:.2f} s")
    if failed:
        raise typer.Exit(1)


def _need_linux() -> None:
    if sys.platform != "linux":
        raise SinkError(
            "Here the virtual microphone is a driver: install BlackHole (macOS, "
            "https://existential.audio/blackhole/) or VB-CABLE (Windows, "
            "https://vb-audio.com/Cable/); speak --sink mic then plays into it."
        )


@contextlib.contextmanager
def opened(specs: Sequence[str], rate: int) -> Iterator[Sink]:
    """Opens what ``--sink`` names, for one mono stream.

    At a clean end everything is played out. A stop (Ctrl-C, an error) is a short fade.

    Args:
        specs: see ``sinks.make_sink``.
        rate: of the samples that will be written, in Hz.

    Raises:
        SinkError: nothing can be opened, or outputs failed; others were played to their end.
        PipeClosed: those that failed are pipes whose readers have gone away.
        RequestError: a spec cannot be understood.
    """
    from rt_drama3.sinks import PcmFormat, Tee, make_sink
    from rt_drama3.sinks.tee import together

    made = [make_sink(spec) for spec in specs]
    tee = Tee(made, lambda *_: None)  # its failures are told once, below
    sink: Sink = made[0] if len(made) == 1 else tee
    failures: list[SinkError] = []
    try:
        sink.open(PcmFormat(rate, encoding="f32le"))
        with sink:
            yield sink
    except SinkError as error:
        failures = [error]
    except BaseException:  # a stop, or the speech failed: that is told by others
        for failure in tee.errors.values():
            _console.print(escape(str(failure)), highlight=False, soft_wrap=True)
        raise
    finally:
        if to_stdout(specs):
            let_go_of_stdout()
    failures = list(tee.errors.values()) or failures
    if failures:
        raise together(failures)


def play(
    speech: Speech | Chosen, specs: Sequence[str], rate: int, update: Callable[[int, int], None]
) -> float | None:
    """Plays a stream as it comes; returns the milliseconds until its first audio was made.

    Raises:
        SinkError: see ``opened``.
    """
    first_audio, chunks = None, iter(speech)
    try:
        # Devices are opened while the first audio is made; a file is not touched before it is.
        devices_too = any(spec.partition(":")[0] in ("speaker", "mic") for spec in specs)
        chunk = None if devices_too else next(chunks, None)
        with opened(specs, rate) as sink:
            chunk = chunk or next(chunks, None)
            while chunk is not None:
                if first_audio is None:
                    first_audio = 1e3 * (chunk.stamps.decoded - chunk.stamps.accepted)
                sink.write(chunk.pcm)
                update(chunk.segment, speech.pieces)
                chunk = next(chunks, None)
    finally:
        speech.cancel()
    return first_audio


def places(out: Path | None, sinks: Sequence[str] | None) -> tuple[Path | None, list[str]]:
    """Decides between ``--out`` and ``--sink``: the file, or None and what to play into.

    Raises:
        RequestError: a sink cannot be understood, or two are the same, which is better known
            before a model is loaded.
        SinkError: this system has no loopback device to use as a microphone.
    """
    if not sinks:
        return out or Path("speech.wav"), []
    from rt_drama3.sinks import make_sink

    specs = list(sinks)
    if out is not None:  # a path, also with a colon in it
        specs.append(os.path.join(os.curdir, out) if ":" in str(out) else str(out))
    named: dict[str, str] = {}
    for spec in specs:
        sink = make_sink(spec)
        file = spec.partition(":")[0] not in ("speaker", "mic") and not to_stdout([spec])
        place = os.path.realpath(sink.name) if file else sink.name
        if place in named:
            both = spec if named[place] == spec else f"{named[place]} and {spec}"
            raise RequestError(f"{sink.name} is named twice as an output ({both}); name it once.")
        named[place] = spec
    return None, specs


def done(out: Path | None, specs: Sequence[str]) -> str:
    """Says what was done with the speech."""
    return f"wrote {out}" if out is not None else f"played into {', '.join(specs)}"


def to_stdout(specs: Sequence[str]) -> bool:
    """True when a sink writes to standard output, which then is no place for messages."""
    return any(spec.rpartition(":")[2] == "-" for spec in specs)


def let_go_of_stdout() -> None:
    """Keeps the interpreter from failing at its end because a reader has gone away."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere: Any = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
