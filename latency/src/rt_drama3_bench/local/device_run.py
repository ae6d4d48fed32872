"""What the measurements of ``gpu`` share: a device, a clock, a time limit, CUDA graphs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from rt_drama3.codec import Codec, load_codec_state, random_codec_state
from rt_drama3.config import CodecConfig, ModelConfig, SamplingConfig, WindowTransformerConfig
from rt_drama3.graph_step import FrameStep

GREEDY = SamplingConfig(temperature=0, head_temperature=0)
SAMPLED = SamplingConfig()


@dataclass
class DeviceRun:
    """One run of ``bench gpu``.

    Attributes:
        device: CUDA, or the CPU of a dry run, where every line runs and the figures mean nothing.
        seconds: the run should end within.
        notes: what was left out, and why.
    """

    device: torch.device
    seconds: float
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def dry(self) -> bool:
        return self.device.type == "cpu"

    def time_for(self, what: str, needed: float) -> bool:
        """Whether ``needed`` seconds are left; if not, notes it."""
        left = self.seconds - (time.monotonic() - self.started)
        if self.dry or left >= needed:
            return True
        self.notes.append(f"{what}: left out, {left:.0f} s of {self.seconds:.0f} s were left")
        return False

    def reserved(self) -> int:
        """Bytes that the allocator holds on the device."""
        return 0 if self.dry else torch.cuda.memory_reserved(self.device)

    def synchronize(self) -> None:
        if not self.dry:
            torch.cuda.synchronize(self.device)

    def milliseconds(
        self, work: Callable[[], object], times: int = 10, rounds: int = 5, warm_ups: int = 2
    ) -> float:
        """Median duration of ``work`` on the device, over ``rounds`` rounds of ``times`` each."""
        for _ in range(warm_ups):
            work()
        if self.dry:
            started = time.perf_counter()
            work()
            return 1e3 * (time.perf_counter() - started)
        found: list[float] = []
        for _ in range(rounds):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(times):
                work()
            end.record()
            end.synchronize()
            found.append(float(start.elapsed_time(end)) / times)
        return statistics.median(found)

    def graphed(self, work: Callable[[], object]) -> Callable[[], object]:
        """``work`` as one CUDA graph; itself on a CPU."""
        if self.dry:
            return work
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            work()
        replay: Callable[[], object] = graph.replay
        return replay


def random_rows(config: ModelConfig, rows: int, seed: int) -> torch.Tensor:
    """A prompt of text and audio rows, int64 ``[rows, 1 + num_codebooks]`` on the host."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(
        config.tower.codebook_size, (rows, 1 + config.num_codebooks), generator=generator
    )
    codes[:, 0] = config.semantic_start + codes[:, 1]
    text = torch.rand(rows, generator=generator) < 0.3
    codes[text, 0] %= config.eos
    return codes


def speak(step: FrameStep, rows: int, sampling: SamplingConfig, streams: int | None = None) -> None:
    """Gives the first slots of a step, or all, a new prompt of about ``rows`` rows each."""
    for slot in range(step.slots):
        step.state.reset(slot)
        prompt = random_rows(step.model.config, rows + slot, seed=slot).to(step.model.device)
        step.model.prefill(prompt, step.state, slot)
        step.configure(slot, sampling, seed=slot)
    for slot in range(step.slots if streams is None else streams, step.slots):
        step.release(slot)


def random_codec(device: torch.device, small: bool) -> Codec:
    """The official codec's decode half with random weights, or a small one."""
    config = CodecConfig()
    dtype = torch.bfloat16
    if small:
        dtype = torch.float32
        config = CodecConfig(
            latent=64, num_codebooks=3, post=WindowTransformerConfig(1, 2, 32, 64, 16),
            semantic_codebook_size=64, residual_codebook_size=16, decoder_dim=32,
        )  # fmt: skip
    codec = Codec(config, encoder=False, device=device, dtype=dtype)
    load_codec_state(codec, random_codec_state(config, encoder=False, seed=0))
    return codec
