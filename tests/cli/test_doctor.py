"""The doctor: a full report on this machine, and reports of simulated problems."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import types
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from rt_drama3.aot import failures
from rt_drama3.cli import doctor
from rt_drama3.cli.doctor import PROBES
from rt_drama3.cli.doctor_report import Finding, Report, render, run_probes
from rt_drama3.cli.main import app
from rt_drama3.system import machine


def only(section: str, name: str) -> list[Finding]:
    """The findings of one probe, run as the doctor runs it."""
    return run_probes({section: {name: PROBES[section][name]}})[section]


def printed(report: Report) -> str:
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    render(report, console)
    return console.export_text()


def pretend_missing(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == missing else real(name)
    )


def test_every_probe_works_on_this_machine() -> None:
    report = run_probes(PROBES)
    assert not [one for found in report.values() for one in found if one.status == "failed"]
    names = {  # what is wrong with compiled steps is a finding of its own
        section: list(dict.fromkeys(f.name for f in found)) for section, found in report.items()
    }
    assert names["machine"] == ["rt_drama3", "python", "system", "cpu", "memory"]
    assert names["folders"] == [
        *("nano voice", "checkpoints", "cache", "temporary files", "compiled steps")
    ]
    assert names["audio"] == ["files", "speaker", "sound server"]
    assert "device" in names["plan"]


def test_json_contains_every_finding() -> None:
    printed = CliRunner().invoke(app, ["doctor", "--json"])
    data = json.loads(printed.stdout)
    assert list(data) == ["machine", "compute", "audio", "folders", "plan"]
    assert data["machine"][0].keys() == {"name", "value", "status", "advice"}
    assert [f["name"] for f in data["plan"]] == [f.name for f in run_probes(PROBES)["plan"]]


def test_rendering_shows_every_finding_and_its_advice() -> None:
    report = {
        "machine": [Finding("python", "[bold]not markup[/bold]")],
        "compute": [Finding("compiler", "none", "missing", "install one")],
        "audio": [Finding("speaker", "OSError: broken", "failed")],
        "folders": [],
        "plan": [Finding("device", "cpu", "note")],
    }
    text = printed(report)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "ok python [bold]not markup[/bold]" in lines
    assert "missing compiler none" in lines
    assert "-> install one" in lines
    assert "failed speaker OSError: broken" in lines


def test_a_failing_probe_is_a_finding_and_the_others_still_run() -> None:
    def breaks() -> Iterable[Finding]:
        yield Finding("before", "dropped with the rest of its probe")
        raise RuntimeError("no such driver")

    def works() -> Iterable[Finding]:
        yield Finding("fine", "here")

    assert run_probes({"compute": {"cuda": breaks, "other": works}})["compute"] == [
        Finding("cuda", "RuntimeError: no such driver", "failed"),
        Finding("fine", "here"),
    ]


def test_a_missing_compiler_gives_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (finding,) = only("compute", "compiler")
    assert finding.status == "missing"
    assert "apt-get install g++" in finding.advice


def test_a_cxx_that_is_not_a_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds try no other compiler, so neither does the report."""
    monkeypatch.setenv("CXX", "no-such-c++ -O2")
    (finding,) = only("compute", "compiler")
    assert finding.status == "missing"
    assert "CXX is 'no-such-c++ -O2'" in finding.value
    assert "unset it" in finding.advice


def test_a_compiler_without_a_version_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "mystery-c++")
    monkeypatch.setattr(shutil, "which", lambda name: f"/nowhere/{name}")
    (finding,) = only("compute", "compiler")
    assert (finding.value, finding.status) == ("/nowhere/mystery-c++", "ok")


def test_cuda_devices_report_capability_memory_and_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [
        types.SimpleNamespace(name="NVIDIA H200", total_memory=139 * 2**30, major=9, minor=0),
        types.SimpleNamespace(name="NVIDIA A100", total_memory=80 * 2**30, major=8, minor=0),
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    first, second = only("compute", "cuda")
    assert first.name == "cuda:0"
    assert first.value == "NVIDIA H200, 139.0 GiB, capability 9.0, with FP8 arithmetic"
    assert second.value == "NVIDIA A100, 80.0 GiB, capability 8.0, without FP8 arithmetic"

    pretend_missing(monkeypatch, "triton")
    assert only("compute", "triton")[0].status == "missing"


def test_a_driver_without_a_cuda_build_gives_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "install its CUDA build" in only("compute", "cuda")[0].advice
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "driver does not answer" in only("compute", "cuda")[0].advice


def test_a_failing_torch_import_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    report = run_probes({name: PROBES[name] for name in ("compute", "plan")})
    failed = {f.name for found in report.values() for f in found if f.status == "failed"}
    assert {"torch", "cuda", "device"} <= failed


def test_missing_pyaudio_gives_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_missing(monkeypatch, "pyaudio")
    for servers, status in ((None, "missing"), ([], "missing"), (["PulseAudio"], "ok")):
        monkeypatch.setattr(machine, "sound_servers", lambda servers=servers: servers)
        (finding,) = only("audio", "speaker")
        assert finding.status == status
        assert ("rt-drama3[speaker]" in finding.advice) == (status == "missing")


class FakePyAudio:
    """PortAudio with the given devices, printing warnings as ALSA does."""

    __version__ = "0.2.14"
    outputs: tuple[int, ...] = ()
    terminated = 0

    def __init__(self) -> None:
        os.write(2, b"ALSA lib confmisc.c: cannot find card '0'\n")

    def PyAudio(self) -> FakePyAudio:  # noqa: N802 - the real name
        return self

    def get_device_count(self) -> int:
        return len(self.outputs)

    def get_device_info_by_index(self, index: int) -> dict[str, int]:
        return {"maxOutputChannels": self.outputs[index]}

    def terminate(self) -> None:
        type(self).terminated += 1


@pytest.mark.parametrize(
    ("outputs", "status", "value"),
    [
        ((2, 0, 8), "ok", "pyaudio 0.2.14, 3 devices, 2 with outputs"),
        ((0,), "note", "pyaudio 0.2.14, 1 devices, 0 with outputs"),
        ((), "note", "pyaudio 0.2.14, 0 devices, 0 with outputs"),
    ],
)
def test_speakers_are_counted_without_noise(
    outputs: tuple[int, ...],
    status: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def load(name: str) -> FakePyAudio:
        return FakePyAudio()

    monkeypatch.setattr(FakePyAudio, "outputs", outputs)
    monkeypatch.setattr(FakePyAudio, "terminated", 0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(doctor.importlib, "import_module", load)
    (finding,) = only("audio", "speaker")
    assert (finding.status, finding.value) == (status, value)
    assert FakePyAudio.terminated == 1
    assert capfd.readouterr().err == ""


def test_an_incomplete_installation_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "voices" / "nano").mkdir(parents=True)
    (tmp_path / "voices" / "nano" / "config.json").write_text("{}")
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "cli" / "doctor.py"))
    (finding,) = only("folders", "nano voice")
    assert finding.status == "missing"
    assert finding.value.endswith("lacks model.safetensors, codec.pth, tokenizer.json")


def test_free_space_is_reported_before_the_cache_folder_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deep" / "cache"
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(folder))
    assert only("folders", "cache")[0].value.endswith("free, not created yet)")
    folder.mkdir(parents=True)
    (finding,) = only("folders", "cache")
    assert finding.value.startswith(f"{folder} (")
    assert finding.value.endswith(" GiB free)")


def test_an_unwritable_cache_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (finding,) = only("folders", "cache")
    assert finding.status == "missing"
    assert "not writable" in finding.value
    assert "RT_DRAMA3_CACHE" in finding.advice


def test_a_cache_folder_that_is_a_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path / "cache" / "deeper"))
    (finding,) = only("folders", "cache")
    assert finding.status == "missing"
    assert f"{tmp_path / 'cache'} is not a folder" in finding.value


def test_an_unusable_temporary_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert only("folders", "temporary files")[0].status == "ok"
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    (finding,) = only("folders", "temporary files")
    assert finding.status == "missing"
    assert finding.value.startswith(f"TMPDIR is {tmp_path / 'none'} (")
    assert "set TMPDIR to a writable folder" in finding.advice


def test_a_cpu_quota_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_limit", lambda: 0.6)
    assert "limited to 0.6 cores of CPU time" in only("machine", "cpu")[0].value
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plan = {f.name: f.value for f in only("plan", "device")}
    assert plan["threads"] == "1 for small models such as nano, 1 for large ones"


def test_failed_and_damaged_packages_are_reported_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RT_DRAMA3_CACHE", str(tmp_path))
    folder = tmp_path / "packages" / "key"
    folder.mkdir(parents=True)
    assert [f.value for f in only("folders", "compiled steps")] == ["0 packages (0 MB)"]
    failures.record(folder / "step-1.pt2", "Trace\nno room left")
    (folder / "step-2.pt2").write_bytes(b"PK")
    _, damaged, failed = only("folders", "compiled steps")
    assert damaged.value == f"{folder / 'step-2.pt2'} is damaged"
    assert failed.value.startswith("no room left; retried after a day (")
    assert "doctor --fix" in damaged.advice
    assert "doctor --fix" in failed.advice
    assert set(failures.clear()) == {folder / "step-1.failed", folder / "step-2.pt2"}
    assert len(only("folders", "compiled steps")) == 1


def test_the_plan_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plan = {f.name: f.value for f in only("plan", "device")}
    assert plan["device"] == "cpu"
    assert plan["dtype"] == "float32 for small models, bfloat16 for large ones"
    assert plan["threads"].startswith("1 for small models such as nano")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    plan = {f.name: f.value for f in only("plan", "device")}
    assert plan == {"device": "cuda", "dtype": "bfloat16"}


def test_versions_come_from_the_packages() -> None:
    assert importlib.metadata.version("av") in only("audio", "files")[0].value
