"""Who counts as a stream that speaks, and who is refused (on a simulated machine)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rt_drama3.engine_places import KEPT_SECONDS
from rt_drama3.errors import Overloaded
from tests.simulation import Machine

Make = Callable[..., Machine]


def test_silent_streams_keep_nobody_out(machine: Make) -> None:
    sim = machine(frames=20, max_streams=1, max_queue=1, max_silent=5)
    silent = [sim.open("", final=False) for _ in range(5)]
    speaking = [sim.open(), sim.open()]
    with pytest.raises(Overloaded, match=r"2 streams speak or wait to.*max_streams \+ max_queue"):
        sim.open()
    with pytest.raises(Overloaded, match=r"5 streams wait for text.*max_silent"):
        sim.open("", final=False)
    sim.run(lambda: all(speech.ended for speech in speaking))
    for speech in silent:
        speech.push_text("Hello there. ")
        sim.run(lambda speech=speech: sim.heard[speech])
        speech.finish()
        sim.run(lambda speech=speech: speech.ended)


def test_text_for_a_silent_stream_is_refused_whole_where_all_places_are_taken(
    machine: Make,
) -> None:
    sim = machine(frames=20, max_streams=1, max_queue=0)
    silent, speaking = sim.open("", final=False), sim.open()
    for _ in range(2):
        with pytest.raises(Overloaded, match="1 streams speak"):
            silent.push_text("Refused, both of it. And this. ")
    silent.push_text("")  # asks for nothing
    speaking.cancel()
    silent.push_text("Taken.")
    silent.finish()
    sim.run(lambda: silent.ended)
    assert [text for text, _ in silent.segments] == ["Taken."]


def test_a_pause_within_an_answer_costs_no_place(machine: Make) -> None:
    sim = machine(frames=20, max_streams=1, max_queue=0)
    answer = sim.open("", final=False)
    answer.push_text("A sentence. ")
    sim.run(lambda: sim.heard[answer])
    sim.run(lambda: answer.resting)
    sim.rest(KEPT_SECONDS - 0.5)
    with pytest.raises(Overloaded):
        sim.open()
    answer.push_text("And one ")  # no whole sentence, and yet it is text to come
    sim.rest(KEPT_SECONDS - 0.5)
    with pytest.raises(Overloaded):
        sim.open()
    answer.push_text("more. ")
    sim.run(lambda: len(answer.segments) == 2 and answer.resting)
    sim.rest(KEPT_SECONDS + 0.5)
    other = sim.open()  # now it counts as silent
    with pytest.raises(Overloaded):
        answer.push_text("A third. ")
    sim.run(lambda: other.ended)
    answer.push_text("A third. ")
    answer.finish()
    sim.run(lambda: answer.ended)
    assert len(answer.segments) == 3


def test_a_stream_that_speaks_for_long_keeps_its_place(machine: Make) -> None:
    sim = machine(frames=400, max_streams=1, max_queue=0)
    long = sim.open("", final=False)
    long.push_text("It takes twenty seconds. ")
    sim.run(lambda: sim.heard[long])
    sim.step = lambda streams: 0.02
    sim.run(lambda: sim.clock.now - sim.first(long) > 1.2 * KEPT_SECONDS)
    assert not long.ended
    with pytest.raises(Overloaded):
        sim.open()


def test_silent_streams_can_be_forbidden(machine: Make) -> None:
    sim = machine(frames=20, max_silent=0)
    with pytest.raises(Overloaded, match="max_silent"):
        sim.open("", final=False)
    assert sim.open("It has text. ", final=False) is not None
