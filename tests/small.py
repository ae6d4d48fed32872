"""Random checkpoints so small that a frame takes a millisecond or two, and what tests do with them.

Their takes are noise and rarely end by themselves, so tests end them by ``max_frames``.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

import rt_drama3
from rt_drama3 import checkpoint
from rt_drama3.config import SamplingConfig
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.events import SpeechSummary
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.engine.step_runner import Entry, FrameResult
from rt_drama3.graph_step import FrameStep
from rt_drama3.model import SpeechModel
from rt_drama3.system.compiling import compiler

Codes = npt.NDArray[np.int64]
needs_compiler = pytest.mark.skipif(
    compiler() is None, reason="needs a C++ compiler (g++ or clang++)"
)
TEXTS = ["Hello there.", "Why not?", "A third one.", "Fourth!", "Five of them.", "And a sixth."]
WAIT = 30.0  # seconds after which something is taken for stuck

# Whether the grouping of frames shows in the last bit of a sample depends on the library of matrix
# products and on its kernels for this processor; docs/engine.md promises it for these alone.
needs_exact_groups = pytest.mark.skipif(
    not torch.backends.mkl.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX2",
    reason="needs MKL and its kernels for AVX2",
)

GREEDY = SamplingConfig(temperature=0, head_temperature=0, repetition_aware=False)
SAMPLED = SamplingConfig()

SMALL: dict[str, Any] = {
    "text_config.hidden_size": 64,
    "text_config.num_hidden_layers": 2,
    "text_config.layer_types": ["linear_attention", "full_attention"],
    "text_config.num_attention_heads": 2,
    "text_config.num_key_value_heads": 1,
    "text_config.num_experts": 4,
    "text_config.moe_intermediate_size": 32,
    "text_config.shared_expert_intermediate_size": 32,
    "text_config.linear_num_key_heads": 1,
    "text_config.linear_num_value_heads": 2,
    "audio_decoder_config.shared_enrichment_layers": 1,
    "audio_decoder_config.num_codebooks": 3,
    "audio_decoder_config.intermediate_size": 64,
    "codec.latent": 16,
    "codec.decoder_dim": 16,
    "codec.post.n_layer": 1,
    "codec.post.ffn": 32,
}


@cache
def small_directory(seed: int = 0) -> Path:
    """A checkpoint in the official layout; tests must not change it."""
    directory = Path(tempfile.mkdtemp(prefix="rt-drama3-small-")) / "small"
    checkpoint.make_tiny(directory, seed=seed, settings=SMALL, shards=None)
    return directory


@cache
def shared_drama(seed: int = 0) -> Drama3:
    """That checkpoint, loaded once; tests must not change it."""
    return new_drama(seed)


def new_drama(seed: int = 0) -> Drama3:
    """That checkpoint, loaded for a test that changes it."""
    return rt_drama3.load(small_directory(seed), device="cpu", dtype="float32")


@cache
def ending_drama() -> Drama3:
    """Like ``shared_drama``, but its takes end by themselves after a few frames."""
    drama = new_drama()
    drama.model.head[-1] *= 8
    return drama


def prompt_rows(drama: Drama3, text: str) -> Tensor:
    """Prompt rows ``[T, 1 + num_codebooks]`` of a text."""
    return torch.from_numpy(drama.prompts.build(text).rows)


class Slots:
    """A ``FrameStep`` and how many rows each of its slots holds."""

    def __init__(
        self, model: SpeechModel, slots: int, context: int = 256, lengths: tuple[int, ...] = ()
    ) -> None:
        self.step = FrameStep(model, slots, context, max_frames=128, lengths=lengths)
        self.rows = [0] * slots

    @torch.inference_mode()
    def prefill(self, slot: int, rows: Tensor, block: int = 64) -> None:
        """Reads a prompt into a free slot."""
        self.step.state.reset(slot)
        self.step.model.prefill(rows, self.step.state, slot, 0, block)
        self.rows[slot] = len(rows)

    def begin(self, slot: int, rows: Tensor, sampling: SamplingConfig, seed: int) -> None:
        """Reads a prompt and lets the slot speak."""
        self.prefill(slot, rows)
        self.step.configure(slot, sampling, seed)

    def frame(self, streams: int | None = None, length: int | None = None) -> list[list[int]]:
        """One frame; returns ``[main, codes ..]`` of every slot, whatever it holds."""
        active = self.step.state.active.tolist()
        self.rows = [n + a for n, a in zip(self.rows, active, strict=True)]
        self.step.run(streams or len(self.rows), length or self.step.length_for(max(1, *self.rows)))
        output = self.step.output
        return torch.cat((output.main[:, None], output.codes), 1).tolist()

    def frames(self, slot: int, count: int) -> list[list[int]]:
        """Frames of one slot."""
        return [self.frame()[slot] for _ in range(count)]


def solo(
    model: SpeechModel, rows: Tensor, sampling: SamplingConfig, seed: int, count: int
) -> list[list[int]]:
    """What a stream says when it is alone."""
    slots = Slots(model, 1)
    slots.begin(0, rows, sampling, seed)
    return slots.frames(0, count)


@cache
def expected_codes(drama: Drama3, text: str, seed: int, max_frames: int) -> Codes:
    """What one piece of text must become, straight from the step: ``[num_codebooks, frames]``.

    A frame with code 0 right before eos is a click and is left out.
    """
    frames = solo(drama.model, prompt_rows(drama, text), drama.sampling, seed, max_frames + 1)
    mains = [frame[0] for frame in frames]
    end = mains.index(drama.config.eos) if drama.config.eos in mains else None
    kept = [frame[1:] for frame in frames[: max_frames if end is None else end]]
    if end is not None and kept and kept[-1][0] == 0:
        kept.pop()
    return np.array(kept[:max_frames]).reshape(-1, drama.config.num_codebooks).T


# Engines.


def admit_all(engine: Engine) -> None:
    """Admits every stream with a free slot: on a slow machine a second one would wait for ever."""
    object.__setattr__(engine.config, "admit_load", math.inf)


@contextmanager
def running(drama: Drama3, **settings: Any) -> Iterator[Engine]:
    """A warm engine in eager mode; afterwards none of its threads may be left.

    It admits whatever the speed of this machine, unless ``admit_load`` is given.
    """
    before = set(threading.enumerate())
    engine = Engine(
        drama.loaded, EngineConfig(**{"step_mode": "eager", "context": 1024, **settings})
    )
    try:
        assert engine.wait_until_warm(WAIT)
        if "admit_load" not in settings:
            admit_all(engine)
        yield engine
    finally:
        engine.close()
    left = [t for t in threading.enumerate() if t.name.startswith("rt-drama3")]
    assert [t for t in left if t not in before] == []


def say(
    engine: Engine, text: str, *, seed: int = 0, max_frames: int | None = 8, **more: Any
) -> Speech:
    """Opens a short take."""
    return engine.open(SpeechRequest(text, seed=seed, max_frames=max_frames, **more))


def heard(speech: Speech) -> tuple[npt.NDArray[np.float32], SpeechSummary]:
    """The audio of a stream and what became of it."""
    parts = [chunk.pcm for chunk in speech]
    return np.concatenate([np.zeros(0, dtype=np.float32), *parts]), speech.result(WAIT)


def codes_of(speech: Speech) -> Codes:
    """The codes of a stream, once it has ended."""
    return speech.result(WAIT).codes


def position(engine: Engine, speech: Speech) -> int | None:
    """The position of a stream in the queue, while it waits."""
    stream = engine.core.streams.get(speech)
    queued = None if stream is None else stream.turn.queued
    return None if queued is None else queued.position


def until(condition: Callable[[], object], what: str = "it") -> None:
    """Waits for something that another thread does."""
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.001)


class Frames:
    """Stands between an engine and its step: counts frames, and makes them wait when held.

    Attributes:
        made: frames by stream.
        batches: how many streams each frame had.
    """

    def __init__(self, engine: Engine) -> None:
        self.made: Counter[Speech] = Counter()
        self.batches: list[int] = []
        self._permits: threading.Semaphore | None = None
        self._waiting = threading.Event()
        self.real = engine.core.runner.frame
        engine.core.runner.frame = self._frame  # type: ignore[method-assign]

    def _frame(self, entries: Sequence[Entry]) -> list[FrameResult]:
        permits = self._permits
        if entries and permits is not None:
            self._waiting.set()
            assert permits.acquire(timeout=WAIT), "a held frame was never allowed"
        if entries:
            self.batches.append(len(entries))
        for stream, *_ in entries:
            self.made[stream.speech] += 1
        return self.real(entries)

    def hold(self) -> None:
        """Lets no further frame begin."""
        self._waiting.clear()
        self._permits = threading.Semaphore(0)

    def wait_for_one(self) -> None:
        """Waits until the engine stands before a frame that is held."""
        assert self._waiting.wait(WAIT), "no frame came"

    def allow(self, count: int = 1) -> None:
        """Lets this number of frames pass."""
        assert self._permits is not None
        self._permits.release(count)

    def allow_until(self, condition: Callable[[], object], what: str = "it") -> None:
        """Lets frames pass one by one until something has happened."""

        def met() -> bool:
            if condition():
                return True
            self.allow()
            return False

        until(met, what)

    def free(self) -> None:
        """Holds nothing any more."""
        permits, self._permits = self._permits, None
        if permits is not None:
            permits.release(1_000_000)
