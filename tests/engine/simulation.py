"""An engine core on a simulated machine: a clock that only moves by what work costs.

The core is driven turn by turn in the test's own thread; steps, prompts and decodes are stand-ins
that move the clock. So an underrun is found exactly, however busy the machine is.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pytest
import torch

from rt_drama3.codec_stream import CodecWorker
from rt_drama3.engine import prompts as engine_prompts
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.core import EngineCore
from rt_drama3.engine.events import Audio, Queued, Segment
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.engine.step_runner import make_step
from rt_drama3.engine.stream import Phase, Stream
from tests.small import shared_drama

FRAME = 2048 / 44_100  # seconds of a frame
TEXT = "Hello there."
PATIENCE = 20_000  # turns after which a test fails


class Clock:
    """Seconds, when called.

    Attributes:
        moved: called whenever time has passed, in the middle of the work that took it.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self.moved: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self._now

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, now: float) -> None:
        self._now = now
        self.moved()


class Later(Executor):
    """An executor whose work is done by ``work``."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        self.jobs.append(lambda: work(*args))
        return Future()

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


@dataclass
class Machine:
    """An engine core on simulated hardware.

    Attributes:
        step: seconds of a step, by number of rows.
        chunk: seconds of a whole prefill chunk; shorter ones cost their share.
        decode: seconds of decoding a batch, by its frames.
        preparing, encoding: executors of the core.
        slow_encoding: the latter does its work only when a test calls for it.
        heard: audio of each stream that has a listener; remove it to stop listening.
        positions, segments: events of each such stream.
        work: what the machine did: ("chunk", slot) or ("step", rows).
        states: number of codec states that were allocated.
    """

    core: EngineCore
    clock: Clock
    preparing: Later
    encoding: Later
    slow_encoding: bool = False
    step: Callable[[int], float] = lambda rows: 0.004 * rows
    chunk: float = 0.06
    decode: Callable[[int], float] = lambda frames: 0.002 + 0.001 * frames
    heard: dict[Speech, list[Audio]] = field(default_factory=dict)
    positions: dict[Speech, list[Queued]] = field(default_factory=dict)
    segments: dict[Speech, list[Segment]] = field(default_factory=dict)
    work: list[tuple[str, int]] = field(default_factory=list)
    states: int = 0

    def open(self, text: str = TEXT, **settings: Any) -> Speech:
        speech = self.core.open(SpeechRequest(text, seed=0, **settings))
        self.heard[speech] = []
        return speech

    def stream(self, speech: Speech) -> Stream:
        return self.core.streams[speech]

    def phases(self) -> dict[Phase, int]:
        """The number of streams in each phase."""
        phases = [stream.phase for stream in self.core.open_streams()]
        return {phase: phases.count(phase) for phase in Phase}

    def idle(self, speech: Speech) -> bool:
        """Whether a stream has spoken, waits for text, and everything was delivered."""
        stream = self.core.streams.get(speech)
        if stream is None or stream.phase is not Phase.IDLE or not stream.segments:
            return False
        return stream.text.empty and not stream.playout.undelivered_seconds()

    def turn(self, idle: float = 0.001) -> None:
        """One turn of the core; an idle one takes some seconds."""
        self.core.woken.clear()
        if not self.core.turn():
            self.clock.now += idle
        self.preparing.work()
        if not self.slow_encoding:
            self.encoding.work()
        for speech in self.heard:
            self.listen(speech)

    def listen(self, speech: Speech) -> None:
        """Takes the events of a stream that can be taken without waiting."""
        for event in islice(speech.events(), speech.pending):
            if isinstance(event, Audio):
                self.heard[speech].append(event)
            elif isinstance(event, Queued):
                self.positions.setdefault(speech, []).append(event)
            elif isinstance(event, Segment):
                self.segments.setdefault(speech, []).append(event)

    def run(self, done: Callable[[], object]) -> None:
        for _ in range(PATIENCE):
            if done():
                return
            self.turn()
        raise AssertionError("it did not happen")

    def rest(self, seconds: float) -> None:
        """Lets time pass."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.turn(idle=0.05)

    def gap(self, speech: Speech, since: int = 0) -> float:
        """Seconds of underrun of a player that started with the chunk of frame ``since``."""
        chunks = [c for c in self.heard[speech] if c.first_frame >= since]
        end, waited = chunks[0].stamps.decoded, 0.0
        for chunk in chunks:
            waited += max(0.0, chunk.stamps.decoded - end)
            end = max(end, chunk.stamps.decoded) + chunk.frames * FRAME
        return waited

    def queued(self, speech: Speech) -> list[Queued]:
        """Its positions in the queue, in order."""
        return self.positions.get(speech, [])

    def position(self, speech: Speech) -> int | None:
        """Its position in the queue, if it waits."""
        waits = self.stream(speech).phase is Phase.WAITING
        return self.queued(speech)[-1].position if waits and self.queued(speech) else None

    def first(self, speech: Speech) -> float:
        """When its first audio came."""
        return self.heard[speech][0].stamps.decoded


def make_machine(monkeypatch: pytest.MonkeyPatch, frames: int, **settings: Any) -> Machine:
    """A machine whose takes end after ``frames`` frames a segment."""
    monkeypatch.setattr(engine_prompts, "frame_cap", lambda text, rate: frames)
    config = EngineConfig(**{"step_mode": "eager", "codec_async": False, **settings})
    clock, preparing, encoding = Clock(), Later(), Later()
    codec: Any = SimulatedCodec()
    loaded = replace(shared_drama().loaded, codec=codec)
    step = make_step(loaded.model, config)
    worker = CodecWorker(loaded.device, threaded=False)
    core = EngineCore(loaded, config, step, preparing, encoding, worker, clock)
    machine = Machine(core, clock, preparing, encoding)
    codec.machine = machine
    model: Any = SimulatedModel(machine)
    step.model = model

    def run(rows: int, length: int) -> None:
        size = sum(step.is_active(slot) for slot in range(rows))
        machine.work.append(("step", size))
        clock.now += machine.step(size)
        step.output.main.fill_(loaded.config.semantic_start + 1)
        step.output.codes.fill_(1)

    step.use(run)
    core.warm_up()
    machine.work.clear()
    assert pytest.approx(FRAME) == 1 / codec.config.frame_rate
    return machine


class SimulatedModel:
    """Reads prompts in no time but the clock's."""

    def __init__(self, machine: Machine) -> None:
        self.config, self.device = shared_drama().config, torch.device("cpu")
        self._machine = machine

    def prefill(self, rows: torch.Tensor, state: Any, slot: int, *_: Any) -> None:
        machine = self._machine
        machine.work.append(("chunk", slot))
        machine.clock.now += machine.chunk * len(rows) / machine.core.runner.chunk


class SimulatedCodec:
    """Decodes silence, in no time but the clock's."""

    machine: Machine

    def __init__(self) -> None:
        self.config, self.device = shared_drama().codec.config, torch.device("cpu")

    def new_state(self, batch: int = 1) -> object:
        self.machine.states += 1
        return object()

    def decode_step(self, codes: torch.Tensor, state: object) -> torch.Tensor:
        frames = codes.shape[2]
        self.machine.clock.now += self.machine.decode(frames)
        return torch.zeros(1, frames * self.config.frame_samples)
