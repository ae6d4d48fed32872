"""The order of streams, on a simulated machine (see ``simulation``): gaps, prompts, fairness."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rt_drama3.engine.speech import Speech
from rt_drama3.engine.step_runner import Entry, FrameResult
from rt_drama3.engine.stream import Phase
from rt_drama3.errors import RequestError
from tests.engine.simulation import FRAME, TEXT, Machine

LONG_VOICE = [("Some words.", np.full((3, 600), 5))]  # nine blocks of a prompt or so
PIECES = "A sentence that is a bit longer, so that few of them fill a piece of the text, yes. " * 12


def test_the_simulation_learns_what_things_cost(machine: Callable[..., Machine]) -> None:
    costs = machine().core.costs
    assert costs.step_seconds(1) == pytest.approx(0.004)
    assert costs.step_seconds(4) == pytest.approx(0.016)
    assert costs.decode_seconds(4) == pytest.approx(0.006)
    assert costs.chunk.seconds == pytest.approx(0.06)  # of a whole block, before any request


# Prefill next to running streams.


def test_a_newcomers_long_prompt_makes_no_stream_wait(machine: Callable[..., Machine]) -> None:
    sim = machine(frames=200)
    speaking = sim.open()
    sim.run(lambda: sim.heard[speaking])
    newcomer = sim.open(references=LONG_VOICE)
    began = sim.clock.now
    sim.run(lambda: speaking.ended and newcomer.ended)
    assert sim.gap(speaking) == 0
    assert sim.gap(newcomer) == 0
    blocks = sum(kind == "chunk" for kind, _ in sim.work)
    assert blocks >= 9
    assert sim.first(newcomer) - began < 4 * blocks * sim.chunk  # it was not put off for ever


@pytest.mark.parametrize("block", [0.01, 0.1, 0.4])
def test_prompts_of_three_newcomers_make_no_stream_wait(
    machine: Callable[..., Machine], block: float
) -> None:
    sim = machine(frames=150)
    sim.chunk = block
    sim.core.costs.chunk.seconds = block
    speeches = [sim.open()]
    sim.run(lambda: sim.heard[speeches[0]])
    for number in range(3):
        speeches.append(sim.open(references=[(f"Voice {number}.", LONG_VOICE[0][1])]))
        sim.rest(0.05)
    sim.run(lambda: all(speech.ended for speech in speeches))
    assert [sim.gap(speech) for speech in speeches] == [0, 0, 0, 0]


def test_a_block_does_not_run_when_the_leads_forbid_it(machine: Callable[..., Machine]) -> None:
    sim = machine(frames=200)
    speaking = sim.open()
    sim.run(lambda: sim.heard[speaking])
    sim.open(references=LONG_VOICE)
    sim.run(lambda: sim.phases()[Phase.PREFILL] == 1)
    stream, costs = sim.stream(speaking), sim.core.costs
    need = 0.06 + costs.step_seconds(1) + costs.decode_seconds(1) + 0.01
    submitted = stream.playout.codec.submitted * FRAME
    sim.work.clear()
    stream.playout.playing_since = sim.clock.now - submitted + need - 1e-6
    assert stream.playout.buffered(sim.clock.now) < need
    assert not sim.core.prefill()
    assert sim.work == []
    stream.playout.playing_since = sim.clock.now - submitted + need + 1e-6
    assert sim.core.prefill()
    assert [kind for kind, _ in sim.work] == ["chunk"]


def test_a_paused_listener_forbids_nothing(machine: Callable[..., Machine]) -> None:
    sim = machine(frames=400, lead_limit=1.0, lead_timeout=1000.0)
    deaf = sim.open()
    del sim.heard[deaf]  # takes nothing
    sim.run(lambda: sim.stream(deaf).paused_since is not None)
    sim.rest(30.0)  # its lead is long spent on paper
    newcomer = sim.open(references=LONG_VOICE)
    began = sim.clock.now
    sim.run(lambda: sim.heard[newcomer])
    assert sim.clock.now - began < 2.0


@pytest.mark.parametrize("patient", [False, True])
def test_a_paused_listener_is_waited_for_where_that_is_asked(
    patient: bool, machine: Callable[..., Machine]
) -> None:
    sim = machine(frames=400, lead_limit=1.0, lead_timeout=30.0)
    deaf = sim.open(patient=patient)
    del sim.heard[deaf]  # takes nothing
    sim.run(lambda: sim.stream(deaf).paused_since is not None)
    sim.rest(25.0)
    assert not deaf.ended
    sim.rest(10.0)
    assert deaf.ended is not patient


def test_a_newcomer_gets_in_where_no_stream_is_realtime_any_more(
    machine: Callable[..., Machine],
) -> None:
    sim = machine(frames=400, admit_load=1.0)
    sim.step = lambda streams: 0.02
    speaking = sim.open()
    sim.run(lambda: sim.heard[speaking])
    newcomer = sim.open(references=LONG_VOICE)
    sim.run(lambda: sim.phases()[Phase.PREFILL])
    assert not speaking.ended
    sim.step = lambda streams: 0.06  # more than a frame lasts, from now on
    began = sim.clock.now
    sim.run(lambda: sim.heard[newcomer])
    assert not speaking.ended
    assert sim.clock.now - began < 12 * 1.2  # nine blocks or so, one each second


# Streams of several pieces.


def test_who_speaks_does_not_queue_again_for_the_next_piece(
    machine: Callable[..., Machine],
) -> None:
    """With one slot, a waiting stream must not slip in between two pieces of a running one."""
    sim = machine(frames=60, max_streams=1)
    speaking = sim.open(PIECES)
    sim.run(lambda: sim.heard[speaking])
    waiting = sim.open()
    sim.run(lambda: speaking.ended and waiting.ended)
    assert len(speaking.result(0).segments) >= 3
    assert sim.gap(speaking) == 0
    assert sim.first(waiting) >= sim.heard[speaking][-1].stamps.decoded


def test_the_next_piece_of_a_running_stream_is_read_before_newcomers(
    machine: Callable[..., Machine],
) -> None:
    sim = machine(frames=30, max_streams=4, admit_load=1.0)
    speaking = sim.open(PIECES)
    sim.run(lambda: sim.stream(speaking).frames == 27)
    newcomers = [
        sim.open(references=[(f"Voice {number}.", LONG_VOICE[0][1])]) for number in range(3)
    ]
    # They get their slots first, and alone would read for longer than the listener has audio.
    sim.run(lambda: sim.phases()[Phase.PREFILL] == 3)
    sim.run(lambda: all(speech.ended for speech in (speaking, *newcomers)))
    assert len(speaking.result(0).segments) >= 3
    assert sim.gap(speaking) == 0


def test_a_slow_reference_does_not_hold_up_the_next_piece(machine: Callable[..., Machine]) -> None:
    """References are encoded elsewhere than the prompts of running streams are built."""
    sim = machine()
    sim.slow_encoding = True
    speaking = sim.open(PIECES)
    sim.run(lambda: sim.heard[speaking])
    newcomer = sim.open(references=LONG_VOICE)
    sim.run(lambda: speaking.ended)
    assert sim.gap(speaking) == 0
    assert not sim.heard[newcomer]
    sim.encoding.work()
    sim.run(lambda: newcomer.ended)


def test_a_stream_that_waits_for_text_holds_no_slot(machine: Callable[..., Machine]) -> None:
    sim = machine(frames=5, max_streams=1)
    talker = sim.open("", final=False)
    talker.push_text("Hello. ")
    sim.run(lambda: sim.phases()[Phase.IDLE] == 1 and sim.heard[talker])
    other = sim.open()
    sim.run(lambda: other.ended)
    talker.push_text("Again. ")
    talker.finish()
    sim.run(lambda: talker.ended)
    assert len(talker.result(0).segments) == 2


def test_a_stream_that_had_nothing_to_say_for_a_while_starts_its_clock_again(
    machine: Callable[..., Machine],
) -> None:
    """Its player ran dry because there was no text: that is not a debt to be paid off for ever."""
    sim = machine(frames=100)
    talker = sim.open("", final=False)
    talker.push_text("Hello. ")
    sim.run(lambda: sim.phases()[Phase.IDLE] == 1 and sim.heard[talker])
    sim.rest(60.0)
    talker.push_text("Again. ")
    talker.finish()
    sim.run(lambda: sim.heard[talker][-1].first_frame >= 102)
    assert 0 <= sim.stream(talker).playout.buffered(sim.clock.now) < 1.0
    newcomer = sim.open(references=LONG_VOICE)  # its prompt may be read meanwhile
    sim.run(lambda: talker.ended)
    assert sim.heard[newcomer]
    assert sim.gap(talker, since=100) == 0
    sizes = [c.frames for c in sim.heard[talker] if c.first_frame >= 100]
    assert sizes[0] == 1
    assert max(sizes) == 4


# Many streams.


@pytest.mark.parametrize("streams", [2, 4])
def test_streams_that_are_admitted_hear_no_gap_and_are_treated_alike(
    machine: Callable[..., Machine], streams: int
) -> None:
    sim = machine(frames=120, max_streams=4)
    speeches = [sim.open() for _ in range(streams)]
    began = sim.clock.now
    sim.run(lambda: all(speech.ended for speech in speeches))
    assert [sim.gap(speech) for speech in speeches] == [0] * streams
    ends = [sim.heard[speech][-1].stamps.decoded - began for speech in speeches]
    assert max(ends) < 1.2 * min(ends)


def test_more_than_the_machine_can_do_waits_instead_of_stuttering(
    machine: Callable[..., Machine],
) -> None:
    """Steps of 12 ms a stream and a decode: three would fit into 46 ms, four would not."""
    sim = machine(frames=60, max_streams=8)
    sim.step = lambda streams: 0.010 * streams
    sim.core.warm_up()
    speeches = [sim.open() for _ in range(8)]
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, sim.phases()[Phase.SPEAKING])
        return all(speech.ended for speech in speeches)

    sim.run(done)
    assert most == 3
    assert [sim.gap(speech) for speech in speeches] == [0] * 8
    firsts = [sim.first(speech) for speech in speeches]
    assert firsts == sorted(firsts)


def test_groups_grow_only_as_the_lead_does(machine: Callable[..., Machine]) -> None:
    fast, slow = machine(frames=80), machine(frames=80)
    slow.step = lambda streams: 0.040
    slow.core.warm_up()
    sizes = []
    for sim in (fast, slow):
        speech = sim.open()
        sim.run(lambda speech=speech: speech.ended)
        sizes.append([chunk.frames for chunk in sim.heard[speech]])
        assert sim.gap(speech) == 0
    assert sizes[0][:5] == [1, 1, 1, 2, 4] or sizes[0].index(4) < 12
    assert sizes[1].count(1) > 5 * sizes[0].count(1)


def test_the_lead_is_bounded_by_what_the_listener_takes(machine: Callable[..., Machine]) -> None:
    sim = machine(frames=2000, lead_limit=2.0)
    speech = sim.open()
    del sim.heard[speech]
    chunks, taken, made = iter(speech), 0.0, []
    sim.run(lambda: speech.unread_seconds > 0)
    began = sim.clock.now
    while sim.clock.now - began < 12.0:
        sim.turn()
        while taken < sim.clock.now - began and speech.unread_seconds:  # as fast as it plays
            taken += next(chunks).seconds
        made.append(sim.stream(speech).unread_seconds())
    assert max(made) < 2.0 + 5 * FRAME
    assert min(made[len(made) // 2 :]) > 1.0  # and it continues in good time
    assert sim.stream(speech).phase is Phase.SPEAKING


@pytest.mark.parametrize("seed", range(8))
def test_no_listener_hears_a_gap(machine: Callable[..., Machine], seed: int) -> None:
    """Random arrivals, voices, lengths, cancellations and costs.

    What the pieces to come will have to read is only estimated (here a letter is a token, and a
    piece is soon spoken), so admission leaves a little more room than usual.
    """
    rng = random.Random(seed)
    frames, streams = rng.choice([120, 200]), rng.choice([1, 2, 4, 6])
    sim = machine(frames=frames, max_streams=streams, admit_load=0.7)
    cost, block = rng.uniform(0.002, 0.015), rng.uniform(0.005, 0.03)
    sim.step, sim.chunk = lambda streams: cost * streams, block
    sim.core.warm_up()
    speeches: list[Speech] = []
    for number in range(12):
        rows = rng.choice([0, 100, 600])
        voice = [(f"Voice {number}.", np.full((3, rows), number))] if rows else []
        speech = sim.open(rng.choice([TEXT, PIECES]), references=voice)
        speeches.append(speech)
        sim.rest(rng.choice([0.0, 0.01, 0.5, 2.0]))
        if rng.random() < 0.3:
            rng.choice(speeches).cancel()
    sim.run(lambda: all(speech.ended for speech in speeches))
    gaps = [sim.gap(speech) for speech in speeches if sim.heard[speech]]
    assert gaps == [0.0] * len(gaps)
    assert all(speech.result(0).cancelled or sim.heard[speech] for speech in speeches)


# Small matters of the same loop.


def test_a_piece_that_ends_under_a_pause_hands_no_pause_on(machine: Callable[..., Machine]) -> None:
    """As on CUDA, where the last result may come after the stream was paused."""
    sim = machine(frames=30)
    speech = sim.open(PIECES)
    sim.run(lambda: sim.heard[speech])
    stream = sim.stream(speech)
    while len(stream.codes) < 29:
        sim.turn()
    make = sim.core.runner.frame

    def late(entries: Sequence[Entry]) -> list[FrameResult]:
        results = make(entries)
        if len(stream.codes) == 29 and results:
            stream.paused_since = sim.clock.now
            sim.core.runner.step.activate(stream.slot.index, False)
        return results

    sim.core.runner.frame = late  # type: ignore[method-assign]
    sim.turn()
    assert stream.paused_since is None
    assert stream.phase is not Phase.SPEAKING
    sim.run(lambda: speech.ended)
    frames = sum(chunk.frames for chunk in sim.heard[speech])
    assert frames == speech.result(0).codes.shape[1] > 60


def test_the_first_failure_of_a_stream_is_the_one_that_is_reported(
    machine: Callable[..., Machine],
) -> None:
    sim = machine()
    speech = sim.open()
    del sim.heard[speech]
    stream = sim.stream(speech)
    for error in (RequestError("the cause."), RequestError("the effect.")):
        with stream.isolated():
            raise error
    sim.turn()
    with pytest.raises(RequestError, match="the cause"):
        speech.result(0)


def test_a_take_that_waits_for_text_keeps_its_form_of_step(machine: Callable[..., Machine]) -> None:
    """A faster step may round differently, so it comes between takes only."""
    sim = machine(frames=5)
    assert sim.core.idle
    talker = sim.open("", final=False)
    assert sim.core.idle  # nothing said yet
    talker.push_text("Hello. ")
    sim.run(lambda: sim.phases()[Phase.IDLE] == 1 and sim.heard[talker])
    assert not sim.core.slots.taken
    assert not sim.core.idle
    talker.finish()
    sim.run(lambda: talker.ended)
    assert sim.core.idle
