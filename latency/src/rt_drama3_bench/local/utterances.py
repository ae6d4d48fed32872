"""Scenario ``engine``: utterances in this process, without a server, and the core's ratios.

Variants of the engine speak the same sentence in turns: growing decode batches against fixed ones,
decoding during the next step against after it, eager against compiled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import rt_drama3
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.events import Audio
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3_bench.local.ratios import measure as measure_ratios
from rt_drama3_bench.metrics import Arrival, Recording
from rt_drama3_bench.remote import SENTENCE, judge_continuity, judge_seams
from rt_drama3_bench.result import Result


def variants(mode: str) -> dict[str, EngineConfig]:
    """The baselines by name; the first is the product as it is."""
    product = EngineConfig(step_mode=mode, max_streams=1)
    made = {
        "growing groups, overlapped": product,
        "growing groups, synchronous": replace(product, codec_async=False),
        "fixed groups of 1": replace(product, codec_batch_min=1, codec_batch_frames=1),
        "fixed groups of 4": replace(product, codec_batch_min=4, codec_batch_frames=4),
    }
    if mode != "eager":
        made["eager step"] = replace(product, step_mode="eager")
    return made


def speak(engine: Engine, text: str, seed: int = 1) -> Recording:
    """One utterance of an engine, as its listener receives it."""
    made = Recording(due=time.monotonic())
    made.sent = made.due
    speech = engine.open(SpeechRequest(text, seed=seed))
    for chunk in speech:
        made.arrivals.append(arrival(chunk, time.monotonic()))
        made.rate = chunk.sample_rate
    made.ended = time.monotonic()
    return made


def interrupt(engine: Engine, text: str, seed: int = 1) -> float:
    """Milliseconds from a cancel after the first audio until the engine has ended the stream."""
    speech = engine.open(SpeechRequest(text, seed=seed))
    next(iter(speech))
    began = time.monotonic()
    speech.cancel()
    speech.result()
    return 1e3 * (time.monotonic() - began)


def arrival(chunk: Audio, at: float) -> Arrival:
    """A chunk as it arrived; its stamps count from the acceptance of the request."""
    stamps, zero = chunk.stamps, chunk.stamps.accepted
    return Arrival(
        at,
        len(chunk.pcm),
        chunk.pcm.nbytes,
        chunk.pcm,
        stamps={
            "prefilled": 1e3 * (stamps.prefilled - zero),
            "sampled_first": 1e3 * (stamps.sampled[0] - zero),
            "sampled": 1e3 * (stamps.sampled[1] - zero),
            "decoded": 1e3 * (stamps.decoded - zero),
            "sent": 1e3 * (at - zero),
        },
    )


def engine(
    result: Result,
    model: str = "nano",
    device: str = "auto",
    step_mode: str = "compile",
    times: int = 12,
    ratios: bool = True,
) -> None:
    """Times every variant in turns.

    Args:
        result: receives the measurements.
        model, device: see ``load``.
        step_mode: of the product; "eager" leaves the compiled side out.
        times: utterances of each variant; one before them is a warm-up.
        ratios: measure the core's ratios as well (compiled, on a CPU).
    """
    started = time.monotonic()
    first = EngineConfig(step_mode=step_mode, max_streams=1)
    with rt_drama3.load(model, device=device, engine=first) as drama:
        drama.engine.wait_until_warm()
        result.preparation["load, compile and warm up"] = time.monotonic() - started
        result.facts["step"] = drama.engine.step_mode
        spoken = _in_turns(drama, variants(step_mode), times)
        for name, records in spoken.items():
            result.record(f"{name}: ", records, keep=len(result.utterances) + 3)
        ours, *_ = spoken.values()
        result.facts["audio seconds"] = sum(u.seconds for r in spoken.values() for u in r)
        cuts = [interrupt(drama.engine, 4 * SENTENCE, seed) for seed in range(times)]
        result.add("barge in, until the engine is done with the stream", "ms", cuts)
        _judge(result, ours, spoken)
        if ratios and step_mode == "compile" and drama.model.device.type == "cpu":
            measure_ratios(result, drama)


def _in_turns(
    drama: Drama3, ways: dict[str, EngineConfig], times: int
) -> dict[str, list[Recording]]:
    spoken: dict[str, list[Recording]] = {way: [] for way in ways}
    with contextlib.ExitStack() as stack:
        engines = {
            way: stack.enter_context(Engine(drama.loaded, config)) for way, config in ways.items()
        }
        for engine in engines.values():
            engine.wait_until_warm()
        for turn in range(times + 1):
            for way, engine in engines.items():
                made = speak(engine, SENTENCE)
                made.label = way
                if turn:
                    spoken[way].append(made)
    return spoken


def _judge(result: Result, ours: Sequence[Recording], spoken: dict[str, list[Recording]]) -> None:
    judge_seams(result, ours)
    whole = [one.audio() for records in spoken.values() for one in records[:1]]
    same = all(len(a) == len(whole[0]) and np.allclose(a, whole[0], atol=1e-3) for a in whole)
    result.facts["every variant gives the same audio"] = str(same).lower()
    judge_continuity(result, ours)
