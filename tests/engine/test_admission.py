"""Which streams count, which are refused, whose turn it is: on a simulated machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rt_drama3.engine.admission import KEPT_SECONDS
from rt_drama3.errors import Overloaded, RequestError
from tests.engine.simulation import FRAME, Machine

Make = Callable[..., Machine]


def test_silent_streams_keep_no_others_out(machine: Make) -> None:
    sim = machine(frames=20, max_streams=1, max_queue=1, max_silent=5)
    silent = [sim.open("", final=False) for _ in range(5)]
    speaking = [sim.open(), sim.open()]
    with pytest.raises(Overloaded, match=r"2 streams active or queued \(limit 2 = "):
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
        with pytest.raises(Overloaded, match="1 streams active"):
            silent.push_text("Refused, both of it. And this. ")
    silent.push_text("")  # asks for nothing
    speaking.cancel()
    silent.push_text("Taken.")
    silent.finish()
    sim.run(lambda: silent.ended)
    assert [text for text, _ in silent.result(0).segments] == ["Taken."]


def test_a_pause_within_an_answer_costs_no_place(machine: Make) -> None:
    sim = machine(frames=20, max_streams=1, max_queue=0)
    answer = sim.open("", final=False)
    answer.push_text("A sentence. ")
    sim.run(lambda: sim.heard[answer])
    sim.run(lambda: sim.idle(answer))
    sim.rest(KEPT_SECONDS - 0.5)
    with pytest.raises(Overloaded):
        sim.open()
    answer.push_text("And one ")  # no whole sentence, and yet it is text to come
    sim.rest(KEPT_SECONDS - 0.5)
    with pytest.raises(Overloaded):
        sim.open()
    answer.push_text("more. ")
    sim.run(lambda: len(sim.segments[answer]) == 2 and sim.idle(answer))
    sim.rest(2 * 20 * FRAME + KEPT_SECONDS + 0.1)  # both are heard, and more
    other = sim.open()  # now it counts as silent
    with pytest.raises(Overloaded):
        answer.push_text("A third. ")
    sim.run(lambda: other.ended)
    answer.push_text("A third. ")
    answer.finish()
    sim.run(lambda: answer.ended)
    assert len(answer.result(0).segments) == 3


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


def test_a_place_is_kept_while_a_listener_reads(machine: Make) -> None:
    """What is made faster than it plays is heard long after it was made."""
    sim = machine(frames=200, max_streams=1, max_queue=0)
    answer = sim.open("", final=False)
    answer.push_text("It is made in one second and plays for nine. ")
    sim.run(lambda: sim.idle(answer))
    sim.rest(sim.first(answer) + 200 * FRAME - sim.clock.now + KEPT_SECONDS - 0.2)
    with pytest.raises(Overloaded):
        sim.open()
    sim.rest(0.4)
    sim.open()


def test_audio_that_was_not_read_keeps_its_place(machine: Make) -> None:
    sim = machine(frames=20, max_streams=1, max_queue=0)
    slow = sim.open("", final=False)
    chunks = sim.heard.pop(slow)  # takes nothing yet
    slow.push_text("Hello there. ")
    sim.run(lambda: sim.idle(slow))
    sim.rest(60)
    with pytest.raises(Overloaded):
        sim.open()
    sim.heard[slow] = chunks
    sim.turn()
    sim.open()


def test_the_beginning_of_a_sentence_has_a_place(machine: Make) -> None:
    sim = machine(frames=20, max_streams=1, max_queue=0)
    sim.open("It begins", final=False)
    with pytest.raises(Overloaded):
        sim.open()


def test_text_that_waits_for_its_turn_has_a_place(machine: Make) -> None:
    sim = machine(frames=20, max_streams=1, max_queue=0)
    stream = sim.open("", final=False)
    stream.push_text("It begins")
    sim.rest(KEPT_SECONDS + 0.5)
    stream.flush()
    with pytest.raises(Overloaded):
        sim.open()


def test_white_space_and_text_behind_the_end_ask_for_nothing(machine: Make) -> None:
    sim = machine(frames=20, max_streams=1, max_queue=0)
    silent, ended = sim.open("", final=False), sim.open("", final=False)
    silent.push_text(" \n")
    ended.finish()
    speaking = sim.open()
    with pytest.raises(RequestError, match="finished"):
        ended.push_text("Too late.")
    silent.push_text(" ")
    assert not speaking.ended


def test_open_streams_are_bounded_whatever_they_did(machine: Make) -> None:
    sim = machine(frames=5, max_streams=1, max_queue=1, max_silent=2)
    for _ in range(4):
        stream = sim.open("Hi. ", final=False)
        sim.run(lambda stream=stream: sim.heard[stream] and sim.idle(stream))
        sim.rest(KEPT_SECONDS + 1)
    with pytest.raises(Overloaded, match=r"4 streams open \(limit 4 = .*max_silent"):
        sim.open()
    stream.cancel()
    sim.open()


def test_a_silent_stream_that_speaks_queues_like_a_newcomer(machine: Make) -> None:
    """In the order in which text came, not in that of opening; also one that has spoken before."""
    sim = machine(frames=40, max_streams=1)
    old, older = sim.open("", final=False), sim.open("", final=False)
    older.push_text("Hello there. ")
    sim.run(lambda: sim.heard[older] and sim.idle(older))
    sim.rest(60)
    speaking = sim.open()
    sim.run(lambda: sim.heard[speaking])
    waiting = [sim.open(), sim.open()]
    sim.run(lambda: sim.position(waiting[1]) == 1)
    for late in (old, older):
        late.push_text("I come last. ")
    sim.run(lambda: sim.position(older) is not None)
    assert [sim.position(s) for s in (*waiting, old, older)] == [0, 1, 2, 3]


def test_who_speaks_again_after_a_silence_is_admitted_by_the_load(machine: Make) -> None:
    sim = machine(frames=100, max_streams=4)
    sim.step = lambda streams: 0.018 * streams  # two of them are realtime
    bots = [sim.open("", final=False) for _ in range(4)]
    for bot in bots:
        bot.push_text("Hi. ")
        sim.run(lambda bot=bot: sim.heard[bot] and sim.idle(bot))
    sim.rest(60)
    for bot in bots:
        bot.push_text("And now all three. ")
    sim.run(lambda: all(sim.idle(bot) and len(sim.segments[bot]) == 2 for bot in bots))
    assert [sim.gap(bot, since=100) for bot in bots] == [0.0] * 4


def test_bots_that_speak_now_and_then_do_not_shut_a_newcomer_out(machine: Make) -> None:
    sim = machine(frames=80, max_streams=2, max_queue=30)
    sim.step = lambda streams: 0.02 * streams
    bots = [sim.open("", final=False) for _ in range(12)]
    due = {bot: sim.clock.now + 0.8 * number for number, bot in enumerate(bots)}

    def talk() -> None:
        for bot in bots:
            if bot in due and sim.clock.now >= due[bot]:
                bot.push_text("Hello there again. ")
                del due[bot]
            elif bot not in due and sim.idle(bot):
                lead = sim.stream(bot).playout.buffered(sim.clock.now)
                due[bot] = sim.clock.now + max(0.0, lead) + 6

    began = sim.clock.now
    while sim.clock.now < began + 30:
        sim.turn(idle=0.02)
        talk()
    newcomer = sim.open()
    while not sim.heard[newcomer]:
        sim.turn(idle=0.02)
        talk()
        assert sim.clock.now < began + 60


def test_connections_that_are_silent_do_not_put_off_a_faster_step(machine: Make) -> None:
    sim = machine(frames=20)
    bot = sim.open("", final=False)
    bot.push_text("Hi. ")
    sim.run(lambda: sim.heard[bot] and sim.idle(bot))
    assert not sim.core.idle
    sim.rest(60)
    assert sim.core.idle


def test_a_stream_without_text_has_no_memory_of_the_codec(machine: Make) -> None:
    sim = machine(frames=20)
    silent = sim.open("", final=False)
    sim.rest(1)
    before = sim.states
    silent.push_text("Hi. ")
    sim.run(lambda: sim.heard[silent])
    assert sim.states == before + 1


def test_a_flush_after_a_silence_queues_like_a_newcomer(machine: Make) -> None:
    sim = machine(frames=200, max_streams=1, max_queue=1, max_silent=10)
    half = [sim.open("", final=False) for _ in range(3)]
    for stream in half:
        stream.push_text("half a")
        sim.rest(KEPT_SECONDS + 0.1)
    speaking = sim.open()
    sim.run(lambda: sim.heard[speaking])
    newcomer = sim.open()
    sim.run(lambda: sim.position(newcomer) == 0)
    half[0].flush()
    half[1].finish()
    sim.run(lambda: sim.position(half[1]) is not None)
    assert [sim.position(s) for s in (newcomer, *half[:2])] == [0, 1, 2]
