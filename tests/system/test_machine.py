"""Machine facts: plausible on this machine, correct on synthetic input."""

from __future__ import annotations

import os
import socket
import subprocess
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


def test_blocks_of_silent_stderr_may_overlap(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = machine.silent_stderr(), machine.silent_stderr()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    os.write(2, b"noise")  # the second has not ended
    second.__exit__(None, None, None)
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


@pytest.mark.skipif(os.name == "nt", reason="POSIX descriptors")
def test_silent_stderr_does_without_one() -> None:
    program = (
        "import os, sys\n"
        "from rt_drama3.system import machine\n"
        "os.close(2)\n"
        "sys.stderr = None\n"
        "with machine.silent_stderr():\n    pass\n"
        "try:\n    os.fstat(2)\nexcept OSError:\n    os._exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 7


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "60000 100000\n"}, 0.6),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000"}, 2.5),
        ("0::/a\n", {"a/cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        (
            "3:memory:/a\n2:cpu,cpuacct:/a\n",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "60000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            0.6,
        ),
        (  # a container sees its own group as the root
            "2:cpu,cpuacct:/docker/0\n",
            {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"},
            3.0,
        ),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("2:cpuset:/\n", {"cpuset/cpu.max": "1 2"}, None),
        ("", {}, None),
    ],
)
def test_cpu_quotas_of_both_versions_are_read(
    group: str, files: dict[str, str], limit: float | None, tmp_path: Path
) -> None:
    assert machine.cpu_limit(tmp_path) is None
    contents = {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    for name, content in {"proc/self/cgroup": group, **contents}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert machine.cpu_limit(tmp_path) == limit


def test_compute_cores_respect_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    assert [machine.compute_cores(limit) for limit in (0.6, 2.5, 100.0)] == [1, 2, 8]
    monkeypatch.setattr(machine, "cpu_limit", lambda: 3.0)
    assert machine.compute_cores() == 3
    monkeypatch.setattr(machine, "cpu_limit", lambda: None)
    assert machine.compute_cores() == 8
