"""Scenarios ``step``, ``codec`` and ``resample``: the parts, without engine and server."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

import rt_drama3
from rt_drama3.aot.builder import PackageBuilder
from rt_drama3.aot.codec import CompiledCodec
from rt_drama3.aot.step import CompiledStep
from rt_drama3.codec import CodecState
from rt_drama3.codec_stream import Decode
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.graph_step import CapturedStep, FrameStep
from rt_drama3_bench.local import resample
from rt_drama3_bench.result import Result

TEXT = "Thank you for calling. Your order has been shipped and should arrive on Monday."
CONTEXT, MAX_FRAMES = 1024, 512
TURN = 24  # frames of one variant before the next one has its turn
GUIDED = "step of a guided stream (two rows), compiled"
BATCHES = (1, 2, 4)  # frames per call
WINDOW = 32  # frames that a stateless codec decodes again for every new one


def loaded(result: Result, model: str, device: str) -> Drama3:
    """Loads the checkpoint, its engine idle; the time is preparation."""
    started = time.monotonic()
    drama = rt_drama3.load(model, device=device, engine=EngineConfig(step_mode="eager"))
    result.preparation["load"] = time.monotonic() - started
    result.facts["model"] = model
    result.facts["device"] = str(drama.model.device)
    result.facts["dtype"] = str(drama.model.dtype).removeprefix("torch.")
    return drama


def prepare(result: Result, drama: Drama3, sizes: Sequence[int]) -> None:
    """Builds missing compiled packages; the time is preparation."""
    if drama.model.device.type == "cpu":
        started = time.monotonic()
        builder = PackageBuilder(drama.model, drama.codec, tuple(sizes), BATCHES)
        builder.start()
        builder.wait()
        result.preparation["compile"] = time.monotonic() - started


class TimedStep:
    """A step of some streams, prefilled, that is timed frame by frame.

    Args:
        drama: the checkpoint.
        streams: rows of the batch.
        compiled: run compiled, on CUDA captured as well; otherwise eager.
        guidance: of one guided stream that takes the first two rows; 0 guides none.
    """

    def __init__(self, drama: Drama3, streams: int, compiled: bool, guidance: float = 0.0) -> None:
        self.step = FrameStep(drama.model, streams, CONTEXT, MAX_FRAMES)
        self.rows = torch.from_numpy(drama.prompts.build(TEXT).rows).to(drama.model.device)
        if compiled and drama.model.device.type == "cpu":
            self.step.use(CompiledStep(self.step, (streams,)))
        elif compiled:
            self.step.use(CapturedStep(self.step, (streams,), self.step.lengths))
        with torch.inference_mode():
            for slot in range(streams):
                drama.model.prefill(self.rows, self.step.state, slot)
                if not guidance:
                    self.step.configure(slot, drama.sampling, seed=slot)
            if guidance:
                self.step.configure(0, drama.sampling, seed=0, guidance=guidance)

    @torch.inference_mode()
    def frames(self, count: int) -> list[float]:
        """Milliseconds of each frame, from the first frame of the take on, codes on the host."""
        self.step.state.position[:] = len(self.rows)
        length = self.step.length_for(len(self.rows) + count + 1)
        times: list[float] = []
        for _ in range(count):
            started = time.perf_counter()
            self.step.run(self.step.slots, length)
            self.step.output.codes.cpu()
            times.append(1e3 * (time.perf_counter() - started))
        return times


def step(
    result: Result,
    model: str = "nano",
    device: str = "auto",
    streams: Sequence[int] = (1, 2),
    frames: int = 480,
    compiled: bool = True,
) -> None:
    """Every frame's duration, all variants in turns.

    Args:
        result: receives the measurements.
        model, device: see ``load``.
        streams: batch sizes.
        frames: frames to time per variant.
        compiled: also time the compiled step; the first time, that takes minutes.
    """
    with loaded(result, model, device) as drama:
        if compiled:
            prepare(result, drama, streams)
        started = time.monotonic()
        names = ("eager", "compiled") if compiled else ("eager",)
        steps = {
            f"step of {size}, {name}": TimedStep(drama, size, name == "compiled")
            for size in streams
            for name in names
        }
        if compiled and {1, 2} <= {*streams}:
            steps[GUIDED] = TimedStep(drama, 2, compiled=True, guidance=2.0)
        for timed in steps.values():
            timed.frames(TURN)
        result.preparation["warm-up"] = time.monotonic() - started
        samples: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(max(1, frames // TURN)):
            for name, timed in steps.items():
                samples[name] += timed.frames(TURN)
        for name, times in samples.items():
            result.add(name, "ms", times)
        frame = 1e3 / drama.codec.config.frame_rate
        _step_ratios(result, {name: float(np.median(ms)) for name, ms in samples.items()}, frame)


def _step_ratios(result: Result, medians: dict[str, float], frame: float) -> None:
    """Judges the medians, ms by variant, against a frame's duration and each other."""
    for name, usual in medians.items():
        size, _, kind = name.partition(", ")
        eager = medians.get(f"{size}, eager")
        if kind == "compiled" or f"{size}, compiled" not in medians:
            detail = f"{usual:.2f} ms of a frame of {frame:.1f} ms"
            result.judge(f"{size}: share of real time", usual / frame, 1, detail=detail)
        if kind == "compiled" and eager is not None:
            result.judge(f"{size}: speed of compiled over eager", eager / usual, 2, at_least=True)
    if GUIDED in medians:
        ratio = medians[GUIDED] / medians["step of 1, compiled"]
        result.judge("step of a guided stream over a step of 1, time", ratio, 2.05)


def codec(
    result: Result,
    model: str = "nano",
    device: str = "auto",
    rounds: int = 12,
    compiled: bool = True,
) -> None:
    """Decoding 1, 2 and 4 frames per call, all in one call, and a window again for every frame.

    Args:
        result: receives the measurements.
        model, device: see ``load``.
        rounds: takes to decode; every call is a sample.
        compiled: also time the compiled codec.
    """
    with loaded(result, model, device) as drama:
        if compiled:
            prepare(result, drama, (1,))
        codes = torch.from_numpy(drama.generate(TEXT, seed=1).codes)[None].to(drama.codec.device)
        frames = codes.shape[2] - codes.shape[2] % BATCHES[-1]
        ways = {"eager": drama.codec.decode_step}
        if compiled and drama.codec.device.type == "cpu":
            ways["compiled"] = CompiledCodec(drama.codec, BATCHES).decode_step
        whole, window = codes[:, :, :frames], codes[:, :, :WINDOW]
        once = f"codec, {frames} frames in one call"
        samples: dict[str, list[float]] = {}
        for turn in range(rounds + 1):
            times = {
                f"codec, group of {batch}, {name}": in_batches(
                    decode, whole, drama.codec.new_state(1), batch
                )
                for name, decode in ways.items()
                for batch in BATCHES
            }
            times[once] = [in_one_call(drama, whole)]
            times[f"codec, window of {WINDOW}"] = [in_one_call(drama, window)]
            if turn:  # the first one is the warm-up
                for name, found in times.items():
                    samples.setdefault(name, []).extend(found)
        for name, found in samples.items():
            result.add(name, "ms", found)
        median = {name: float(np.median(found)) for name, found in samples.items()}
        single = median[f"codec, group of 1, {[*ways][-1]}"]
        again = median[f"codec, window of {WINDOW}"]
        unsure = "" if "compiled" in ways else "the limit is for the compiled codec on a CPU"
        for name, ratio, limit, at_least in (
            ("1 frame per call over one call", single * frames / median[once], 1.5, False),
            ("a window again over 1 frame per call", again / single, 8, True),
        ):
            name = f"codec: {name}, cost of a frame"
            result.judge(name, ratio, limit, at_least).unsure = unsure
    _resampler(result, [f for rate in (16_000, 24_000) for f in resample.measure(rate, 300)])


def resampling(result: Result) -> None:
    """Our streaming resampler and soxr HQ, at every output rate."""
    _resampler(result, [found for rate in resample.TO_RATES for found in resample.measure(rate)])


def _resampler(result: Result, found: Sequence[resample.Figures]) -> None:
    ours = {"low_latency": "ours", "high": "soxr HQ"}
    for one in found:
        name = f"resampling to {one.to_rate} Hz, {ours[one.quality]}"
        result.add(f"{name}: cost of a frame", "us", one.times_us)
        result.add(f"{name}: held back", "ms", one.held)
        result.facts[f"{name}: ready of the first frame, ms"] = one.first_ms
        result.facts[f"{name}: making the resampler, ms"] = one.design_ms
        if one.quality == "low_latency":
            cost, held = resample.MAX_MICROSECONDS, resample.MAX_HELD_MS
            result.judge(f"{name}: cost of a frame, p50, us", one.median_us, cost)
            result.judge(f"{name}: held back, longest, ms", one.max_held_ms, held)


def in_one_call(drama: Drama3, codes: torch.Tensor) -> float:
    """Milliseconds of decoding all frames in one call."""
    started = time.perf_counter()
    drama.codec.decode(codes).cpu()
    return 1e3 * (time.perf_counter() - started)


def in_batches(decode: Decode, codes: torch.Tensor, state: CodecState, batch: int) -> list[float]:
    """Milliseconds of each call that decodes ``batch`` frames, one after the other."""
    times: list[float] = []
    for first in range(0, codes.shape[2], batch):
        started = time.perf_counter()
        decode(codes[:, :, first : first + batch], state).cpu()
        times.append(1e3 * (time.perf_counter() - started))
    return times
