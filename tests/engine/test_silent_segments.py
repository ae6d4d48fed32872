"""Segments that the model ends without a frame: they are counted, bounded, and linear in cost."""

from __future__ import annotations

import pytest

from rt_drama3.engine.speech import Speech
from rt_drama3.text.rules import SEGMENT_BYTES
from tests.engine.simulation import Machine, make_machine

SENTENCE = "a" * (SEGMENT_BYTES - 10) + " b. "  # a segment of its own


def silent(monkeypatch: pytest.MonkeyPatch, segments: int) -> Machine:
    """A machine on which that many segments end immediately; those after them speak."""
    machine = make_machine(monkeypatch, 3, max_streams=1)
    config, step = machine.core._loaded.config, machine.core.runner.step
    left = segments

    def run(rows: int, length: int) -> None:
        nonlocal left
        machine.work.append(("step", 1))
        machine.clock.now += 0.004
        step.output.main.fill_(config.eos if left > 0 else config.semantic_start + 1)
        step.output.codes.fill_(1)
        left -= 1

    step.use(run)
    return machine


def ended(machine: Machine, speech: Speech) -> None:
    machine.run(lambda: speech not in machine.core.streams)
    machine.listen(speech)


def test_they_count_for_the_limit_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = silent(monkeypatch, 1000)
    speech = machine.open(SENTENCE * 40, max_frames=5)
    ended(machine, speech)
    summary = speech.result(0)
    assert machine.work.count(("step", 1)) == 5
    assert (summary.codes.shape[1], summary.complete, len(summary.segments)) == (0, False, 5)


def test_without_a_limit_each_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = silent(monkeypatch, 1000)
    speech = machine.open(SENTENCE * 40)
    ended(machine, speech)
    assert machine.work.count(("step", 1)) == 40
    assert speech.result(0).complete


def test_the_segment_that_speaks_announces_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = silent(monkeypatch, 30)
    speech = machine.open(SENTENCE * 32)
    ended(machine, speech)
    events = machine.segments[speech]
    assert [event.index for event in events] == list(range(32))
    lengths = [len(event.text) for event in events]
    assert [event.waiting for event in events[:31]] == [
        sum(lengths[number + 1 :]) for number in range(31)
    ]
    assert {event.first_frame for event in events[:31]} == {0}
