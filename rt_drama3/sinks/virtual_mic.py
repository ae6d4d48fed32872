"""The virtual microphone on Linux: a null sink and a source that other programs record.

It consists of two modules of the sound server: a null sink, which we play into, and a remap source,
which is that sink's monitor under its own name (programs hide monitors in their lists of
microphones). The arguments of the null sink name the process that created it, so that any process
can check whether its owner has died.
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

from rt_drama3.audio.resample import check_stream_rate
from rt_drama3.errors import RequestError, SinkError
from rt_drama3.sinks import pactl

NAME = "rt-drama3"
RATE = 48_000  # used by video calls and browsers
_KEPT = "kept"
_OWNER = "rt_drama3.owner"
_LOCK_SECONDS = 30.0  # creating a microphone takes a few calls of pactl
_NAME_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class VirtualMic:
    """An existing virtual microphone.

    Attributes:
        name: name of the source, which other programs select as their microphone.
        sink: name of the sink to play into.
        rate: rate of both in Hz; both are mono.
        owner: "kept", or the process that created it, as "pid" or "pid-starttime".
        alive: whether it is kept or its process is still running.
        modules: indices of its modules, source first: the order of unloading.
        complete: False if the source is missing.
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
        """True if it stays until it is removed."""
        return self.owner == _KEPT

    @property
    def ours(self) -> bool:
        """True if this process created it, and has to remove it."""
        return self.owner == _this_process()

    @property
    def process(self) -> str:
        """The pid of the process it belongs to; "" if it is kept."""
        return "" if self.kept else self.owner.partition("-")[0]


def create(
    name: str = NAME, rate: int = RATE, *, keep: bool = False, own: bool = False
) -> VirtualMic:
    """Creates a microphone, or returns the existing one of this name if it has this rate.

    One whose process has died is reused if it matches, and replaced otherwise. Processes that
    create one concurrently take turns if they share a runtime directory.

    Args:
        name: name of the source: letters, digits, dots, dashes and underscores.
        rate: rate in Hz.
        keep: keep it until ``remove`` is called.
        own: replace one whose process has died and that no stream plays into, so that this process
            becomes the owner; for a process that only holds the microphone and does not play.

    Raises:
        RequestError: the name or rate is not valid.
        SinkError: there is no server, a microphone of this name is in use at another rate, or one
            that is to be kept belongs to a process or is played into.
    """
    if not _NAME_RULE.fullmatch(name):
        raise RequestError(
            f"Invalid microphone name {name!r}: use up to 64 letters, digits, . _ and -."
        )
    check_stream_rate(rate, "rate of the microphone")
    with _creation_lock():
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
                    f"Microphone {name!r} cannot be kept: {_owner_of(mic)}; stop that process "
                    "first, or keep one with another name."
                )
            fits = mic.complete and mic.rate == rate and (not keep or mic.kept)
            if fits and (in_use or not own):
                return mic
            _unload(mic)
        if any(source.name == name for source in pactl.sources()):
            raise SinkError(
                f"The sound server has another source named {name!r}; choose another name."
            )
        return _load(name, rate, _KEPT if keep else _this_process())


def in_play(mic: VirtualMic) -> bool:
    """True while any stream plays into it.

    Raises:
        SinkError: there is no server.
    """
    return any(pactl.players_of(sink.index) for sink in pactl.sinks() if sink.name == mic.sink)


def _owner_of(mic: VirtualMic) -> str:
    if mic.alive:
        return f"it belongs to process {mic.process}, and is removed when that exits"
    return f"its process {mic.process} has exited, but another one plays into it"


def existing() -> list[VirtualMic]:
    """Returns the microphones created by rt-drama3, including other processes.

    Raises:
        SinkError: the server or pactl is missing.
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
                alive=owner[1] == _KEPT or _is_running(owner[1]),
                modules=(*(source.index for source in sources), module.index),
                complete=bool(sources),
            )
        )
    return found


def remove(name: str | None = None) -> list[VirtualMic]:
    """Removes one microphone, or all created by rt-drama3, and returns what was removed.

    Raises:
        SinkError: there is no server, or it refuses.
    """
    chosen = [mic for mic in existing() if name is None or mic.name == name]
    for mic in chosen:
        _unload(mic)
    return chosen


def release(mic: VirtualMic) -> None:
    """Removes a microphone unless it is kept or still played into; called when its owner exits.

    Raises:
        SinkError: the server refuses. A server that has exited leaves nothing to remove.
    """
    for other in existing():
        if other.modules == mic.modules and (other.owner == mic.owner or other.ours):
            ours = other.ours or not _is_running(other.owner)
            if not other.kept and ours and not in_play(other):
                _unload(other)


@contextlib.contextmanager
def _creation_lock() -> Iterator[None]:
    """Serialises the processes and threads of one user, where a lock file is possible.

    Raises:
        SinkError: another process holds the lock for too long.
    """
    import fcntl  # not available on Windows, where this is not called

    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    path = os.path.join(folder, f"rt-drama3-mic-{os.getuid()}.lock")
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:  # for example, the runtime directory does not exist
        yield
        return
    try:
        limit = time.monotonic() + _LOCK_SECONDS
        # In a shared directory the file may belong to another user, who could block us with it.
        while os.fstat(lock).st_uid == os.getuid():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > limit:
                    raise SinkError(
                        "Another rt-drama3 process has been creating a microphone for "
                        f"{_LOCK_SECONDS:g} s ({path}); stop it, then try again."
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
        # An idle null sink renders two seconds ahead, which would delay the first samples by as
        # much; one that does not rewind keeps to 50 ms.
        null_sink = pactl.load_module("module-null-sink", *arguments, "norewinds=1")
    except SinkError:  # PulseAudio before 14 does not know this argument
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
    """Identifies a process by its pid and, since pids are reused, its start time."""
    start = _start_time(pid)
    return str(pid) if start is None else f"{pid}-{start}"


def _start_time(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]  # field 22 of proc(5); the name may hold spaces


def _is_running(owner: str) -> bool:
    pid = int(owner.partition("-")[0]) if owner.partition("-")[0].isdecimal() else 0
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is running and belongs to another user
    return _process(pid) == owner
