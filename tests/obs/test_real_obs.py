"""The real OBS under Xvfb records the microphone. Slow; only with RT_DRAMA3_TEST_OBS=1."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rt_drama3.obs import Change, ObsClient, ObsError, remove, set_up
from rt_drama3.sinks import MicSink, PcmFormat
from tests.ports import free_port
from tests.sinks.private_pulse import daemon, needs_pulse, wait_until

PASSWORD = "word of the test"
LEVEL = 0.25
METERS = 1 << 16  # EventSubscription::InputVolumeMeters
REIDENTIFY, EVENT = 3, 5

pytestmark = [
    pytest.mark.serial,
    pytest.mark.slow,
    needs_pulse,
    pytest.mark.skipif(
        not os.environ.get("RT_DRAMA3_TEST_OBS"), reason="on demand: RT_DRAMA3_TEST_OBS=1"
    ),
    pytest.mark.skipif(
        not (shutil.which("obs") and shutil.which("Xvfb")),
        reason="needs OBS and Xvfb (Debian: apt-get install obs-studio obs-plugins xvfb)",
    ),
]


@contextlib.contextmanager
def real_obs(folder: Path, port: int) -> Iterator[None]:
    """Starts OBS with its own configuration on its own screen."""
    settings = folder / "obs-studio" / "global.ini"
    settings.parent.mkdir()
    settings.write_text(
        "[General]\nFirstRun=true\nEnableAutoUpdates=false\n"
        f"[OBSWebSocket]\nServerEnabled=true\nServerPort={port}\nAuthRequired=true\n"
        f"ServerPassword={PASSWORD}\nFirstLoad=false\nAlertsEnabled=false\n"
    )
    with contextlib.ExitStack() as started:

        def start(*command: str, **more: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE if command[0] == "Xvfb" else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "HOME": str(folder), **more},
            )
            started.callback(process.wait)
            started.callback(process.kill)
            return process

        screen = start("Xvfb", "-displayfd", "1", "-screen", "0", "1280x720x24")
        assert screen.stdout is not None
        display = screen.stdout.readline().decode().strip()
        switches = ("--multi", "--disable-missing-files-check", "--disable-updater")
        more = {"DISPLAY": f":{display}", "LIBGL_ALWAYS_SOFTWARE": "1"}
        start("obs", *switches, "--minimize-to-tray", XDG_CONFIG_HOME=str(folder), **more)
        yield


def connected(port: int) -> ObsClient:
    found: list[ObsClient] = []

    def answers() -> bool:
        with contextlib.suppress(ObsError):
            found.append(ObsClient(f"ws://127.0.0.1:{port}", PASSWORD))
        return bool(found)

    wait_until(answers, "OBS")
    return found[0]


def peak(obs: ObsClient, source: str) -> float:
    """Returns the next level on OBS's meter for a source; 0 while it shows none."""
    event = obs._receive(EVENT, time.monotonic() + 30, "a meter")
    for entry in event.get("eventData", {}).get("inputs", []):
        if entry["inputName"] == source and entry["inputLevelsMul"]:
            return max(float(channel[1]) for channel in entry["inputLevelsMul"])
    return 0.0


def test_obs_records_the_microphone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    port = free_port()
    with daemon(monkeypatch), MicSink() as sink:
        sink.open(PcmFormat(48_000))
        with real_obs(tmp_path, port), connected(port) as obs:
            for what in ("added", "updated"):
                [change] = set_up(obs, ["mic"])
                assert change == Change(what, "rt-drama3 microphone", "Scene")
            obs._send(REIDENTIFY, {"eventSubscriptions": METERS})
            seconds = np.arange(10 * 48_000) / 48_000
            sink.write(bytes(2 * 4_800))
            tone = (LEVEL * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
            found: list[float] = []
            for start in range(0, len(tone), 4_800):
                sink.write(tone[start : start + 4_800])
                found.append(peak(obs, change.source))
                if found[-1] > 0.96 * LEVEL:
                    break
            assert found[-1] == pytest.approx(LEVEL, rel=0.05)
            assert [c.source for c in remove(obs)] == [change.source]
        sink.stop()
