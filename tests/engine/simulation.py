"""An engine on a simulated machine: a clock that only moves by what work costs.

The engine is driven turn by turn in the test's own thread; steps, prompts and decodes are stand-ins
that move the clock. So a gap that a listener would hear is found exactly, however busy the machine
is that runs the test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import torch

from rt_drama3.engine import admission as engine_admission
from rt_drama3.engine import delivery as engine_delivery
from rt_drama3.engine import engine
from rt_drama3.engine import loop as engine_loop
from rt_drama3.engine import prefill as prompt_reader
from rt_drama3.engine import prompts as engine_prompts
from rt_drama3.engine import step_runner as frame_maker
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.loop import DeviceLoop
from rt_drama3.engine.speech import Audio, Queued, Speech, SpeechRequest
from rt_drama3.engine.stream import EngineStream
from tests.small import shared_drama

FRAME = 2048 / 44_100  # seconds of a frame
TEXT = "Hello there."
PATIENCE = 20_000  # turns after which something is taken for stuck


class Clock:
    """``time`` as the engine sees it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Aside:
    """An executor whose work is done by the next turn."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(self, work: Callable[..., None], *args: Any) -> None:
        self.jobs.append(lambda: work(*args))

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()

    def shutdown(self, **_: object) -> None:
        pass


@dataclass
class Machine:
    """An engine on simulated hardware.

    Attributes:
        step: seconds of a step, by streams in it.
        block: seconds of a whole prompt block; shorter ones cost their share.
        decode: seconds of decoding a group, by its frames.
    """

    engine: Engine
    clock: Clock
    step: Callable[[int], float] = lambda streams: 0.004 * streams
    block: float = 0.06
    decode: Callable[[int], float] = lambda frames: 0.002 + 0.001 * frames
    preparing: Aside = field(default_factory=Aside)
    heard: dict[Speech, list[Audio]] = field(default_factory=dict)
    positions: dict[Speech, list[Queued]] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)  # ("block" | "step", slot or size)

    def open(self, text: str = TEXT, **settings: Any) -> Speech:
        speech = self.engine.open(SpeechRequest(text, seed=0, **settings))
        self.heard[speech] = []
        return speech

    def stream(self, speech: Speech) -> EngineStream:
        return self.engine._loop.streams[speech]

    def turn(self, idle: float = 0.001) -> None:
        """One turn of the device thread; an ``idle`` one takes some seconds."""
        self.engine._loop.wake.clear()
        if not self.engine._loop._turn():
            self.clock.now += idle
        self.preparing.work()
        for speech, chunks in self.heard.items():
            for event in islice(speech.events(), speech.pending):
                if isinstance(event, Audio):
                    chunks.append(event)
                elif isinstance(event, Queued):
                    self.positions.setdefault(speech, []).append(event)

    def run(self, done: Callable[[], object]) -> None:
        for _ in range(PATIENCE):
            if done():
                return
            self.turn()
        raise AssertionError("it never came to that")

    def rest(self, seconds: float) -> None:
        """Lets time pass."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.turn(idle=0.05)

    def gap(self, speech: Speech, since: int = 0) -> float:
        """Seconds that a player waited in all, which began with the chunk of frame ``since``."""
        chunks = [c for c in self.heard[speech] if c.first_frame >= since]
        end, waited = chunks[0].stamps.decoded, 0.0
        for chunk in chunks:
            waited += max(0.0, chunk.stamps.decoded - end)
            end = max(end, chunk.stamps.decoded) + chunk.frames * FRAME
        return waited

    def queued(self, speech: Speech) -> list[Queued]:
        """Its positions in the queue, in order."""
        return self.positions.get(speech, [])

    def first(self, speech: Speech) -> float:
        """When its first audio came."""
        return self.heard[speech][0].stamps.decoded


def make_machine(monkeypatch: pytest.MonkeyPatch, frames: int, **settings: Any) -> Machine:
    """A machine whose takes end after ``frames`` frames a piece; close its engine afterwards."""
    clock = Clock()
    timed = (engine, engine_admission, engine_loop, engine_delivery, prompt_reader, frame_maker)
    for module in timed:
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(engine_prompts, "frame_cap", lambda text, rate: frames)
    monkeypatch.setattr(DeviceLoop, "_run", lambda self: None)
    config = EngineConfig(**{"step_mode": "eager", "codec_async": False, **settings})
    machine = Machine(Engine(shared_drama().loaded, config), clock)
    desk = machine.engine._loop._desk
    desk.close()
    desk._preparing = desk._encoding = machine.preparing  # type: ignore[assignment]
    simulate(machine)
    machine.engine._loop.maker.warm_up()
    machine.events.clear()
    assert pytest.approx(FRAME) == machine.engine._loop._frame_seconds
    return machine


def simulate(machine: Machine) -> None:
    """Replaces the work of an engine by its cost."""
    loop, clock = machine.engine._loop, machine.clock
    maker = loop.maker
    output, samples = maker._step.output, shared_drama().codec.config.frame_samples

    def run(streams: int, length: int) -> None:
        size = sum(maker._step.is_active(slot) for slot in range(streams))
        machine.events.append(("step", size))
        clock.now += machine.step(size)
        output.main.fill_(shared_drama().config.semantic_start + 1)
        output.codes.fill_(1)

    class Model:
        """Reads prompts in no time but the clock's."""

        config, device = shared_drama().config, torch.device("cpu")

        def prefill(self, rows: torch.Tensor, state: Any, slot: int, *_: int) -> None:
            machine.events.append(("block", slot))
            clock.now += machine.block * len(rows) / maker.block

    def decode(codes: torch.Tensor, state: object) -> torch.Tensor:
        clock.now += machine.decode(codes.shape[2])
        return torch.zeros(1, codes.shape[2] * samples)

    maker._step.run = run  # type: ignore[method-assign]
    maker._model = Model()  # type: ignore[assignment]
    maker.decode = decode  # type: ignore[method-assign]
    codec: Any = FakeCodec(decode)
    machine.engine._codec = maker._codec = loop._delivery._codec = codec


class FakeCodec:
    """The codec as far as the engine asks it."""

    def __init__(self, decode: Callable[..., torch.Tensor]) -> None:
        self.config, self.device = shared_drama().codec.config, torch.device("cpu")
        self.decode_step = decode

    def new_state(self, batch: int = 1) -> object:
        return object()
