"""``bench gpu`` without a GPU: every line of it runs, and its exit codes are right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rt_drama3.config import SamplingConfig
from rt_drama3.graph_step import FrameStep, frame_step
from rt_drama3_bench.local import gpu
from rt_drama3_bench.local.device_run import DeviceRun
from rt_drama3_bench.local.gpu_checks import lockstep
from rt_drama3_bench.local.random_model import random_model
from rt_drama3_bench.local.sizes import middle, official, tiny


def measure(to: Path | None = None, batches: Sequence[int] = (1, 2, 4, 8)) -> int:
    return gpu.measure(to, 40, list(batches), 450, dry_run=True)


@pytest.mark.slow
def test_dry_run(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    assert measure(path, [1, 2]) == 0
    report = json.loads(path.read_text())
    assert report["failed"] == []
    assert report["left_out"] == []
    assert {"torch", "triton", "driver"} <= set(report["environment"])
    assert report["parity"]["passed"]
    assert report["company"]["same"]
    for streams in (1, 2):
        step = report[f"step of {streams}"]
        assert step["captured_ms"] > 0
        assert step["floor_ms"] > 0
        assert step["captured_frames"]["n"] == 3
    assert report["step of 1"]["eager_ms"] > 0
    assert report["engine"]["step"] == "eager"
    assert report["engine"]["series"]["first pcm"]["n"] == 1
    assert "floor" in report["noise"]
    assert set(report["codec"]) == {"bytes", "1 frames", "2 frames", "4 frames"}
    assert report["products"]["head"].keys() == {"1", "2", "4", "8"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.measure(None, 40, [1], 450, dry_run=False) == 2
    assert "--dry-run" in capsys.readouterr().err


def sections(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    """Replaces every section by its answer, or by one that passes."""
    for name in dir(gpu):
        if name.startswith(("check_", "measure_")):
            answer = found.get(name, {"copy": 1.0})

            def section(*_: Any, answer: Any = answer) -> Any:
                if isinstance(answer, Exception):
                    raise answer
                return answer

            monkeypatch.setattr(gpu, name, section)


def test_a_failed_check_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sections(monkeypatch)
    assert measure() == 0
    sections(monkeypatch, check_parity={"passed": False})
    assert measure() == 1
    assert "failed: parity" in capsys.readouterr().out


def test_a_section_that_breaks_does_not_silence_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sections(monkeypatch, measure_codec=RuntimeError("no such kernel"))
    path = tmp_path / "gpu.json"
    assert measure(path) == 1
    report = json.loads(path.read_text())
    assert report["failed"] == ["codec"]
    assert "no such kernel" in report["codec"]["error"]
    assert report["step of 8"] == {"copy": 1.0}


def test_what_does_not_fit_the_time_is_left_out_and_named() -> None:
    bench = DeviceRun(torch.device("cuda"), seconds=10.0)
    assert bench.time_for("short", 5)
    assert not bench.time_for("long", 50)
    assert len(bench.notes) == 1
    assert bench.notes[0].startswith("long: left out")
    assert DeviceRun(torch.device("cpu"), seconds=0.0).time_for("dry", 50)


def test_lockstep_finds_a_difference_and_continues() -> None:
    model = random_model(tiny(), "cpu", torch.float32, fp8=True)
    steps = [FrameStep(model, 1, 64, 32) for _ in range(3)]
    for step in steps:
        step.model.prefill(torch.ones(4, 4, dtype=torch.int64), step.state, 0)
        step.configure(0, SamplingConfig(), seed=0)

    def disturbed(streams: int, length: int) -> None:
        frame_step(model, steps[1].tensors(0, streams, length))
        if int(steps[1].sampling.frame[0]) == 3:
            steps[1].output.codes += 1
            steps[1].state.hidden += 1

    steps[1].use(disturbed)
    assert lockstep(steps, 6) == {(0, 1): [2], (0, 2): [], (1, 2): [2]}


def test_official_sizes() -> None:
    config = official()
    assert config.backbone.layers == 40
    assert config.candidates == 4097
    for smaller in (middle(), tiny()):
        assert smaller.candidates == smaller.tower.codebook_size + 1
