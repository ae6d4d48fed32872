"""Commands for audio outputs: devices, mic and repair.

Heavy imports wait until a command runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rt_drama3.cli.common import AsJson, show, show_error
from rt_drama3.errors import SinkError

if TYPE_CHECKING:
    from rt_drama3.sinks.portaudio import AudioDevice
    from rt_drama3.sinks.virtual_mic import VirtualMic

mic_app = typer.Typer(
    help="Manage the virtual microphones that other programs record from.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    app.command()(devices)
    app.command()(repair)
    app.add_typer(mic_app, name="mic")


def devices(as_json: AsJson = False) -> None:
    """List outputs, inputs and virtual microphones, with sample rates and reported latency."""
    found, mics, notes = _find_devices()
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


def _find_devices() -> tuple[list[AudioDevice], list[VirtualMic], list[str]]:
    """Returns PortAudio's devices, our virtual microphones, and reasons why any are missing."""
    from rt_drama3.sinks import portaudio, virtual_mic
    from rt_drama3.sinks.speaker import server_rate

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
            notes.append(portaudio.no_output_message())
        if any(device.name in portaudio.SERVER_PLUGINS for device in found):
            rate = server_rate()  # which the server's plugins do not report
            found = [
                dataclasses.replace(device, rate=rate or device.rate)
                if device.name in portaudio.SERVER_PLUGINS
                else device
                for device in found
            ]
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
        str | None, typer.Argument(help="Name in other programs (default: rt-drama3).")
    ] = None,
    rate: Annotated[int, typer.Option(help="Sample rate in Hz.")] = 48_000,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep it after this command, which exits immediately.")
    ] = False,
) -> None:
    """Create a virtual microphone that exists until Ctrl-C, or until removed with --keep.

    An existing one keeps its owner; the command reports it and exits.
    """
    from rt_drama3.sinks import virtual_mic

    _need_linux()
    stopped = threading.Event()
    for number in () if keep else (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())  # before creating, to clean up
    mic = virtual_mic.create(name or virtual_mic.NAME, rate, keep=keep, own=True)
    typer.echo(f"microphone {mic.name} at {mic.rate} Hz; play into sink {mic.sink}")
    if keep:
        return
    if not mic.ours:
        show(f"it already existed, {_lifetime(mic)}")
        return
    show("it exists until Ctrl-C")
    stopped.wait()
    with contextlib.suppress(SinkError):  # a sound server that has exited has removed it
        virtual_mic.release(mic)


def _lifetime(mic: VirtualMic) -> str:
    if mic.kept:
        return "and exists until rt-drama3 mic remove"
    if mic.alive:
        return f"and exists until process {mic.process}, which owns it, ends"
    return f"and exists until playback ends (process {mic.process}, which owned it, has ended)"


@mic_app.command("list")
def mic_list(as_json: AsJson = False) -> None:
    """List the virtual microphones that rt-drama3 has created."""
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
    name: Annotated[str | None, typer.Argument(help="Name (default: all of them).")] = None,
) -> None:
    """Remove virtual microphones, including kept ones and those of ended processes."""
    from rt_drama3.sinks import virtual_mic

    _need_linux()
    removed = virtual_mic.remove(name)
    for mic in removed:
        typer.echo(f"removed {mic.name}")
    if removed:
        return
    if name is None:
        typer.echo("no virtual microphones")
        return
    others = [repr(mic.name) for mic in virtual_mic.existing()]
    raise SinkError(
        f"rt-drama3 has created no virtual microphone {name!r}; "
        + (f"existing ones: {', '.join(others)}." if others else "none exist.")
    )


def repair(
    files: Annotated[list[Path], typer.Argument(help="WAV files.")],
) -> None:
    """Correct the sizes in WAV files whose writer was killed; samples are never changed.

    If a file cannot be repaired, the others still are, and the exit code is 1.
    """
    from rt_drama3.sinks import repair_wav

    failed = False
    for file in files:
        try:
            result = repair_wav(file)
        except SinkError as error:
            failed = True
            show_error(error)
            continue
        what = "repaired" if result.changed else "already correct"
        typer.echo(f"{file}: {what}, {result.seconds:.2f} s")
    if failed:
        raise typer.Exit(1)


def _need_linux() -> None:
    if sys.platform != "linux":
        raise SinkError(
            "On this system the virtual microphone is a driver: install BlackHole (macOS, "
            "https://existential.audio/blackhole/) or VB-CABLE (Windows, "
            "https://vb-audio.com/Cable/); speak --sink mic then plays into it."
        )
