"""The virtual microphone on Linux: a sink nobody hears and a source that other programs record.

Two modules of the sound server make it: a null sink, which takes what we play, and a remap source,
which is that sink's monitor under a name of its own (programs hide monitors from their lists of
microphones). The arguments of the null sink say which process made it, so that one whose process
has died is known as such, whoever looks.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rt_drama3.audio.stream_resample import check_stream_rate
from rt_drama3.errors import RequestError, SinkError
from rt_drama3.sinks import pactl

NAME = "rt-drama3"
RATE = 48_000  # what calls and browsers use
_KEPT = "kept"
_OWNER = "rt_drama3.owner"
_LOCK_SECONDS = 30.0  # for whoever makes one now; it takes a few calls of pactl
_NAME_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class VirtualMic:
    """A virtual microphone that exists.

    Attributes:
        name: of the source, which other programs choose as their microphone.
        sink: of the sink to play into.
        rate: of both, in Hz, mono.
        owner: "kept", or the process that made it, as "number" or "number-start".
        alive: whether it belongs to a process that still runs, or is kept.
        modules: their numbers, source first, as they must be unloaded.
        complete: False when the source is missing.
    """

    name: str
    sink: str
    rate: int
    owner: str
    alive: bool
    modules: tuple[int, ...]
    complete: bool = True

    @property
    def kept(self) -> bool:
        """True when it stays until it is removed."""
        return self.owner == _KEPT

    @property
    def ours(self) -> bool:
        """True when this process made it, and is to remove it."""
        return self.owner == _this_process()

    @property
    def process(self) -> str:
        """The number of the process that it belongs to; "" when it is kept."""
        return "" if self.kept else self.owner.partition("-")[0]


def create(
    name: str = NAME, rate: int = RATE, *, keep: bool = False, own: bool = False
) -> VirtualMic:
    """Makes a microphone, or returns the one of this name, whoever made it, if it has this rate.

    One whose process has died is used as it is if it fits, and replaced otherwise. Processes that
    create at once take turns, as far as they share a runtime folder.

    Args:
        name: of the source; letters, digits, dots, dashes and underscores.
        rate: in Hz.
        keep: leave it to the server until ``remove`` is called.
        own: replace one whose process has died and that nobody plays into, so that it is this
            process's; for those who hold one without playing.

    Raises:
        RequestError: the name or rate cannot be used.
        SinkError: no server, one of this name is in use at another rate, or one that should be
            kept belongs to a process or is played into.
    """
    if not _NAME_RULE.fullmatch(name):
        raise RequestError(
            f"A microphone cannot be called {name!r}; use up to 64 letters, digits, . _ and -."
        )
    check_stream_rate(rate, "rate of the microphone")
    with _alone():
        for mic in existing():
            if mic.name != name:
                continue
            in_use = mic.alive or in_play(mic)
            if in_use and mic.rate != rate:
                raise SinkError(
                    f"Microphone {name!r} exists at {mic.rate} Hz and is in use; remove it first "
                    f"(rt-drama3 mic remove {name}), or ask for {mic.rate} Hz."
                )
            if in_use and mic.complete and keep and not mic.kept:
                raise SinkError(
                    f"Microphone {name!r} cannot be kept: {_belongs(mic)}; stop that first, or "
                    "keep one of another name."
                )
            fits = mic.complete and mic.rate == rate and (not keep or mic.kept)
            if fits and (in_use or not own):
                return mic
            _unload(mic)
        if any(source.name == name for source in pactl.sources()):
            raise SinkError(f"The sound server has another source called {name!r}; choose a name.")
        return _load(name, rate, _KEPT if keep else _this_process())


def in_play(mic: VirtualMic) -> bool:
    """True while a program plays into it.

    Raises:
        SinkError: no server.
    """
    return any(pactl.players_of(sink.index) for sink in pactl.sinks() if sink.name == mic.sink)


def _belongs(mic: VirtualMic) -> str:
    if mic.alive:
        return f"it belongs to process {mic.process}, and goes when that ends"
    return f"its process {mic.process} has ended, but another one plays into it"


def existing() -> list[VirtualMic]:
    """Returns the microphones that rt-drama3 has made, also in other processes.

    Raises:
        SinkError: no server, or no pactl.
    """
    modules = pactl.modules()
    found = []
    for module in modules:
        owner = re.search(re.escape(_OWNER) + r"=([\w-]+)", module.arguments)
        if module.kind != "module-null-sink" or owner is None:
            continue
        sink = _argument(module, "sink_name")
        sources = [
            other
            for other in modules
            if other.kind == "module-remap-source" and _argument(other, "master") == _monitor(sink)
        ]
        found.append(
            VirtualMic(
                name=_argument(sources[0], "source_name") if sources else _name_of(sink),
                sink=sink,
                rate=int(_argument(module, "rate") or 0),
                owner=owner[1],
                alive=owner[1] == _KEPT or _runs(owner[1]),
                modules=(*(source.index for source in sources), module.index),
                complete=bool(sources),
            )
        )
    return found


def remove(name: str | None = None) -> list[VirtualMic]:
    """Removes a microphone, or all that rt-drama3 has made, and returns what was removed.

    Raises:
        SinkError: no server, or it refuses.
    """
    chosen = [mic for mic in existing() if name is None or mic.name == name]
    for mic in chosen:
        _unload(mic)
    return chosen


def release(mic: VirtualMic) -> None:
    """Removes a microphone that nobody has kept and nobody else plays into; for its owner's exit.

    Raises:
        SinkError: the server refuses; one that is gone has nothing left to remove.
    """
    for other in existing():
        if other.modules == mic.modules and (other.owner == mic.owner or other.ours):
            ours = other.ours or not _runs(other.owner)
            if not other.kept and ours and not in_play(other):
                _unload(other)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Makes processes and threads of one user take turns; where no lock can be had they do not.

    Raises:
        SinkError: the one whose turn it is does not end.
    """
    import fcntl  # which Windows lacks, where nothing here is called

    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    place = os.path.join(folder, f"rt-drama3-mic-{os.getuid()}.lock")
    try:
        lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:  # such as a runtime folder that nobody made
        yield
        return
    try:
        limit = time.monotonic() + _LOCK_SECONDS
        # In a folder for everybody the file may be somebody else's, who could hold us up.
        while os.fstat(lock).st_uid == os.getuid():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > limit:
                    raise SinkError(
                        f"Another rt-drama3 has been making a microphone for {_LOCK_SECONDS:g} s "
                        f"({place}); stop it, then try again."
                    ) from error
                time.sleep(0.02)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(lock)


def _load(name: str, rate: int, owner: str) -> VirtualMic:
    sink = f"{name}.playback"
    arguments = (
        f"sink_name={sink}",
        *(f"rate={rate}", "format=s16le", "channels=1", "channel_map=mono"),
        f"sink_properties='device.description={name}.playback {_OWNER}={owner}'",
    )
    try:
        # An idle null sink works two seconds ahead, and the first sound would wait for that long;
        # one that does not rewind keeps to 50 ms.
        null_sink = pactl.load_module("module-null-sink", *arguments, "norewinds=1")
    except SinkError:  # PulseAudio before 14 knows no such argument
        null_sink = pactl.load_module("module-null-sink", *arguments)
    try:
        source = pactl.load_module(
            "module-remap-source",
            f"master={_monitor(sink)}",
            f"source_name={name}",
            *("channels=1", "channel_map=mono", "master_channel_map=mono", "remix=no"),
            f"source_properties='device.description={name}'",
        )
    except SinkError:
        pactl.unload_module(null_sink)
        raise
    return VirtualMic(name, sink, rate, owner, True, (source, null_sink))


def _unload(mic: VirtualMic) -> None:
    for index in mic.modules:
        pactl.unload_module(index)


def _monitor(sink: str) -> str:
    return f"{sink}.monitor"


def _name_of(sink: str) -> str:
    return sink.removesuffix(".playback")


def _argument(module: pactl.Module, key: str) -> str:
    found = re.search(rf"(?:^|\s){key}=(\S+)", module.arguments)
    return found[1] if found else ""


def _this_process() -> str:
    return _process(os.getpid())


def _process(pid: int) -> str:
    """Names a process by its number and, as numbers come back, the time it started."""
    start = _start_time(pid)
    return str(pid) if start is None else f"{pid}-{start}"


def _start_time(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]  # field 22 of proc(5); the name may hold spaces


def _runs(owner: str) -> bool:
    pid = int(owner.partition("-")[0]) if owner.partition("-")[0].isdecimal() else 0
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to another user, and runs
    return _process(pid) == owner
