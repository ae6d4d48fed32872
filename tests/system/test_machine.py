"""Machine facts: plausible on this machine, correct on synthetic input."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from rt_drama3.system import machine

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def test_memory_and_cores_are_plausible() -> None:
    memory = machine.memory()
    assert memory.total is not None
    assert memory.total > 2**28
    assert memory.free is None or 0 < memory.free <= memory.total
    assert 1 <= machine.usable_cores() <= (os.cpu_count() or 1)


def test_cpuinfo_describes_the_first_core(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: A: B\nflags\t\t: avx2\n\nprocessor\t: 1\n")
    assert machine.cpuinfo(path) == {"processor": "0", "model name": "A: B", "flags": "avx2"}
    assert machine.cpuinfo(tmp_path / "none") == {}


def test_the_processor_is_named() -> None:
    assert machine.processor_name()
    if "model name" in machine.cpuinfo():
        assert machine.processor_name() == machine.cpuinfo()["model name"]


@linux
def test_sound_servers_are_listed_when_they_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("PULSE_SERVER", raising=False)
    assert machine.sound_servers() == []
    (tmp_path / "pulse").mkdir()
    with socket.socket(socket.AF_UNIX) as pulse, socket.socket(socket.AF_UNIX) as pipewire:
        pulse.bind(str(tmp_path / "pulse" / "native"))
        assert machine.sound_servers() == []  # the socket exists but does not listen
        pulse.listen()
        assert machine.sound_servers() == ["PulseAudio"]
        pipewire.bind(str(tmp_path / "pipewire-0"))
        pipewire.listen()
        assert machine.sound_servers() == ["PulseAudio", "PipeWire"]
    monkeypatch.setenv("PULSE_SERVER", f"unix:{tmp_path}/elsewhere")
    assert machine.sound_servers() == []


def test_silent_stderr_hides_only_output_of_its_block(
    capfd: pytest.CaptureFixture[str],
) -> None:
    os.write(2, b"before ")
    with machine.silent_stderr():
        os.write(2, b"noise")
    with pytest.raises(ValueError, match="escapes"), machine.silent_stderr():
        raise ValueError("escapes")
    os.write(2, b"after")
    assert capfd.readouterr().err == "before after"
