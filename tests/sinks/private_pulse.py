"""A private PulseAudio daemon for one test, and a recorder of a source."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

RENDER_QUANTUM = 128  # frames that a browser's audio graph renders at a time
SECONDS = 60.0  # timeout of every wait; none takes a tenth of it on an idle machine
needs_pulse = pytest.mark.skipif(
    not (shutil.which("pulseaudio") and shutil.which("pactl") and shutil.which("parec")),
    reason="needs PulseAudio (Debian: apt-get install pulseaudio pulseaudio-utils)",
)


def wait_until(ready: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < limit, f"timed out waiting for {what}"
        time.sleep(0.01)


class Daemon:
    """PulseAudio with its own socket and one null sink, the default output.

    Args:
        folder: for the socket.
        rate: of the sink.
        rewinds: whether the sink renders ahead and rewinds, as sound cards do.
    """

    def __init__(self, folder: Path, rate: int = 44_100, rewinds: bool = False) -> None:
        self.folder, self.rate, self.rewinds = folder, rate, rewinds
        self.socket = folder / "native"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        modules = (
            f"module-native-protocol-unix auth-anonymous=1 socket={self.socket}",
            f"module-null-sink sink_name=card rate={self.rate} format=s16le channels=1 "
            f"channel_map=mono norewinds={int(not self.rewinds)}",
        )
        loads = [part for module in modules for part in ("-L", module)]
        self.process = subprocess.Popen(
            [
                *("pulseaudio", "-n", "--daemonize=no", "--exit-idle-time=-1"),
                *("--use-pid-file=no", "--log-target=null", *loads),
            ],
            env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder), "HOME": str(self.folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self.answers, "the daemon")

    def answers(self) -> bool:
        return pactl("info", check=False).returncode == 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def pactl(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["pactl", *command], capture_output=True, text=True, check=check, timeout=SECONDS
    )


@contextlib.contextmanager
def daemon(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Iterator[Daemon]:
    """Starts a daemon that all libraries in this process and its children use.

    Keywords are those of ``Daemon``.
    """
    with tempfile.TemporaryDirectory(
        prefix="rt-pulse-"
    ) as folder:  # socket paths are limited in length
        server = Daemon(Path(folder), **more)
        monkeypatch.setenv("PULSE_SERVER", f"unix:{server.socket}")
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        try:
            server.start()
            yield server
        finally:
            server.kill()


class Recorder:
    """Records a source in 16-bit mono, starting with its first sample."""

    def __init__(self, source: str, rate: int, latency_ms: int = 50) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._process = subprocess.Popen(
            [
                *("parec", "-d", source, "--format=s16le", f"--rate={rate}", "--channels=1"),
                *("--channel-map=mono", f"--latency-msec={latency_ms}", "--raw"),
            ],
            stdout=subprocess.PIPE,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        wait_until(lambda: self._size > 0, "the first recorded sample")

    def _read(self) -> None:
        assert self._process.stdout is not None
        while chunk := os.read(self._process.stdout.fileno(), 65_536):
            self._chunks.append(chunk)
            self._size += len(chunk)

    @property
    def samples(self) -> NDArray[np.int16]:
        data = b"".join(self._chunks)
        return np.frombuffer(data[: len(data) // 2 * 2], "<i2")

    def wait_for(self, more: int) -> None:
        """Waits until ``more`` further samples were recorded."""
        wanted = self._size + 2 * more
        wait_until(lambda: self._size >= wanted, "recorded samples")

    def stop(self) -> NDArray[np.int16]:
        self._process.terminate()
        self._process.wait()
        self._thread.join()
        return self.samples


def sounding(recorded: NDArray[np.int16]) -> NDArray[np.int16]:
    """Returns the samples between the first and the last that are not zero."""
    places = np.nonzero(recorded)[0]
    return recorded[places[0] : places[-1] + 1] if places.size else recorded[:0]


def without_gaps(
    recorded: NDArray[np.int16], expected: NDArray[np.int16] | None = None
) -> NDArray[np.int16]:
    """Drops silence that was inserted between samples; every other sample stays in place.

    On a busy machine the sound server or the browser is late and plays silence meanwhile, at least
    ``RENDER_QUANTUM`` samples of it, which neither reports to its client. What they were given must
    still arrive: each sample once and in order.

    Args:
        recorded: between two samples that are not silent.
        expected: likewise; silence that it has at the same place is kept. None if it has none.
    """
    places = np.flatnonzero(recorded)
    inserted = np.diff(places, prepend=-1) - 1  # silent samples before each of the others
    if expected is not None:
        own = (np.diff(np.flatnonzero(expected), prepend=-1) - 1)[: len(inserted)]
        inserted[: len(own)] -= own
    keep = np.ones(len(recorded), bool)
    for place, count in zip(places, inserted, strict=True):
        if count >= RENDER_QUANTUM:
            keep[place - count : place] = False
    return recorded[keep]
