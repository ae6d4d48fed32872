"""Scenario ``sink``: the same utterance at the same pace into several outputs.

The chunks of a real utterance are written at the times at which the engine delivered them; measured
are how long a write blocks, what is buffered, underruns, and how long a stop takes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import rt_drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.errors import RequestError, SinkError
from rt_drama3.sinks import PcmFormat, Sink, make_sink
from rt_drama3_bench.local import utterances
from rt_drama3_bench.metrics import Recording
from rt_drama3_bench.result import Result
from rt_drama3_bench.schedules import TEXTS

KINDS = ("null", "wav", "flac", "mic", "speaker")


def sink(
    result: Result,
    kinds: Sequence[str] = KINDS,
    model: str = "nano",
    step_mode: str = "auto",
    times: int = 3,
) -> None:
    """Plays into every requested output that this machine has.

    Args:
        result: receives the measurements.
        kinds: from ``KINDS``, or anything that ``speak --sink`` accepts.
        model, step_mode: of the engine that speaks.
        times: takes in each output.
    """
    with rt_drama3.load(model, engine=EngineConfig(step_mode=step_mode)) as drama:
        drama.engine.wait_until_warm()
        spoken = utterances.speak(drama.engine, TEXTS[2])
        result.facts["step"] = drama.engine.step_mode
    result.record("", [spoken])
    for kind in kinds:
        try:
            with _made(kind) as made:
                play(result, kind, made, spoken, times)
        except (SinkError, RequestError) as error:
            result.notes.append(f"{kind}: left out. {error}")


@contextlib.contextmanager
def _made(kind: str) -> Iterator[Sink]:
    with tempfile.TemporaryDirectory(prefix="rt-drama3-bench-") as folder:
        if kind == "null":  # the cost of the pacing itself
            yield make_sink(f"pcm:{os.devnull}")
        elif kind in ("wav", "flac"):
            yield make_sink(str(Path(folder) / f"take.{kind}"))
        else:
            yield make_sink(kind)


def play(result: Result, kind: str, made: Sink, spoken: Recording, times: int) -> None:
    """Writes an utterance into a sink at its own pace, then stops it in mid-take."""
    writes: list[float] = []
    buffered: list[float] = []
    late: list[float] = []
    began = time.monotonic()
    made.open(PcmFormat(spoken.rate, encoding="f32le"))
    result.add(f"{kind}: open", "ms", [1e3 * (time.monotonic() - began)])
    try:
        for _ in range(times):
            start = time.monotonic()
            for chunk in spoken.arrivals:
                due = start + chunk.at - spoken.arrivals[0].at
                time.sleep(max(0.0, due - time.monotonic()))
                began = time.monotonic()
                late.append(1e3 * (began - due))
                assert chunk.pcm is not None
                made.write(chunk.pcm)
                writes.append(1e3 * (time.monotonic() - began))
                buffered.append(made.stats.buffered_ms)
            began = time.monotonic()
            made.drain()
            result.facts[f"{kind}: drained after, ms"] = 1e3 * (time.monotonic() - began)
        stats = made.stats
        first = spoken.arrivals[0].pcm
        assert first is not None
        made.write(first)
        began = time.monotonic()
        made.stop()
        result.add(f"{kind}: stop", "ms", [1e3 * (time.monotonic() - began)])
    finally:
        made.close()
    result.add(f"{kind}: write", "ms", writes)
    result.add(f"{kind}: buffered behind a write", "ms", buffered, "neither")
    result.add(f"{kind}: pacing late", "ms", late, "neither")
    result.facts[f"{kind}: device rate"] = stats.device_rate
    if stats.latency_ms is not None:
        result.facts[f"{kind}: latency that the device reports, ms"] = stats.latency_ms
    result.facts[f"{kind}: collected before a take starts, ms"] = stats.prebuffer_ms
    result.judge(f"{kind}: underruns in {times} takes", stats.underruns, 0)
    result.judge(f"{kind}: losses of sound in {times} takes", stats.lost, 0)
