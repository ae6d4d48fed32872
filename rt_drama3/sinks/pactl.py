"""PulseAudio's command-line client pactl, which also controls PipeWire's PulseAudio server."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from rt_drama3.errors import SinkError

_TIMEOUT = 20.0  # seconds for one command


@dataclass(frozen=True)
class Module:
    """A loaded module: its index, its kind, and the arguments it was loaded with."""

    index: int
    kind: str
    arguments: str


@dataclass(frozen=True)
class Endpoint:
    """A sink or source of the server.

    Attributes:
        index: the server's index.
        name: its name.
        rate, channels, encoding: sample format.
        state: for example RUNNING, IDLE or SUSPENDED.
    """

    index: int
    name: str
    rate: int
    channels: int
    encoding: str
    state: str


def available() -> bool:
    """True if pactl is installed."""
    return shutil.which("pactl") is not None


def server() -> str:
    """Returns the server's name and version, e.g. "PulseAudio (on PipeWire 1.0.5) 15.0.0".

    Raises:
        SinkError: no program, no server, or no permission.
    """
    facts = dict(line.split(": ", 1) for line in _pactl("info").splitlines() if ": " in line)
    return " ".join(filter(None, [facts.get("Server Name", ""), facts.get("Server Version", "")]))


def modules() -> list[Module]:
    """Returns the loaded modules."""
    found = []
    for fields in _short("modules"):
        found.append(Module(int(fields[0]), fields[1], fields[2] if len(fields) > 2 else ""))
    return found


def load_module(kind: str, *arguments: str) -> int:
    """Loads a module and returns its index."""
    return int(_pactl("load-module", kind, *arguments).strip())


def unload_module(index: int) -> None:
    """Unloads a module; not an error if it is no longer loaded."""
    try:
        _pactl("unload-module", str(index))
    except SinkError:
        if any(module.index == index for module in modules()):
            raise


def sinks() -> list[Endpoint]:
    """Returns the sinks."""
    return [_endpoint(fields) for fields in _short("sinks")]


def sources() -> list[Endpoint]:
    """Returns the sources, including monitors of sinks."""
    return [_endpoint(fields) for fields in _short("sources")]


def players_of(sink: int) -> int:
    """Returns the number of streams that play into a sink."""
    return sum(fields[1] == str(sink) for fields in _short("sink-inputs"))


def _short(what: str) -> list[list[str]]:
    """Returns the rows of a listing; PipeWire's own modules have arguments of many lines."""
    rows = [line.split("\t") for line in _pactl("list", "short", what).splitlines()]
    return [row for row in rows if len(row) > 1 and row[0].isdecimal()]


def _endpoint(fields: list[str]) -> Endpoint:
    # index, name, module, "s16le 1ch 48000Hz", state
    encoding, channels, rate = [*fields[3].split(), "", "0ch", "0Hz"][:3]
    return Endpoint(
        index=int(fields[0]),
        name=fields[1],
        rate=int(rate.removesuffix("Hz")),
        channels=int(channels.removesuffix("ch")),
        encoding=encoding,
        state=fields[4] if len(fields) > 4 else "",
    )


def _pactl(*command: str) -> str:
    """Runs pactl and returns its output."""
    try:
        done = subprocess.run(
            ["pactl", *command],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise SinkError(
            "The virtual microphone needs pactl, which is not installed (Debian: apt-get install "
            "pulseaudio-utils)."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SinkError(
            f"The sound server did not respond to pactl for {_TIMEOUT:g} s; restart it."
        ) from error
    if done.returncode:
        raise _failed(command, done.stderr.strip())
    return done.stdout


def _failed(command: tuple[str, ...], reason: str) -> SinkError:
    disconnected = ("Connection refused", "No such file", "Connection terminated")
    if any(text in reason for text in disconnected):
        return SinkError(
            "No sound server responds: start PulseAudio (pulseaudio --start) or PipeWire with "
            "pipewire-pulse, or set PULSE_SERVER."
        )
    if "Access denied" in reason:
        return SinkError(
            "The sound server denies access (Access denied): run as the user that owns it, or set "
            "PULSE_COOKIE."
        )
    return SinkError(f"pactl {command[0]} failed: {reason or 'no reason given'}.")
