"""Whole utterances on the device, through the engine: the nano voice as a listener hears it.

The full-size model has no weights here that could speak; its frame is timed in ``gpu_speed``.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import rt_drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3_bench import remote
from rt_drama3_bench.energy import Meter
from rt_drama3_bench.estimates import summarize
from rt_drama3_bench.local import utterances
from rt_drama3_bench.local.device_run import DeviceRun
from rt_drama3_bench.result import Result

WARM_SECONDS = 120.0


def measure_engine(bench: DeviceRun, times: int = 20) -> dict[str, Any]:
    """First audio, stages, continuity, barge-in and cost of utterances; seams are checked."""
    times = 1 if bench.dry else times
    config = EngineConfig(step_mode="eager" if bench.dry else "cudagraph", max_streams=1)
    started = time.monotonic()
    with rt_drama3.load("nano", device=bench.device.type, engine=config) as drama:
        if not drama.engine.wait_until_warm(WARM_SECONDS):
            return {"error": f"not warm within {WARM_SECONDS:.0f} s", "passed": False}
        utterances.speak(drama.engine, remote.SENTENCE)
        prepared = time.monotonic() - started
        meter, result = Meter(), Result("engine")
        spoken = [utterances.speak(drama.engine, remote.SENTENCE, seed) for seed in range(times)]
        audio = sum(one.seconds for one in spoken)
        cost = meter.spent().per(audio)
        cuts = [
            utterances.interrupt(drama.engine, 4 * remote.SENTENCE, seed) for seed in range(times)
        ]
        mode = drama.engine.step_mode
    result.record("", spoken)
    result.add("barge in, until the engine is done with the stream", "ms", cuts)
    remote.judge_seams(result, spoken)
    return {
        "step": mode,
        "prepared_s": prepared,
        "cost_of_an_audio_second": cost,
        "series": {s.name: {"unit": s.unit, **asdict(summarize(s.samples))} for s in result.series},
        "verdicts": [asdict(verdict) for verdict in result.verdicts],
        "passed": result.met,
    }
