"""Speed on the device: the step against its floor, products, prompts and the codec."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from rt_drama3.checkpoint.memory import plan
from rt_drama3.codec import CodecState
from rt_drama3.config import ModelConfig
from rt_drama3.graph_step import CapturedStep, FrameStep, compile_step
from rt_drama3.model import SpeechModel, kernels
from rt_drama3.model.backbone import BackboneLayer
from rt_drama3.model.moe import MoE
from rt_drama3_bench.estimates import summarize
from rt_drama3_bench.local.device_run import SAMPLED, DeviceRun, random_codec, random_rows, speak

CONTEXT, ROWS = 4096, 512  # of every stream when frames are timed
TIMED = 40  # frames


def measure_ceilings(bench: DeviceRun) -> dict[str, float]:
    """Bytes per second of a copy (read and written) and of a sum (read)."""
    size = (1 << 16) if bench.dry else (1 << 31)
    source = torch.ones(size, dtype=torch.bfloat16, device=bench.device)
    target = torch.empty_like(source)
    copy = bench.milliseconds(lambda: target.copy_(source), times=3)
    read = bench.milliseconds(lambda: source.view(1024, -1).sum(1), times=3)
    return {"copy": 4e3 * size / copy, "read": 2e3 * size / read}


def step_of(bench: DeviceRun, model: SpeechModel, slots: int) -> FrameStep:
    """The step that ``measure_step`` times."""
    return FrameStep(model, slots, 64 if bench.dry else CONTEXT, max_frames=1024)


def measure_step(
    bench: DeviceRun, step: FrameStep, streams: int, eager: bool, bandwidth: float
) -> dict[str, Any]:
    """Milliseconds per frame of ``streams`` streams, and the floor."""
    rows = 8 if bench.dry else ROWS
    budget = plan(
        step.model.config,
        fp8=True,
        context=step.state.context,
        max_frames=1024,
        streams=streams,
        position=rows + TIMED,
    )
    found: dict[str, Any] = {
        "floor_ms": budget.floor_ms(bandwidth),
        "bytes": budget.frame,
        "bytes_per_stream": budget.stream,
    }
    if eager:
        found["eager_ms"] = _frame_ms(bench, step, streams, rows)
    started, before = time.perf_counter(), bench.reserved()
    runner = CapturedStep(
        step,
        (streams,),
        step.lengths[-1:],
        unit=compile_step("eager" if bench.dry else "inductor"),
        capture=not bench.dry,
    )
    bench.synchronize()
    found["prepared_s"] = time.perf_counter() - started
    found["memory"] = bench.reserved() - before
    step.use(runner)
    found["captured_ms"] = _frame_ms(bench, step, streams, rows)
    found["captured_frames"] = _each_frame(bench, step, streams, rows)
    found["over_floor"] = found["captured_ms"] / found["floor_ms"]
    if streams == 1 and not bench.dry:
        found["kernels"] = _kernels(bench, step)
    step.use(None)
    return found


def _frame_ms(bench: DeviceRun, step: FrameStep, streams: int, rows: int) -> float:
    speak(step, rows, SAMPLED, streams)
    times = 2 if bench.dry else TIMED // 5
    length = step.length_for(rows + streams + 2 * TIMED) if not bench.dry else step.lengths[-1]
    return bench.milliseconds(lambda: step.run(streams, length), times=times)


def _each_frame(bench: DeviceRun, step: FrameStep, streams: int, rows: int) -> dict[str, Any]:
    """Frames one by one, in milliseconds: the tail that a median over rounds hides."""
    speak(step, rows, SAMPLED, streams)
    length, times = step.lengths[-1], []
    if bench.dry:
        for _ in range(3):
            started = time.perf_counter()
            step.run(streams, length)
            times.append(1e3 * (time.perf_counter() - started))
        return asdict(summarize(times))
    count = 5 * TIMED
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step.run(streams, length)
        mark.record()
    bench.synchronize()
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return asdict(summarize(times))


def _kernels(bench: DeviceRun, step: FrameStep, frames: int = 3, most: int = 30) -> list[list[Any]]:
    """The most expensive kernels of a frame: name, launches and microseconds."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(frames):
            step.run(1, step.lengths[-1])
        bench.synchronize()
    averages = profiler.key_averages()
    rows = [[a.key[:80], a.count / frames, a.self_device_time_total / frames] for a in averages]
    return sorted(rows, key=lambda row: -row[2])[:most]


def measure_products(bench: DeviceRun, config: ModelConfig) -> dict[str, dict[str, float]]:
    """Bytes per second at which the step's matrices are read, by rows multiplied."""
    back, tower = config.backbone, config.tower
    dim = back.hidden_size
    values = back.linear_value_heads * back.linear_value_dim
    queries, keys = back.heads * back.head_dim, back.kv_heads * back.head_dim
    shapes = {
        "delta in": (back.linear_conv_dim + values + 2 * back.linear_value_heads, dim),
        "delta out": (dim, values),
        "qkv": (2 * queries + 2 * keys, dim),
        "attention out": (dim, queries),
        "router": (back.experts[0] + 1, dim),
        "shared up": (2 * back.shared_expert_ffn, dim),
        "tower up": (2 * tower.ffn, dim),
        "tower down": (dim, tower.ffn),
        "head": (tower.codebook_size, dim),
    }
    results: dict[str, dict[str, float]] = {}
    for name, shape in shapes.items():
        nbytes = 2 * shape[0] * shape[1]
        # More than the caches hold, so that every product reads memory.
        copies = 2 if bench.dry else max(2, min(256, (1 << 30) // nbytes))
        weights = torch.randn(copies, *shape, device=bench.device).mul_(0.02).bfloat16()
        results[name] = {}
        for rows in (1, 2, 4, 8):
            x = torch.randn(rows, shape[1], device=bench.device).bfloat16()

            def multiply(x: Tensor = x, weights: Tensor = weights) -> None:
                for weight in weights:
                    F.linear(x, weight)

            run = bench.graphed(multiply)
            results[name][str(rows)] = 1e3 * nbytes * copies / bench.milliseconds(run, times=2)
        del weights
    return results


def measure_kernels(bench: DeviceRun, model: SpeechModel) -> dict[str, Any]:
    """Microseconds of routed experts and attention alone, and the experts' bytes per second."""
    if bench.dry and not kernels.usable(torch.empty(0, device=bench.device)):
        return {"skipped": "the kernels need a CUDA device"}
    back = model.config.backbone
    layers = [cast(BackboneLayer, layer).moe for layer in model.backbone.layers]
    results: dict[str, Any] = {}
    for rows in (1, 2, 4, 8):
        x = torch.randn(rows, back.hidden_size, device=bench.device).bfloat16()
        draws = [moe.route(x) for moe in layers]
        work = [
            (moe, chosen.int(), weights)
            for moe, (chosen, weights, _) in zip(layers, draws, strict=True)
        ]

        def experts(x: Tensor = x, work: list[tuple[MoE, Tensor, Tensor]] = work) -> None:
            for moe, chosen, weights in work:
                moe.products(x, chosen, weights)

        ms = bench.milliseconds(bench.graphed(experts), times=3) / len(layers)
        distinct = sum(len(chosen.unique()) for _, chosen, _ in work) / len(work)
        nbytes = distinct * 3 * back.expert_ffn * back.hidden_size
        results[f"experts, {rows} rows"] = {"us": 1e3 * ms, "bytes_per_s": 1e3 * nbytes / ms}
    for length in (256, 1024, 4000):
        shape = (24, 1, back.kv_heads, 4096, back.head_dim)
        caches = torch.randn(shape, device=bench.device).bfloat16()
        q = torch.randn(1, back.heads, back.head_dim, device=bench.device).bfloat16()
        position = torch.tensor([length - 1], device=bench.device)

        def attend(q: Tensor = q, caches: Tensor = caches, position: Tensor = position) -> None:
            for keys, values in zip(caches[::2], caches[1::2], strict=True):
                kernels.attend(q, keys, values, position, 4096)

        ms = bench.milliseconds(bench.graphed(attend), times=3) / 12
        results[f"attention, {length} rows"] = {"us": 1e3 * ms}
    return results


def measure_prefill(bench: DeviceRun, model: SpeechModel) -> dict[str, Any]:
    """Milliseconds to prefill prompts, in the default chunks and in one."""
    lengths = (8, 16) if bench.dry else (64, 512, 2048)
    step = FrameStep(model, 1, max(64, 2 * lengths[-1]), 16)
    results: dict[str, Any] = {}
    for rows in lengths:
        prompt = random_rows(model.config, rows, seed=rows).to(bench.device)
        for block in sorted({min(256, rows), rows}):

            def read(prompt: Tensor = prompt, block: int = block) -> None:
                step.state.reset(0)
                model.prefill(prompt, step.state, 0, chunk=block)

            with torch.inference_mode():
                ms = bench.milliseconds(read, times=1, rounds=3, warm_ups=1)
            results[f"{rows} rows in blocks of {block}"] = ms
    return results


def measure_codec(bench: DeviceRun) -> dict[str, Any]:
    """Milliseconds to decode 1, 2 and 4 frames of one stream, eager and captured."""
    codec = random_codec(bench.device, bench.dry)
    results: dict[str, Any] = {"bytes": sum(p.nbytes for p in codec.parameters())}
    for frames in (1, 2, 4):
        shape = (1, codec.config.num_codebooks, frames)
        codes = torch.randint(codec.config.residual_codebook_size, shape, device=bench.device)
        state = codec.new_state(1)

        def decode(codes: Tensor = codes, state: CodecState = state) -> None:
            codec(codes, state.tensors)

        with torch.inference_mode():
            row = {"eager_ms": bench.milliseconds(decode, times=5)}
            row["captured_ms"] = bench.milliseconds(bench.graphed(decode), times=5)
        results[f"{frames} frames"] = row
    return results
