"""Ratios of the engine's parts, timed in turns: one thread, overlap, first PCM and warm voices.

Absolute times belong to a machine and a moment. The two sides of a ratio run alternately in one
process, so that other processes on the machine disturb both alike.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
import torch

from rt_drama3.aot.codec import CompiledCodec
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.model.state import Snapshot
from rt_drama3_bench.local.parts import BATCHES, TEXT, TimedStep, prepare
from rt_drama3_bench.result import Result

ROUNDS = 7
FRAMES = 24
PREFILL_CHUNK = 128  # rows: the engine's default on a CPU
REFERENCE_SECONDS = 10
Samples = list[float]  # milliseconds


def in_turns(*sides: Callable[[], object], rounds: int = ROUNDS) -> list[Samples]:
    """Milliseconds of each side, timed in turns after one warm-up each."""
    for side in sides:
        side()
    samples: list[Samples] = [[] for _ in sides]
    for _ in range(rounds):
        for side, kept in zip(sides, samples, strict=True):
            started = time.perf_counter()
            side()
            kept.append(1e3 * (time.perf_counter() - started))
    return samples


def measure(result: Result, drama: Drama3) -> None:
    """Adds all ratios, and the times behind them.

    Args:
        result: receives the measurements.
        drama: on a CPU; its engine has one stream.
    """
    prepare(result, drama, (1, 2))
    codec = CompiledCodec(drama.codec, BATCHES)
    codes = torch.from_numpy(drama.generate(TEXT, seed=1).codes)[None]
    step = TimedStep(drama, 1, compiled=True)
    one_thread(result, drama, step, codec, codes)
    overlap(result, drama, step, codec, codes)
    first_pcm(result, drama, step, codec, codes)
    warm_voice(result, drama, step, codes)


def one_thread(
    result: Result, drama: Drama3, step: TimedStep, codec: CompiledCodec, codes: torch.Tensor
) -> None:
    """Step and codec of one stream on one thread, against real time."""
    state = drama.codec.new_state(1)

    def both() -> None:
        step.frames(FRAMES)
        for frame in range(FRAMES):
            codec.decode_step(codes[:, :, frame : frame + 1], state)

    (times,) = in_turns(both)
    frames = [ms / FRAMES for ms in times]
    result.add("frame, compiled step and codec on one thread", "ms", frames)
    made, heard = statistics.median(frames), 1e3 / drama.codec.config.frame_rate
    name = "step and codec of one stream on one thread, speed over real time"
    detail = f"{made:.2f} ms a frame of {heard:.1f} ms"
    result.judge(name, heard / made, 3.0, True, detail)


def overlap(
    result: Result, drama: Drama3, step: TimedStep, codec: CompiledCodec, codes: torch.Tensor
) -> None:
    """Step and codec on two threads, against the slower of the two alone."""
    count, batch = 2 * FRAMES, BATCHES[-1]

    def decode() -> None:
        torch.set_num_threads(1)
        state = drama.codec.new_state(1)
        for first in range(0, count, batch):
            codec.decode_step(codes[:, :, first : first + batch], state)

    def both() -> None:
        decoding = threading.Thread(target=decode)
        decoding.start()
        step.frames(count)
        decoding.join()

    times = in_turns(lambda: step.frames(count), decode, both)
    for what, samples in zip(("step alone", "codec alone", "side by side"), times, strict=True):
        result.add(f"{count} frames, {what}", "ms", samples)
    alone, other, together = map(statistics.median, times)
    name = "step and codec overlapped over the slower alone, time"
    detail = f"step {alone:.0f} ms, codec {other:.0f} ms, both {together:.0f} ms"
    result.judge(name, together / max(alone, other), 1.15, detail=detail)


def first_pcm(
    result: Result, drama: Drama3, step: TimedStep, codec: CompiledCodec, codes: torch.Tensor
) -> None:
    """First PCM of a warm request, against its parts done by hand.

    The parts: build the prompt and prefill it behind the restored system block, one step, one
    decode of one frame.
    """
    engine, state = drama.engine, step.step.state
    decoder = drama.codec.new_state(1)
    prompt = drama.prompts.build(TEXT)
    system = prompt.system_rows

    @torch.inference_mode()
    def read_system() -> Snapshot:
        state.reset(0)
        drama.model.prefill(torch.from_numpy(prompt.rows[:system]), state, 0)
        return state.snapshot(0, system)

    snapshot = read_system()

    def engine_first() -> None:
        speech = engine.open(SpeechRequest(TEXT, seed=1))
        next(iter(speech))
        speech.cancel()
        speech.result()

    @torch.inference_mode()
    def parts() -> None:
        state.reset(0)
        state.restore(0, snapshot)
        rows = torch.from_numpy(drama.prompts.build(TEXT).rows)
        drama.model.prefill(rows[system:], state, 0, system, PREFILL_CHUNK)
        step.step.configure(0, drama.sampling, 1)
        step.step.run(1, step.step.length_for(len(rows) + 1))
        codec.decode_step(codes[:, :, :1], decoder)

    times = in_turns(engine_first, parts, rounds=3 * ROUNDS)
    result.add("first PCM of a warm request", "ms", times[0])
    result.add("prefill, one step and one decode by hand", "ms", times[1])
    whole, by_hand = map(statistics.median, times)
    name = "first PCM of a warm request beyond prefill + step + decode, ms"
    detail = f"first PCM {whole:.1f} ms, parts {by_hand:.1f} ms"
    result.judge(name, whole - by_hand, 2.0, detail=detail)


def warm_voice(result: Result, drama: Drama3, step: TimedStep, codes: torch.Tensor) -> None:
    """Prefilling a voice with a reference of ten seconds, against restoring it."""
    state = step.step.state
    frames = round(REFERENCE_SECONDS * drama.codec.config.frame_rate)
    reference = np.tile(codes[0].numpy(), 1 + frames // codes.shape[2])[:, :frames]
    prompt = drama.prompts.build(TEXT, references=[(TEXT, reference)])
    system = torch.from_numpy(prompt.rows[: prompt.system_rows])

    @torch.inference_mode()
    def cold() -> None:
        state.reset(0)
        drama.model.prefill(system, state, 0)

    cold()
    snapshot = state.snapshot(0, len(system))

    @torch.inference_mode()
    def warm() -> None:
        state.reset(0)
        state.restore(0, snapshot)

    times = in_turns(cold, warm)
    result.add("voice of 10 s, read", "ms", times[0])
    result.add("voice of 10 s, restored", "ms", times[1])
    slow, fast = map(statistics.median, times)
    detail = f"cold {slow:.1f} ms ({len(system)} rows), warm {fast:.2f} ms"
    name = "10 s reference cold over warm, prefill cost"
    result.judge(name, slow / fast, 10.0, True, detail)
