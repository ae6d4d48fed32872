"""Scenario ``ci``: under two minutes on two cores; a slow machine cannot make it fail.

No absolute time is judged. Continuity has much slack, ratios are far from their targets, and
neither is judged where other processes take half of the core. Structural properties always are: one
frame in the first chunk, decode batches that double at most, the same audio for every batching, no
faults at seams.
"""

from __future__ import annotations

import itertools
import time

import numpy as np
import torch

import rt_drama3
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.engine import Engine
from rt_drama3_bench import metrics, remote
from rt_drama3_bench.calibration import Calibration, calibrate
from rt_drama3_bench.endpoint import Endpoint
from rt_drama3_bench.estimates import percentile
from rt_drama3_bench.local import resample, utterances
from rt_drama3_bench.local.parts import WINDOW, in_batches, in_one_call
from rt_drama3_bench.metrics import Recording
from rt_drama3_bench.result import Result
from rt_drama3_bench.server_process import ServerProcess

SLACK = 1_000.0  # milliseconds of underrun tolerated on a shared machine
STARVED = 0.5  # share of the core, below which speed is not judged
TURNS = 3


def ci(result: Result, model: str = "nano") -> None:
    """Engine and server, eager, a few utterances each."""
    before = calibrate()
    with rt_drama3.load(model, device="cpu", engine=EngineConfig(step_mode="eager")) as drama:
        _engine(result, drama)
        _codec(result, drama)
    _resampler(result)
    with ServerProcess(model, "eager") as served:
        result.preparation["server ready"] = served.started
        for dialect in ("native", "fish-live", "openai"):
            part = Result(dialect)
            remote.peer(part, Endpoint(served.url, dialect), TURNS, 1, 0.05)
            _take_over(result, part, dialect)
    excuse(result, before, calibrate())


def excuse(result: Result, before: Calibration, after: Calibration) -> None:
    """Marks as not judged what a busy machine cannot judge."""
    shares = [c.share for c in (before, after) if c.share is not None]
    if min(shares, default=1.0) >= STARVED:
        return
    for verdict in result.verdicts:
        if verdict.name.startswith(("continuity", "ratio")):
            verdict.unsure = f"others took {100 * (1 - min(shares)):.0f} % of the core"


def _engine(result: Result, drama: Drama3) -> None:
    spoken: dict[str, list[Recording]] = {}
    for way, config in utterances.variants("eager").items():
        started = time.monotonic()
        with Engine(drama.loaded, config) as engine:
            engine.wait_until_warm()
            result.preparation[way] = time.monotonic() - started
            count = 1 if spoken else TURNS  # of the baselines the audio alone is needed
            spoken[way] = [utterances.speak(engine, remote.SENTENCE) for _ in range(count)]
        result.record(f"{way}: ", spoken[way])
    ours, *others = spoken.values()
    frame = drama.codec.config.frame_samples
    sizes = [[a.samples // frame for a in one.arrivals] for one in ours]
    # A listener's first sound is one frame; groups at most double, and never pass the ceiling.
    firsts = max(one[0] for one in sizes)
    result.judge("frames in the first chunk", firsts, 1)
    grown = max(b / a for one in sizes for a, b in itertools.pairwise(one))
    result.judge("growth of groups", grown, 2)
    result.judge("largest group", max(map(max, sizes)), 4)
    audio = [one.audio() for one in ours[:1] + [records[0] for records in others]]
    apart = max(
        float(np.abs(a - audio[0]).max()) if len(a) == len(audio[0]) else 2.0 for a in audio
    )
    result.judge("audio of other groupings: largest difference", apart, 1e-3)
    remote.judge_seams(result, ours)
    remote.judge_continuity(result, ours, "continuity of the engine", SLACK)
    found = [metrics.measure(one) for one in ours]
    share = percentile([(m.first_pcm_ms or 0) / (m.total_ms or 1) for m in found], 0.5)
    result.judge("ratio: first audio by the whole utterance", share, 0.5)


def _codec(result: Result, drama: Drama3) -> None:
    codes = torch.from_numpy(drama.generate(remote.SENTENCE, seed=1).codes)[None]
    single: list[float] = []
    once: list[float] = []
    window: list[float] = []
    for _ in range(TURNS):
        single += in_batches(drama.codec.decode_step, codes, drama.codec.new_state(1), 1)
        once.append(in_one_call(drama, codes) / codes.shape[2])
        window.append(in_one_call(drama, codes[:, :, :WINDOW]))
    one = percentile(single, 0.5)
    whole = percentile(once, 0.5)
    again = percentile(window, 0.5)
    result.judge("ratio: codec frame by frame over one call", one / whole, 6)
    result.judge("ratio: a window again over one frame", again / one, 3, at_least=True)


def _resampler(result: Result) -> None:
    ours, soxr = resample.measure(16_000, 200)
    result.judge("resampler: held back, ms", ours.max_held_ms, 2.0)
    ratio = soxr.held_ms / max(ours.held_ms, 1e-9)
    result.judge("resampler: held back by soxr HQ over ours", ratio, 3, True)


def _take_over(result: Result, part: Result, dialect: str) -> None:
    for series in part.series:
        name = f"{dialect}: {series.name}"
        result.add(name, series.unit, series.samples, series.better, series.minor)
    for verdict in part.verdicts:
        if verdict.name.startswith("continuity"):
            verdict.limit = SLACK
            verdict.name = f"continuity over {dialect}: worst underrun, ms"
        else:
            verdict.name = f"{dialect}: {verdict.name}"
        result.verdicts.append(verdict)
    result.notes += [f"{dialect}: {note}" for note in part.notes]
