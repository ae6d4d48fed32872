"""The ratios of the core and the judged figures of ``step``, without anything compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from rt_drama3.drama3 import Drama3
from rt_drama3_bench.local import parts, ratios
from rt_drama3_bench.result import Result


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch, nano: Drama3) -> None:
    """Eager forms in place of the compiled ones, on the loaded voice, for a few frames."""
    codec = SimpleNamespace(decode_step=nano.codec.decode_step)
    for module in (parts, ratios):
        monkeypatch.setattr(module, "CompiledCodec", lambda *_: codec)
        monkeypatch.setattr(module, "prepare", lambda *_: None)
    monkeypatch.setattr(parts, "CompiledStep", lambda *_: None)  # a step without runner is eager
    monkeypatch.setattr(parts, "loaded", lambda *_: contextlib.nullcontext(nano))
    monkeypatch.setattr(ratios, "ROUNDS", 1)
    monkeypatch.setattr(ratios, "FRAMES", 4)
    monkeypatch.setattr(parts, "TURN", 2)


def names(result: Result) -> list[str]:
    return [verdict.name for verdict in result.verdicts]


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
def test_every_ratio_of_the_core_is_measured_once(nano: Drama3) -> None:
    result = Result("engine")
    ratios.measure(result, nano)
    assert names(result) == [
        "step and codec of one stream on one thread, speed over real time",
        "step and codec overlapped over the slower alone, time",
        "first PCM of a warm request beyond prefill + step + decode, ms",
        "10 s reference cold over warm, prefill cost",
    ]
    assert all(verdict.value > 0 for verdict in result.verdicts if "beyond" not in verdict.name)
    assert result.verdicts[-1].met  # restoring a voice is far cheaper than prefilling it


@pytest.mark.parametrize(("streams", "guided"), [((1, 2), True), ((1,), False)])
@pytest.mark.usefixtures("uncompiled")
def test_a_step_is_judged_by_real_time_and_eager(streams: Sequence[int], guided: bool) -> None:
    result = Result("step")
    parts.step(result, streams=streams, frames=parts.TURN)
    assert all(len(series.samples) == parts.TURN for series in result.series)
    assert (parts.GUIDED in [series.name for series in result.series]) == guided
    assert "step of 1: speed of compiled over eager" in names(result)
    assert "step of 1: share of real time" in names(result)
    assert ("step of a guided stream over a step of 1, time" in names(result)) == guided
