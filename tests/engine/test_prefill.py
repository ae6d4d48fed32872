"""Reading the next prompt of a stream while it still speaks: same take, short joins, fair leads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rt_drama3.engine import prefill_order
from rt_drama3.engine import prompts as engine_prompts
from rt_drama3.engine.prefill import Prefiller
from rt_drama3.engine.stream import Stream
from tests.engine.simulation import Machine
from tests.small import Codes, Frames, codes_of, running, say, shared_drama, until

PIECES = "A sentence that is a bit longer, so that few of them fill a piece of the text, yes. " * 12
VOICE = [("Some words.", np.full((3, 40), 5))]


@pytest.mark.parametrize("chunk", [0.15, 0.3, 0.5])
@pytest.mark.parametrize("step", [0.004, 0.0095])
def test_long_texts_side_by_side_have_no_gap_at_a_join(
    machine: Callable[..., Machine], step: float, chunk: float
) -> None:
    """As many as the machine can do with all their prompts speak; the others wait."""
    sim = machine(frames=120, max_streams=4)
    sim.step, sim.chunk = lambda streams: step * streams, chunk
    sim.core.warm_up()
    speeches = [sim.open(PIECES) for _ in range(4)]
    sim.run(lambda: all(speech.ended for speech in speeches))
    assert all(len(speech.result(0).segments) >= 4 for speech in speeches)
    assert [sim.gap(speech) for speech in speeches] == [0, 0, 0, 0]


def test_little_is_left_to_read_at_a_join(machine: Callable[..., Machine]) -> None:
    sim = machine(frames=150, max_streams=2)
    speeches = [sim.open(PIECES) for _ in range(2)]
    sim.run(lambda: all(speech.ended for speech in speeches))
    spare = sim.core.runner.spare
    chunks = [slot for kind, slot in sim.work if kind == "chunk" and slot != spare]
    joins = sum(len(speech.result(0).segments) for speech in speeches) - 2
    assert joins >= 6
    assert len(chunks) <= 3 * joins + 6  # rather than eight or so at every one
    assert sum(slot == spare for kind, slot in sim.work if kind == "chunk") > len(chunks)


def test_nothing_is_read_ahead_that_would_make_a_listener_wait(
    machine: Callable[..., Machine],
) -> None:
    sim = machine(frames=150)
    speech = sim.open(PIECES)
    sim.run(lambda: len(sim.stream(speech).codes) > 20)
    stream, core = sim.stream(speech), sim.core
    while core.prefill():
        pass
    sim.run(lambda: core.prefiller.behind([stream]) is not None)
    sim.work.clear()
    core.costs.chunk.seconds = stream.playout.buffered(sim.clock.now) + 0.1
    assert not core.prefill()
    assert sim.work == []
    core.costs.chunk.seconds = 0.001
    assert core.prefill()


def takes(texts: int = 2, **settings: object) -> list[Codes]:
    """Takes of several pieces, spoken side by side."""
    with running(shared_drama(), prefill_block=32, context=2048, **settings) as engine:
        speeches = [
            say(engine, PIECES, seed=seed, max_frames=None, references=VOICE)
            for seed in range(texts)
        ]
        for speech in speeches:
            assert sum(chunk.frames for chunk in speech) > 0
        return [codes_of(speech) for speech in speeches]


@pytest.mark.parametrize("cache", [256, 0])
def test_reading_ahead_changes_no_code(monkeypatch: pytest.MonkeyPatch, cache: int) -> None:
    """Also when two streams take turns in the spare slot, and with no cache of voices."""
    monkeypatch.setattr(engine_prompts, "frame_cap", lambda text, rate: 60)
    monkeypatch.setattr(prefill_order, "may_prefill", lambda *_: True)  # whatever the machine does
    used: list[int] = []
    real = Prefiller.take_ahead

    def take(self: Prefiller, stream: Stream) -> int:
        used.append(real(self, stream))
        return used[-1]

    monkeypatch.setattr(Prefiller, "take_ahead", take)
    ahead = takes(voice_cache_mb=cache)
    assert sum(rows > 0 for rows in used) >= 4
    used.clear()
    monkeypatch.setattr(Prefiller, "behind", lambda self, streams: None)
    plain = takes(voice_cache_mb=cache)
    assert not any(used)
    assert all(map(np.array_equal, ahead, plain))


def test_what_was_read_ahead_for_another_prompt_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_prompts, "frame_cap", lambda text, rate: 40)
    plain = takes(1)
    real = Stream.next_rows

    def other(self: Stream, start: int, end: int, semantic_start: int) -> Codes:
        rows = real(self, start, end, semantic_start).copy()
        rows[rows[:, 1] > 0, 1] -= 1
        return rows

    monkeypatch.setattr(Stream, "next_rows", other)
    assert np.array_equal(takes(1)[0], plain[0])


def test_a_stream_that_ends_leaves_a_clean_spare_slot() -> None:
    with running(shared_drama(), prefill_block=16, context=4096) as engine:
        core, frames = engine.core, Frames(engine)
        speech = say(engine, PIECES, max_frames=None)
        stream = core.streams[speech]
        until(
            lambda: stream.prefill.ahead is not None and stream.prefill.ahead.read > 0,
            "reading ahead",
        )
        frames.hold()
        frames.wait_for_one()
        for values in core.runner.step.state.values:
            values[core.runner.spare] = float("nan")
        speech.cancel()
        frames.free()
        until(lambda: not any(engine.streams().values()))
        until(lambda: stream.prefill.ahead is None)
        for tensor in core.runner.step.state.tensors():
            assert bool((tensor[core.runner.spare] <= 0).all())
