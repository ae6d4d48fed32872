"""Scenarios on the nano voice, as small as they can be: structure, and no absolute times."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from rt_drama3.drama3 import Drama3
from rt_drama3.engine.engine import Engine
from rt_drama3.sinks import make_sink
from rt_drama3_bench import echo
from rt_drama3_bench.calibration import Calibration
from rt_drama3_bench.errors import BenchError
from rt_drama3_bench.local import ci, utterances
from rt_drama3_bench.local import sink as output
from rt_drama3_bench.metrics import Arrival, Recording, measure
from rt_drama3_bench.result import Result, Verdict
from rt_drama3_bench.server_process import ServerProcess


def test_an_utterance_of_the_engine(nano: Drama3) -> None:
    made = utterances.speak(nano.engine, "Hello there.")
    assert made.rate == nano.sample_rate
    found = measure(made)
    assert found.first_pcm_ms is not None
    assert found.total_ms is not None
    assert 0 < found.first_pcm_ms <= found.total_ms
    for arrival in made.arrivals:
        assert arrival.stamps is not None
        stages = [arrival.stamps[n] for n in ("prefilled", "sampled", "decoded", "sent")]
        assert stages == sorted(stages)
    whole = nano.generate("Hello there.", seed=1)
    assert np.allclose(made.audio(), whole.audio, atol=1e-4)


def test_variants_with_fixed_decode_batches(nano: Drama3) -> None:
    frame = nano.codec.config.frame_samples
    with Engine(nano.loaded, utterances.variants("eager")["fixed groups of 4"]) as engine:
        made = utterances.speak(engine, "Hello there.")
    assert {a.samples // frame for a in made.arrivals[:-1]} == {4}


def test_an_echo_repeats_every_message() -> None:
    began = time.monotonic()
    found = echo.measure([(5.0 + 0.01 * n, bytes([n]) * 100) for n in range(5)])
    passed = 1e3 * (time.monotonic() - began)
    assert len(found) == 5
    assert all(0 < ms < passed - 40 for ms in found)  # the last is sent 40 ms after the first


def test_sinks_are_fed_at_the_pace_of_the_utterance(tmp_path: Path) -> None:
    made = Recording(due=0.0, rate=8_000, sent=0.0)
    pcm = np.zeros(400, np.float32)
    made.arrivals = [Arrival(0.1 + 0.05 * n, 400, pcm=pcm) for n in range(3)]
    file, result = tmp_path / "x.pcm", Result("sink")
    began = time.monotonic()
    output.play(result, "null", make_sink(str(file)), made, times=2)
    assert time.monotonic() - began >= 0.2  # two takes of 0.1 s between first and last chunk
    assert file.stat().st_size == 2 * (2 * 3 * 400 + 400)  # and what is stopped
    series = {one.name: one.samples for one in result.series}
    assert len(series["null: write"]) == 6
    assert result.met


def test_outputs_that_are_not_there_are_named(
    nano: Drama3, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = utterances.speak(nano.engine, "Hello there.")
    monkeypatch.setattr(utterances, "speak", lambda *_: made)
    result = Result("sink")
    output.sink(result, ("wav", "flac", "nonsense.xyz"), step_mode="eager", times=1)
    names = [one.name for one in result.series]
    assert "wav: write" in names
    assert "flac: write" in names
    assert any("nonsense.xyz: left out" in note for note in result.notes)


def test_a_starved_machine_excuses_speed_and_nothing_else() -> None:
    result = Result("ci")
    names = ("continuity of the engine", "ratio: a over b", "frames in the first chunk")
    result.verdicts = [Verdict(name, 9, 1) for name in names]
    quiet, starved = (Calibration(1, 1, 1, 1, 1, share) for share in (0.97, 0.3))
    ci.excuse(result, quiet, quiet)
    assert [verdict.met for verdict in result.verdicts] == [False] * 3
    ci.excuse(result, quiet, starved)
    assert [verdict.met for verdict in result.verdicts] == [True, True, False]


def test_the_figures_of_a_dialect_keep_their_rank() -> None:
    result, part = Result("ci"), Result("openai")
    arrivals = [Arrival(0.1 * n, 80) for n in range(6)]
    part.record("", [Recording(0.0, 1000, ended=9.0, arrivals=arrivals)])
    ci._take_over(result, part, "openai")
    assert result.ranked[-1].name == "openai: jitter"
    assert result.ranked[-1].minor


def test_a_server_that_does_not_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="not ready within"):
        ServerProcess(str(tmp_path / "no-model"), "eager", patience=60)


@pytest.mark.slow
def test_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """``rt-drama3 bench ci``, with one utterance of each kind."""
    monkeypatch.setattr(ci, "TURNS", 1)
    result = Result("ci")
    ci.ci(result)
    missed = [verdict for verdict in result.verdicts if not verdict.met]
    assert missed == []
    assert {"native: faults", "openai: faults"} <= {
        v.name[: v.name.find("faults") + 6] for v in result.verdicts
    }
    series = {one.name for one in result.series}
    assert {"native: first audible", "fish-live: first pcm", "openai: first byte"} <= series
