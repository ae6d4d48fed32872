"""Ratios of the realtime core: things that were timed in turns on the same machine."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from rt_drama3.aot.builder import PackageBuilder
from rt_drama3.aot.codec import CompiledCodec
from rt_drama3.aot.step import CompiledStep
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.engine.step_runner import CPU_BLOCK
from rt_drama3.graph_step import FrameStep

TEXT = "Thank you for calling. Your order has been shipped and should arrive on Monday."
WINDOW = 32  # frames that a codec without memory decodes again for every new one
ROUNDS = 7
GROUPS = (1, 2, 4)
CONTEXT, MAX_FRAMES = 1024, 512
GUIDANCE = 2.0


@dataclass(frozen=True)
class Ratio:
    """One judged figure.

    Attributes:
        name: what is compared.
        value: the ratio.
        target: limit, reached from the side that ``at_least`` says.
        detail: the times behind it.
        sides: the same, every one of them, in milliseconds.
    """

    name: str
    value: float
    target: float
    at_least: bool
    detail: str
    sides: dict[str, list[float]] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target


class Times(list[float]):
    """Seconds of one side."""

    @property
    def middle(self) -> float:
        return statistics.median(self)

    def ms(self, share: float = 1) -> list[float]:
        """All of them, in milliseconds, or that share of each."""
        return [1e3 * seconds * share for seconds in self]


def in_turns(*sides: Callable[[], object], rounds: int = ROUNDS) -> list[Times]:
    """Seconds of each side, timed in turns after one warm-up each."""
    for side in sides:
        side()
    samples = [Times() for _ in sides]
    for _ in range(rounds):
        for side, kept in zip(sides, samples, strict=True):
            started = time.perf_counter()
            side()
            kept.append(time.perf_counter() - started)
    return samples


class Bench:
    """The nano voice, its prompt and a finished take, shared by the measurements."""

    def __init__(self, drama: Drama3) -> None:
        self.drama = drama
        started = time.monotonic()
        builder = PackageBuilder(drama.model, drama.codec, (1, 2), GROUPS)
        builder.start()
        builder.wait()
        self.compile_seconds = time.monotonic() - started
        self.codec = CompiledCodec(drama.codec, GROUPS)
        self.prompt = torch.from_numpy(drama.prompts.build(TEXT).rows)
        self.take = drama.generate(TEXT, seed=1)
        self.codes = torch.from_numpy(self.take.codes)
        self.frame_seconds = 1 / drama.codec.config.frame_rate

    def step(self, compiled: bool) -> FrameStep:
        """A step of one slot, prefilled; as fast as asked."""
        step = FrameStep(self.drama.model, 1, CONTEXT, MAX_FRAMES)
        if compiled:
            step.use(CompiledStep(step, (1,)))
        self.rewind(step)
        return step

    @torch.inference_mode()
    def rewind(self, step: FrameStep) -> None:
        """Back to the first frame of the take."""
        step.state.reset(0)
        self.drama.model.prefill(self.prompt, step.state, 0)
        step.configure(0, self.drama.sampling, 1)

    @torch.inference_mode()
    def guided_step(self) -> FrameStep:
        """A compiled step of one guided stream: two rows, both prefilled."""
        step = FrameStep(self.drama.model, 2, CONTEXT, MAX_FRAMES)
        step.use(CompiledStep(step, (2,)))
        for slot in range(2):
            self.drama.model.prefill(self.prompt, step.state, slot)
        step.configure(0, self.drama.sampling, 1, guidance=GUIDANCE)
        return step

    def frames(self, step: FrameStep, count: int) -> None:
        """Makes frames from wherever the step stands."""
        length = step.length_for(len(self.prompt) + count + 1)
        for _ in range(count):
            step.run(step.slots, length)
            step.output.codes[0].numpy()


def step_ratio(bench: Bench) -> list[Ratio]:
    """Compiled against eager, and the compiled step with the codec against real time."""
    eager, compiled = bench.step(False), bench.step(True)
    count = 24

    def run(step: FrameStep) -> None:
        step.state.position[0] = len(bench.prompt)
        bench.frames(step, count)

    state = bench.drama.codec.new_state(1)

    def both() -> None:
        run(compiled)
        for frame in range(count):
            bench.codec.decode_step(bench.codes[None, :, frame : frame + 1], state)

    times = in_turns(lambda: run(eager), lambda: run(compiled), both)
    slow, fast, whole = (side.middle for side in times)
    frames = [side.ms(1 / count) for side in times]
    audio = count * bench.frame_seconds
    return [
        Ratio(
            "compiled step over eager step, speed",
            slow / fast,
            2.0,
            True,
            f"eager {1e3 * slow / count:.2f} ms, compiled {1e3 * fast / count:.2f} ms a frame",
            {"frame, eager step": frames[0], "frame, compiled step": frames[1]},
        ),
        Ratio(
            "step and codec of one stream on one thread, speed over real time",
            audio / whole,
            3.0,
            True,
            f"{1e3 * whole / count:.2f} ms a frame of {1e3 * bench.frame_seconds:.1f} ms",
            {"frame, compiled step and codec on one thread": frames[2]},
        ),
    ]


def guidance_ratio(bench: Bench) -> list[Ratio]:
    """A guided stream, which takes two rows of the batch, against a stream of one row."""
    plain, guided = bench.step(True), bench.guided_step()
    count = 24

    @torch.inference_mode()  # one of the steps was made in it
    def run(step: FrameStep) -> None:
        step.state.position[:] = len(bench.prompt)
        bench.frames(step, count)

    times = in_turns(lambda: run(plain), lambda: run(guided), rounds=3 * ROUNDS)
    one, two = (side.middle for side in times)
    return [
        Ratio(
            "guided step of two rows over a step of one, time",
            two / one,
            2.05,
            False,
            f"one row {1e3 * one / count:.2f} ms, two {1e3 * two / count:.2f} ms a frame",
            {"frame of a guided stream": times[1].ms(1 / count)},
        )
    ]


def codec_ratio(bench: Bench) -> list[Ratio]:
    """Streamed frame by frame against at once, and against decoding a window again and again."""
    codec, codes = bench.drama.codec, bench.codes[None, :, :48]
    frames = codes.shape[2]

    def streamed() -> None:
        state = codec.new_state(1)
        for frame in range(frames):
            bench.codec.decode_step(codes[:, :, frame : frame + 1], state)

    window = codes[:, :, :WINDOW]
    times = in_turns(lambda: codec.decode(codes), streamed, lambda: codec.decode(window))
    once, single, again = (side.middle for side in times)
    return [
        Ratio(
            "codec in groups of 1 over one-shot, cost per frame",
            single / once,
            1.5,
            False,
            f"one-shot {1e3 * once / frames:.2f} ms, groups of 1 {1e3 * single / frames:.2f} ms",
            {
                "codec of a frame, one-shot": times[0].ms(1 / frames),
                "codec of a frame, groups of 1": times[1].ms(1 / frames),
            },
        ),
        Ratio(
            f"decoding {WINDOW} frames again per new frame over groups of 1, cost",
            again / (single / frames),
            8.0,
            True,
            f"window {1e3 * again:.1f} ms, group of 1 {1e3 * single / frames:.2f} ms",
            {f"codec of a window of {WINDOW} frames": times[2].ms()},
        ),
    ]


def overlap_ratio(bench: Bench) -> list[Ratio]:
    """Step and codec side by side against the slower of the two alone."""
    step = bench.step(True)
    codec, count, group = bench.drama.codec, 48, 4

    def make() -> None:
        step.state.position[0] = len(bench.prompt)
        bench.frames(step, count)

    def decode() -> None:
        torch.set_num_threads(1)
        state = codec.new_state(1)
        for first in range(0, count, group):
            bench.codec.decode_step(bench.codes[None, :, first : first + group], state)

    def both() -> None:
        decoding = threading.Thread(target=decode)
        decoding.start()
        make()
        decoding.join()

    times = in_turns(make, decode, both)
    alone, other, together = (side.middle for side in times)
    return [
        Ratio(
            "step and codec overlapped over the slower alone, time",
            together / max(alone, other),
            1.15,
            False,
            f"step {1e3 * alone:.0f} ms, codec {1e3 * other:.0f} ms, both {1e3 * together:.0f} ms",
            {
                f"{count} frames, step alone": times[0].ms(),
                f"{count} frames, codec alone": times[1].ms(),
                f"{count} frames, side by side": times[2].ms(),
            },
        )
    ]


def first_pcm(bench: Bench) -> list[Ratio]:
    """First PCM of a warm request against the sum of its parts plus 2 ms.

    The parts, done by hand: build the prompt and prefill it behind the restored system block, one
    step, one decode of one frame.
    """
    engine = bench.drama.engine
    engine.wait_until_warm()
    step = bench.step(engine.step_mode == "compile")
    state = bench.drama.codec.new_state(1)
    system = bench.drama.prompts.build(TEXT).system_rows
    snapshots = {}

    def engine_first() -> None:
        speech = engine.open(SpeechRequest(TEXT, seed=1))
        next(iter(speech))
        speech.cancel()
        speech.result()

    @torch.inference_mode()
    def parts() -> None:
        if "system" not in snapshots:
            step.state.reset(0)
            bench.drama.model.prefill(bench.prompt[:system], step.state, 0)
            snapshots["system"] = step.state.snapshot(0, system)
        step.state.reset(0)
        step.state.restore(0, snapshots["system"])
        rows = torch.from_numpy(bench.drama.prompts.build(TEXT).rows)[system:]
        bench.drama.model.prefill(rows, step.state, 0, system, CPU_BLOCK)
        step.configure(0, bench.drama.sampling, 1)
        step.run(1, step.length_for(len(bench.prompt) + 1))
        bench.codec.decode_step(bench.codes[None, :, :1], state)

    times = in_turns(engine_first, parts, rounds=3 * ROUNDS)
    whole, sum_of_parts = (side.middle for side in times)
    return [
        Ratio(
            "first PCM of a warm request beyond prefill + step + decode, ms",
            1e3 * (whole - sum_of_parts),
            2.0,
            False,
            f"first PCM {1e3 * whole:.1f} ms, parts {1e3 * sum_of_parts:.1f} ms",
            {
                "first PCM of a warm request": times[0].ms(),
                "prefill, one step and one decode by hand": times[1].ms(),
            },
        )
    ]


def warm_voice(bench: Bench) -> list[Ratio]:
    """Reading a voice with a 10 s reference against restoring it."""
    drama, step = bench.drama, FrameStep(bench.drama.model, 1, CONTEXT, MAX_FRAMES)
    frames = round(10 / bench.frame_seconds)
    codes = np.tile(bench.take.codes, 1 + frames // bench.take.codes.shape[1])[:, :frames]
    prompt = drama.prompts.build(TEXT, references=[(TEXT, codes)])
    system = torch.from_numpy(prompt.rows[: prompt.system_rows])

    @torch.inference_mode()
    def cold() -> None:
        step.state.reset(0)
        drama.model.prefill(system, step.state, 0)

    cold()
    snapshot = step.state.snapshot(0, len(system))

    @torch.inference_mode()
    def warm() -> None:
        step.state.reset(0)
        step.state.restore(0, snapshot)

    times = in_turns(cold, warm)
    slow, fast = (side.middle for side in times)
    return [
        Ratio(
            "10 s reference cold over warm, prefill cost",
            slow / fast,
            10.0,
            True,
            f"cold {1e3 * slow:.1f} ms ({len(system)} rows), warm {1e3 * fast:.2f} ms",
            {"voice of 10 s, read": times[0].ms(), "voice of 10 s, restored": times[1].ms()},
        )
    ]


MEASURES = (step_ratio, guidance_ratio, codec_ratio, overlap_ratio, first_pcm, warm_voice)
