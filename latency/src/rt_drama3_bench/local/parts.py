"""Scenarios of the parts: ``step``, ``codec`` and ``resample``, without engine and server."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

import rt_drama3
from rt_drama3.aot.builder import PackageBuilder
from rt_drama3.aot.codec import CompiledCodec
from rt_drama3.aot.step import CompiledStep
from rt_drama3.captured_step import CapturedStep
from rt_drama3.codec import CodecState
from rt_drama3.codec_stream import Decode
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.graph_step import FrameStep
from rt_drama3_bench.local import resample
from rt_drama3_bench.result import Result, Verdict

TEXT = "Thank you for calling. Your order has been shipped and should arrive on Monday."
CONTEXT, MAX_FRAMES = 1024, 512
BLOCK = 24  # frames of one side before the other has its turn
GROUPS = (1, 2, 4)
WINDOW = 32  # frames that a codec without memory decodes again for every new one


def loaded(result: Result, model: str, device: str) -> Drama3:
    """The checkpoint, its engine idle; how long that took is noted."""
    started = time.monotonic()
    drama = rt_drama3.load(model, device=device, engine=EngineConfig(step_mode="eager"))
    result.preparation["load"] = time.monotonic() - started
    result.facts["model"] = model
    result.facts["device"] = str(drama.model.device)
    result.facts["dtype"] = str(drama.model.dtype).removeprefix("torch.")
    return drama


def prepare(result: Result, drama: Drama3, sizes: Sequence[int]) -> None:
    """Builds compiled packages where they are missing; how long that took is noted."""
    if drama.model.device.type == "cpu":
        started = time.monotonic()
        builder = PackageBuilder(drama.model, drama.codec, tuple(sizes), GROUPS)
        builder.start()
        builder.wait()
        result.preparation["compile"] = time.monotonic() - started


class Side:
    """A step of some streams, prefilled, that can be timed frame by frame.

    Args:
        drama: the checkpoint.
        streams: at once.
        fast: compiled, on CUDA captured as well; otherwise eager.
    """

    def __init__(self, drama: Drama3, streams: int, fast: bool) -> None:
        self.step = FrameStep(drama.model, streams, CONTEXT, MAX_FRAMES)
        self.rows = torch.from_numpy(drama.prompts.build(TEXT).rows).to(drama.model.device)
        if fast and drama.model.device.type == "cpu":
            self.step.use(CompiledStep(self.step, (streams,)))
        elif fast:
            self.step.use(CapturedStep(self.step, (streams,), self.step.lengths))
        with torch.inference_mode():
            for slot in range(streams):
                drama.model.prefill(self.rows, self.step.state, slot)
                self.step.configure(slot, drama.sampling, seed=slot)

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
    """Every frame's duration, eager and compiled in turns.

    Args:
        result: takes what is found.
        model, device: see ``load``.
        streams: batch sizes.
        frames: of each side.
        compiled: whether there is a compiled side; the first time that takes minutes.
    """
    with loaded(result, model, device) as drama:
        if compiled:
            prepare(result, drama, streams)
        frame = 1e3 / drama.codec.config.frame_rate
        for size in streams:
            started = time.monotonic()
            names = ["eager", "compiled"] if compiled else ["eager"]
            sides = {name: Side(drama, size, name == "compiled") for name in names}
            for side in sides.values():
                side.frames(BLOCK)
            result.preparation[f"warm-up of {size}"] = time.monotonic() - started
            samples: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(max(1, frames // BLOCK)):
                for name, side in sides.items():
                    samples[name] += side.frames(BLOCK)
            for name, times in samples.items():
                result.add(f"step of {size}, {name}", "ms", times)
            fastest = samples[names[-1]]
            usual = float(np.median(fastest))
            share = f"{usual:.2f} ms of a frame of {frame:.1f} ms"
            result.verdicts.append(
                Verdict(f"step of {size}: share of real time", usual / frame, 1, detail=share)
            )
            if compiled:
                ratio = float(np.median(samples["eager"])) / usual
                result.facts[f"step of {size}: eager over compiled"] = ratio


def codec(
    result: Result,
    model: str = "nano",
    device: str = "auto",
    rounds: int = 12,
    compiled: bool = True,
) -> None:
    """Decoding in groups of 1, 2 and 4, all at once, and a window again for every frame.

    Args:
        result: takes what is found.
        model, device: see ``load``.
        rounds: takes that are decoded; every group of them is a sample.
        compiled: whether there are compiled groups, too.
    """
    with loaded(result, model, device) as drama:
        if compiled:
            prepare(result, drama, (1,))
        codes = torch.from_numpy(drama.generate(TEXT, seed=1).codes)[None].to(drama.codec.device)
        frames = codes.shape[2] - codes.shape[2] % GROUPS[-1]
        on_cpu = drama.codec.device.type == "cpu"
        ways = {"eager": drama.codec.decode_step}
        if compiled and on_cpu:
            ways["compiled"] = CompiledCodec(drama.codec, GROUPS).decode_step
        whole, window = codes[:, :, :frames], codes[:, :, :WINDOW]
        for turn in range(rounds + 1):
            kept = result if turn else Result("warm-up")
            for name, decode in ways.items():
                for group in GROUPS:
                    times = in_groups(decode, whole, drama.codec.new_state(1), group)
                    _extend(kept, f"codec, group of {group}, {name}", times)
            _extend(kept, f"codec, {frames} frames at once", [at_once(drama, whole)])
            _extend(kept, f"codec, window of {WINDOW}", [at_once(drama, window)])
        _codec_ratios(result, frames, list(ways)[-1])
    resampler = [f for rate in (16_000, 24_000) for f in resample.measure(rate, 300)]
    _resampler(result, resampler)


def resampling(result: Result, rates: Sequence[int] = resample.TO_RATES) -> None:
    """Our streaming resampler beside soxr HQ."""
    _resampler(result, [found for rate in rates for found in resample.measure(rate)])


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
            result.verdicts += [
                Verdict(f"{name}: cost of a frame, p50, us", one.median_us, cost),
                Verdict(f"{name}: held back, longest, ms", one.max_held_ms, held),
            ]


def _codec_ratios(result: Result, frames: int, fastest: str) -> None:
    median = {series.name: float(np.median(series.samples)) for series in result.series}
    single = median[f"codec, group of 1, {fastest}"]
    once = median[f"codec, {frames} frames at once"] / frames
    again = median[f"codec, window of {WINDOW}"]
    result.facts["codec: groups of 1 over at once, cost of a frame"] = single / once
    result.facts["codec: a window again over groups of 1, cost of a frame"] = again / single


def at_once(drama: Drama3, codes: torch.Tensor) -> float:
    """Milliseconds of decoding all frames in one call."""
    started = time.perf_counter()
    drama.codec.decode(codes).cpu()
    return 1e3 * (time.perf_counter() - started)


def in_groups(decode: Decode, codes: torch.Tensor, state: CodecState, group: int) -> list[float]:
    """Milliseconds of each group of so many frames, one after the other."""
    times: list[float] = []
    for first in range(0, codes.shape[2], group):
        started = time.perf_counter()
        decode(codes[:, :, first : first + group], state).cpu()
        times.append(1e3 * (time.perf_counter() - started))
    return times


def _extend(result: Result, name: str, times: list[float]) -> None:
    for series in result.series:
        if series.name == name:
            series.samples += times
            return
    result.add(name, "ms", times)
