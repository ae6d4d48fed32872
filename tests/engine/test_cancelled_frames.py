"""Frames for a listener that is gone: two at most, whatever the engine was doing then.

Work takes time on a simulated machine, and each stretch of it is a moment at which a cancel may
come. The frame in progress counts, and on a GPU the one that is queued behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rt_drama3.engine.step_runner import Entry, FrameResult, _Copy
from rt_drama3.engine.stream import Stream
from tests.engine.simulation import Machine, make_machine

STEP = 0.004
MOMENTS = 48  # some more than two short segments have


class Counted:
    """Counts the frames that were begun and those whose codes arrived, by stream."""

    def __init__(self, machine: Machine) -> None:
        self.begun, self.arrived = Counter[Stream](), Counter[Stream]()
        self._frame = machine.core.runner.frame
        machine.core.runner.frame = self  # type: ignore[method-assign, assignment]

    def __call__(self, entries: Sequence[Entry]) -> list[FrameResult]:
        self.begun.update(stream for stream, *_ in entries)
        results = self._frame(entries)
        self.arrived.update(result.stream for result in results)
        return results


def pipelined(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets codes arrive one frame late, as on a GPU; the step takes its time until then."""
    runner, start = machine.core.runner, machine.core.runner._host.start
    machine.step = lambda rows: 0.0

    class Late(_Copy):
        def wait(self) -> Any:
            machine.clock.now += STEP
            return super().wait()

    def late(rows: int) -> _Copy:
        return Late(start(rows)._tensors, None)

    class Stream:
        def synchronize(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(runner, "_cuda", True)
    monkeypatch.setattr(runner._host, "start", late)


def frames_after_a_cancel(machine: Machine, moment: int) -> int | None:
    """Frames that are made for a stream that is cancelled at that moment; None if it has ended."""
    counted = Counted(machine)
    machine.open("Another one. And more of it.")
    speech = machine.open("First sentence here. Second one. " * 9)  # two segments
    stream, left, arrived = machine.stream(speech), moment, None

    def moved() -> None:
        nonlocal left, arrived
        left -= 1
        if left == 0:
            arrived = counted.arrived[stream]
            speech.cancel()

    machine.clock.moved = moved
    machine.run(lambda: not machine.core.streams)
    return None if arrived is None else counted.begun[stream] - arrived


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
def test_at_most_two_frames_are_made_for_a_listener_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, batch: int
) -> None:
    made = []
    for moment in range(1, MOMENTS):
        machine = make_machine(monkeypatch, 8, max_streams=2, codec_batch_frames=batch)
        if gpu:
            pipelined(machine, monkeypatch)
        made.append(frames_after_a_cancel(machine, moment))
    found = [count for count in made if count is not None]
    assert len(found) >= 30
    assert set(found) == ({0, 1, 2} if gpu else {0, 1})


def test_a_stream_cancelled_while_a_chunk_is_read_makes_no_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = make_machine(monkeypatch, 20, max_streams=2)
    counted, speech = Counted(machine), machine.open()
    stream = machine.stream(speech)
    machine.run(lambda: counted.begun[stream] == 3)
    made: list[int] = []

    def moved() -> None:
        if machine.work[-1] == ("chunk", 1) and not made:
            made.append(counted.begun[stream])
            speech.cancel()

    machine.clock.moved = moved
    machine.open("Another one.")
    machine.run(lambda: speech not in machine.core.streams)
    assert made == [counted.begun[stream]]
