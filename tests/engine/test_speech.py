"""The handle of one stream: taking chunks in a loop and in asyncio, cancelling, errors, waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

from rt_drama3.engine.events import (
    Audio,
    Done,
    Durations,
    Event,
    Idle,
    Queued,
    Segment,
    SpeechSummary,
    Stamps,
)
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.errors import DeviceError, RequestError, RtDrama3Error

RATE = 1000
JOIN = 20.0  # seconds after which a thread is taken for stuck


class Owner:
    """Notes what a ``Speech`` asks of its engine."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def push(self, speech: Speech, text: str) -> None:
        self.calls.append(f"push {text}")

    def flush(self, speech: Speech) -> None:
        self.calls.append("flush")

    def finish(self, speech: Speech) -> None:
        self.calls.append("finish")

    def cancel(self, speech: Speech) -> None:
        self.calls.append("cancel")

    def consumed(self) -> None:
        self.calls.append("consumed")


def chunk(number: int, seconds: float = 0.5) -> Audio:
    pcm = np.full(round(seconds * RATE), number, dtype=np.float32)
    return Audio(pcm, number, 1, RATE, 0, Stamps(0.0, 0.0, (0.0, 0.0), 0.0))


def summary(cancelled: bool = False) -> SpeechSummary:
    return SpeechSummary(
        segments=(),
        codes=np.zeros((1, 0), dtype=np.int64),
        sample_rate=RATE,
        seed=0,
        complete=not cancelled,
        cancelled=cancelled,
        delivered=0,
        durations=Durations(),
    )


def new_speech() -> tuple[Speech, Owner]:
    owner = Owner()
    return Speech(owner, SpeechRequest("Hello.")), owner


def spoken(*numbers: int, error: RtDrama3Error | None = None) -> Speech:
    """A stream that has ended with chunks still to be taken."""
    speech, _ = new_speech()
    for number in numbers:
        assert speech.put(chunk(number))
    speech.end(None if error else summary(), error)
    return speech


async def take_all(speech: Speech) -> list[int]:
    return [c.first_frame async for c in speech]


class Taker(threading.Thread):
    """Takes chunks in a thread of its own; ``first`` is set by the first one."""

    def __init__(self, speech: Speech) -> None:
        super().__init__(daemon=True)
        self.speech, self.taken = speech, list[int]()
        self.error: BaseException | None = None
        self.first = threading.Event()

    def run(self) -> None:
        try:
            for c in self.speech:
                self.taken.append(c.first_frame)
                self.first.set()
        except RtDrama3Error as error:
            self.error = error

    def finished(self) -> list[int]:
        self.join(JOIN)
        assert not self.is_alive(), "the consumer waits for ever"
        return self.taken


# Taking.


def test_chunks_come_in_order_and_iteration_ends() -> None:
    assert [c.first_frame for c in spoken(0, 1, 2)] == [0, 1, 2]
    assert asyncio.run(take_all(spoken(0, 1, 2))) == [0, 1, 2]


def test_an_empty_stream_ends() -> None:
    assert list(spoken()) == []
    assert asyncio.run(take_all(spoken())) == []


def test_a_second_pass_finds_nothing() -> None:
    speech = spoken(0, 1)
    assert len(list(speech)) == 2
    assert list(speech) == []


def test_iteration_can_be_left_and_taken_up_again() -> None:
    speech = spoken(0, 1, 2)
    for c in speech:
        assert c.first_frame == 0
        break
    assert [c.first_frame for c in speech] == [1, 2]


def test_a_waiting_loop_gets_what_is_delivered_later() -> None:
    speech, owner = new_speech()
    taker = Taker(speech)
    taker.start()
    speech.put(chunk(0))
    assert taker.first.wait(JOIN)
    speech.put(chunk(1))
    speech.end(summary())
    assert taker.finished() == [0, 1]
    assert owner.calls == ["consumed", "consumed"]


def test_a_waiting_coroutine_gets_what_is_delivered_later() -> None:
    speech, owner = new_speech()

    async def scenario() -> list[int]:
        consumer = asyncio.create_task(take_all(speech))
        await asyncio.sleep(0)  # it waits now
        for number in range(3):
            await asyncio.to_thread(speech.put, chunk(number))
        await asyncio.to_thread(speech.end, summary())
        return await asyncio.wait_for(consumer, JOIN)

    assert asyncio.run(scenario(), debug=True) == [0, 1, 2]
    assert owner.calls == ["consumed"] * 3


def test_waiting_does_not_block_the_event_loop() -> None:
    speech, _ = new_speech()

    async def scenario() -> int:
        consumer = asyncio.create_task(take_all(speech))
        turns = 0
        while turns < 50:
            await asyncio.sleep(0)
            turns += 1
        assert not consumer.done()
        speech.end(summary())
        await asyncio.wait_for(consumer, JOIN)
        return turns

    assert asyncio.run(scenario(), debug=True) == 50


def test_a_stream_can_move_to_another_event_loop() -> None:
    speech, _ = new_speech()

    async def one() -> int:
        async for c in speech:
            return c.first_frame
        return -1

    speech.put(chunk(0))
    assert asyncio.run(one()) == 0
    speech.put(chunk(1))
    speech.end(summary())
    assert asyncio.run(take_all(speech)) == [1]


def test_a_cancelled_consumer_leaves_the_stream_usable() -> None:
    speech, _ = new_speech()

    async def scenario() -> list[int]:
        consumer = asyncio.create_task(take_all(speech))
        await asyncio.sleep(0)
        consumer.cancel()
        await asyncio.gather(consumer, return_exceptions=True)
        await asyncio.to_thread(speech.put, chunk(0))  # wakes a future that is gone
        await asyncio.to_thread(speech.end, summary())
        return await asyncio.wait_for(take_all(speech), JOIN)

    assert asyncio.run(scenario(), debug=True) == [0]


@pytest.mark.parametrize("step", ["put", "end", "cancel"])
def test_a_closed_event_loop_is_ignored(step: str) -> None:
    speech, _ = new_speech()

    async def start() -> None:
        consumer = asyncio.create_task(take_all(speech))
        await asyncio.sleep(0)
        consumer.cancel()

    asyncio.run(start())
    {
        "put": lambda: speech.put(chunk(0)),
        "end": lambda: speech.end(summary()),
        "cancel": speech.cancel,
    }[step]()


def test_a_loop_that_closes_at_the_worst_moment_harms_no_others() -> None:
    """It still looks open, and refuses the call: the engine's thread must not feel it."""
    speech, _ = new_speech()

    def closed(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    async def scenario(monkeypatch: pytest.MonkeyPatch) -> None:
        consumer = asyncio.create_task(take_all(speech))
        await asyncio.sleep(0)
        monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", closed)
        assert speech.put(chunk(0))
        speech.end(summary())
        monkeypatch.undo()
        consumer.cancel()

    asyncio.run(scenario(pytest.MonkeyPatch()))
    assert [c.first_frame for c in speech] == [0]


def test_unread_seconds_count_what_was_not_taken() -> None:
    speech, _ = new_speech()
    assert speech.unread_seconds == 0.0
    for number in range(3):
        speech.put(chunk(number, 0.1))
    assert speech.unread_seconds == pytest.approx(0.3)
    taken = iter(speech)
    next(taken)
    assert speech.unread_seconds == pytest.approx(0.2)
    next(taken)
    next(taken)
    assert speech.unread_seconds == 0.0  # exactly, whatever the rounding


# Events.

ORDER = [Queued(1, "load"), Segment(0, "One.", 0, 5, 2), 0, Segment(1, "Two.", 1, 0, 2), 1, Idle()]


def put_order(speech: Speech) -> None:
    for event in ORDER:
        assert speech.put(chunk(event) if isinstance(event, int) else event)


def plain(event: Event) -> object:
    return event.first_frame if isinstance(event, Audio) else event


async def all_events(speech: Speech) -> list[object]:
    return [plain(event) async for event in speech.events()]


@pytest.mark.parametrize(
    "take",
    [
        lambda speech: [plain(event) for event in speech.events()],
        lambda speech: asyncio.run(all_events(speech)),
    ],
)
def test_events_come_in_one_sequence(take: Callable[[Speech], list[object]]) -> None:
    speech, owner = new_speech()
    put_order(speech)
    end = summary()
    speech.end(end)
    assert speech.pending == len(ORDER)
    assert take(speech) == [*ORDER, Done(end)]
    assert owner.calls == ["consumed", "consumed"]


def test_iterating_the_speech_skips_the_other_events() -> None:
    speech, _ = new_speech()
    put_order(speech)
    speech.end(summary())
    assert [c.first_frame for c in speech] == [0, 1]


def test_unread_positions_and_idle_events_coalesce() -> None:
    speech, _ = new_speech()
    for position in (3, 2, 1):
        speech.put(Queued(position, "load"))
    speech.put(Segment(0, "One.", 0, 0, 1))
    speech.put(Idle())
    speech.put(Idle())
    speech.end(summary())
    expected = [Queued(1, "load"), Segment(0, "One.", 0, 0, 1), Idle()]
    assert [plain(event) for event in speech.events()][:-1] == expected


def test_admission_withdraws_an_unread_position() -> None:
    speech, _ = new_speech()
    speech.put(Queued(0, "max_streams"))
    speech.admitted()
    speech.end(summary())
    assert [type(event) for event in speech.events()] == [Done]
    assert speech.waited_for == "max_streams"


def test_after_cancel_only_done_comes() -> None:
    speech, _ = new_speech()
    events = iter(speech.events())
    put_order(speech)
    assert next(events) == ORDER[0]
    speech.cancel()
    assert not speech.put(Idle())
    end = summary(cancelled=True)
    threading.Timer(0.01, speech.end, (end,)).start()
    assert list(events) == [Done(end)]


def test_events_raise_the_error_that_ended_the_stream() -> None:
    events = iter(spoken(0, error=DeviceError("broken.")).events())
    assert plain(next(events)) == 0
    with pytest.raises(DeviceError, match="broken"):
        next(events)


# Cancelling.


def test_after_cancel_nothing_is_delivered() -> None:
    speech, owner = new_speech()
    speech.put(chunk(0))
    speech.cancel()
    assert owner.calls == ["cancel"]
    assert speech.unread_seconds == 0.0
    assert not speech.put(chunk(1))
    assert list(speech) == []
    assert asyncio.run(take_all(speech)) == []


def test_cancel_ends_a_loop_that_waits() -> None:
    speech, _ = new_speech()
    taker = Taker(speech)
    taker.start()
    speech.put(chunk(0))
    assert taker.first.wait(JOIN)
    speech.cancel()  # the engine has not even noticed
    assert taker.finished() == [0]


def test_cancel_ends_a_coroutine_that_waits() -> None:
    speech, _ = new_speech()

    async def scenario() -> list[int]:
        consumer = asyncio.create_task(take_all(speech))
        await asyncio.sleep(0)
        await asyncio.to_thread(speech.cancel)
        return await asyncio.wait_for(consumer, JOIN)

    assert asyncio.run(scenario(), debug=True) == []


def test_cancel_from_within_the_loop_ends_it() -> None:
    speech = spoken(0, 1, 2)
    taken = []
    for c in speech:
        taken.append(c.first_frame)
        speech.cancel()
    assert taken == [0]


def test_cancel_may_be_called_again_and_after_the_end() -> None:
    speech = spoken(0)
    speech.cancel()
    speech.cancel()
    assert list(speech) == []
    assert not speech.result(0).cancelled  # it had ended by itself


def test_cancel_silences_an_error() -> None:
    speech = spoken(error=DeviceError("broken."))
    speech.cancel()
    assert list(speech) == []


# Errors and ends.


@pytest.mark.parametrize("consume", [list, lambda speech: asyncio.run(take_all(speech))])
def test_an_error_comes_after_what_was_delivered(consume: Callable[[Speech], object]) -> None:
    speech = spoken(0, 1, error=RequestError("too long."))
    taken = iter(speech)
    assert [next(taken).first_frame, next(taken).first_frame] == [0, 1]
    with pytest.raises(RequestError, match="too long"):
        next(taken)
    with pytest.raises(RequestError, match="too long"):
        consume(speech)  # and again, for every caller
    with pytest.raises(RequestError, match="too long"):
        speech.result(0)


def test_an_error_reaches_a_loop_that_waits() -> None:
    speech, _ = new_speech()
    taker = Taker(speech)
    taker.start()
    speech.end(None, DeviceError("gone."))
    assert taker.finished() == []
    assert isinstance(taker.error, DeviceError)


def test_only_the_first_end_counts() -> None:
    speech = spoken(0)
    speech.end(None, DeviceError("late."))
    assert [c.first_frame for c in speech] == [0]
    assert speech.result(0).complete


def test_nothing_is_delivered_after_the_end() -> None:
    speech = spoken()
    assert not speech.put(chunk(0))
    assert list(speech) == []


def test_ended() -> None:
    speech, _ = new_speech()
    assert not speech.ended
    speech.end(summary())
    assert speech.ended


def test_result_waits_no_longer_than_asked() -> None:
    speech, _ = new_speech()
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match=f"within {timeout} s"):
            speech.result(timeout)


def test_result_comes_when_the_stream_ends() -> None:
    speech, _ = new_speech()
    results: list[SpeechSummary] = []
    waiter = threading.Thread(target=lambda: results.append(speech.result()), daemon=True)
    waiter.start()
    end = summary()
    speech.end(end)
    waiter.join(JOIN)
    assert results == [end]


def test_result_does_not_need_the_chunks_to_be_taken() -> None:
    speech = spoken(0, 1)
    assert speech.result(0).complete
    assert [c.first_frame for c in speech] == [0, 1]


def test_text_goes_to_the_engine() -> None:
    speech, owner = new_speech()
    speech.push_text("More.")
    speech.flush()
    speech.finish()
    assert owner.calls == ["push More.", "flush", "finish"]


def test_a_chunk_knows_its_duration() -> None:
    assert chunk(0, 0.25).seconds == 0.25
