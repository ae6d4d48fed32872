"""Cancelling at any moment, listeners that do not read, and nothing left behind by many takes."""

from __future__ import annotations

import gc
import os
import sys
import threading

import pytest

from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.errors import RequestError
from tests.small import WAIT, Frames, codes_of, heard, running, say, shared_drama, until

TEXT = "Hello there."


@pytest.mark.parametrize("after", [1, 2, 5])
def test_after_cancel_at_most_one_more_frame_is_made(after: int) -> None:
    with running(shared_drama()) as engine:
        frames = Frames(engine)
        frames.hold()
        speech = say(engine, TEXT, max_frames=None)
        frames.allow(after)
        until(lambda: frames.made[speech] == after)
        speech.cancel()  # the next frame may be on its way
        frames.allow(10)
        summary = speech.result(WAIT)
        assert summary.cancelled
        assert not summary.complete
        assert frames.made[speech] <= after + 1
        assert list(speech) == []


def test_a_cancelled_streams_slot_is_free_immediately() -> None:
    with running(shared_drama(), max_streams=1) as engine:
        frames = Frames(engine)
        expected = codes_of(say(engine, "Another.", seed=3))
        frames.hold()
        speech = say(engine, TEXT, max_frames=None)
        frames.wait_for_one()
        following = say(engine, "Another.", seed=3)
        speech.cancel()
        frames.allow()  # the one frame that was on its way
        frames.allow(1)
        until(lambda: frames.made[following] == 1, "the next stream")
        frames.free()
        assert (codes_of(following) == expected).all()


@pytest.mark.parametrize("phase", ["idle", "preparing", "waiting", "prefill", "speaking"])
def test_cancel_in_every_phase(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drama = shared_drama()
    entered, leave = threading.Event(), threading.Event()

    def slow(references: object) -> list:
        entered.set()
        assert leave.wait(WAIT)
        return []

    with running(drama, max_streams=1) as engine:
        expected = codes_of(say(engine, TEXT, seed=1))
        frames, blocker = Frames(engine), None
        if phase == "idle":
            speech = engine.open(SpeechRequest(final=False))
        elif phase == "preparing":
            monkeypatch.setattr(drama.references, "codes", slow)
            speech = say(engine, TEXT, max_frames=None, references=[("Words.", b"audio")])
            assert entered.wait(WAIT)
        elif phase == "waiting":
            blocker = say(engine, TEXT, max_frames=None)
            until(lambda: frames.made[blocker] > 0)
            speech = say(engine, TEXT, max_frames=None)
            until(lambda: engine.streams()["waiting"] == 1)
        elif phase == "prefill":
            engine.core.prefill = lambda: False  # type: ignore[method-assign]
            speech = say(engine, TEXT, max_frames=None)
            until(lambda: engine.streams()["prefill"] == 1)
            del engine.core.prefill
        else:
            speech = say(engine, TEXT, max_frames=None)
            until(lambda: frames.made[speech] > 2)
        speech.cancel()
        assert speech.result(WAIT).cancelled
        assert list(speech) == []
        if phase in ("idle", "preparing", "waiting"):
            assert frames.made[speech] == 0
        leave.set()
        if blocker is not None:
            blocker.cancel()
        assert (codes_of(say(engine, TEXT, seed=1)) == expected).all()
        until(lambda: not any(engine.streams().values()))


def test_a_stream_cancelled_while_it_is_decoded_delivers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drama = shared_drama()
    entered, leave = threading.Event(), threading.Event()
    decode = drama.codec.decode_step

    def slow(*args: object) -> object:
        entered.set()
        assert leave.wait(WAIT)
        return decode(*args)  # type: ignore[arg-type]

    with running(drama) as engine:
        monkeypatch.setattr(drama.codec, "decode_step", slow)
        speech = say(engine, TEXT, max_frames=4)
        assert entered.wait(WAIT)
        speech.cancel()
        leave.set()
        assert speech.result(WAIT).delivered == 0
        assert list(speech) == []


def test_a_cancelled_stream_does_not_wait_for_the_decoding_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end stands before what others have queued at the codec."""
    drama = shared_drama()
    entered, leave = threading.Event(), threading.Event()
    decode, calls = drama.codec.decode_step, []

    def slow(*args: object) -> object:
        calls.append(1)
        entered.set()
        assert leave.wait(WAIT)
        return decode(*args)  # type: ignore[arg-type]

    with running(drama) as engine:
        monkeypatch.setattr(drama.codec, "decode_step", slow)
        frames, busy = Frames(engine), say(engine, TEXT, max_frames=20)
        assert entered.wait(WAIT)
        late = say(engine, TEXT, max_frames=None)
        until(lambda: frames.made[late] > 3 and frames.made[busy] >= 15)
        late.cancel()
        ended: list[int] = []
        waiter = threading.Thread(target=lambda: ended.append(late.result(WAIT) and len(calls)))
        waiter.start()
        until(lambda: frames.made[late] and engine.streams()["speaking"] <= 1)
        leave.set()
        waiter.join(WAIT)
        total = busy.result(WAIT) and len(calls)
        assert ended
        assert ended[0] < total


def test_a_consumer_that_raises_disturbs_no_others() -> None:
    with running(shared_drama()) as engine:
        expected = codes_of(say(engine, TEXT, seed=1, max_frames=30))
        other = say(engine, TEXT, seed=1, max_frames=30)
        broken = say(engine, TEXT, max_frames=None)

        def consume() -> None:
            for _ in broken:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            consume()
        assert (codes_of(other) == expected).all()
        broken.cancel()


# Listeners.


def test_a_listener_that_does_not_read_pauses_its_own_stream_alone() -> None:
    with running(shared_drama(), lead_limit=0.5, lead_timeout=600.0) as engine:
        frames = Frames(engine)
        expected = heard(say(engine, TEXT, seed=1, max_frames=60))[1].codes
        deaf = say(engine, TEXT, seed=1, max_frames=60)
        until(lambda: deaf.unread_seconds > 0.5)
        pcm, summary = heard(say(engine, TEXT, seed=2, max_frames=60))  # the others continue
        assert summary.delivered == 60
        frame = 1 / shared_drama().codec.config.frame_rate
        made = frames.made[deaf]
        # The limit, the group that crosses it, and what was gathered behind that.
        assert 0.5 / frame <= made <= 0.5 / frame + 3 * engine.config.codec_batch_frames
        assert engine.streams()["speaking"] == 1
        pcm, summary = heard(deaf)  # it reads again, and misses nothing
        assert (summary.codes == expected).all()
        assert len(pcm) == 60 * shared_drama().codec.config.frame_samples


def test_a_listener_that_never_reads_is_ended_with_the_reason() -> None:
    with running(shared_drama(), lead_limit=0.3, lead_timeout=0.2) as engine:
        deaf = say(engine, TEXT, max_frames=None)
        assert heard(say(engine, TEXT, max_frames=40))[1].delivered == 40
        with pytest.raises(RequestError, match=r"took no audio for 0\.2 s \(lead_timeout\)"):
            deaf.result(WAIT)
        taken = []
        with pytest.raises(RequestError, match="lead_timeout"):
            taken.extend(chunk.seconds for chunk in deaf)  # what was made is still there
        assert sum(taken) >= 0.3


def test_a_slow_listener_is_not_taken_for_one_that_never_reads() -> None:
    """Each chunk that it takes starts the clock again, though it stays paused all the time."""
    with running(shared_drama(), lead_limit=2.0, lead_timeout=0.6) as engine:
        speech = say(engine, TEXT, max_frames=200)
        until(lambda: speech.unread_seconds > 2.0)
        paused = next(iter(engine.core.streams.values()))
        until(lambda: paused.paused_since is not None)
        began, chunks = paused.paused_since, iter(speech)
        while paused.paused_since == began:
            next(chunks)
            threading.Event().wait(0.02)
            engine.core.consumed()
        assert paused.paused_since is None or paused.paused_since > began
        speech.cancel()


def test_frames_that_wait_for_a_slow_codec_count_as_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a long text would be made at full speed into an unbounded queue."""
    drama = shared_drama()
    leave, decode = threading.Event(), drama.codec.decode_step

    def slow(*args: object) -> object:
        assert leave.wait(WAIT)
        return decode(*args)  # type: ignore[arg-type]

    with running(drama, lead_limit=0.5, lead_timeout=600.0) as engine:
        frames = Frames(engine)
        monkeypatch.setattr(drama.codec, "decode_step", slow)
        speech = say(engine, TEXT, max_frames=100)
        stream = next(iter(engine.core.streams.values()))
        until(lambda: stream.paused_since is not None, "pausing")
        assert frames.made[speech] < 30
        leave.set()
        assert sum(chunk.frames for chunk in speech) == 100


# Leaks.


def resources() -> tuple[int, int]:
    """Threads and open files of this process."""
    files = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    return threading.active_count(), files


def test_a_thousand_openings_leave_nothing_behind() -> None:
    with running(shared_drama(), max_streams=2, max_queue=2000) as engine:

        def cycles(count: int) -> None:
            for number in range(count):
                speech = say(engine, TEXT, max_frames=None)
                if number % 8 == 0:
                    next(iter(speech))
                speech.cancel()
            speech.result(WAIT)
            until(lambda: not any(engine.streams().values()))
            gc.collect()

        cycles(200)
        before, objects = resources(), len(gc.get_objects())
        cycles(1000)
        assert resources() == before
        assert len(gc.get_objects()) - objects < 500  # less than one for every other cycle
        assert not engine.core.streams
        assert not engine.core.slots.taken


def test_hundreds_of_short_takes_leave_nothing_behind() -> None:
    psutil = pytest.importorskip("psutil")
    with running(shared_drama(), max_streams=4, max_queue=1000) as engine:
        process = psutil.Process()

        def takes(count: int) -> None:
            speeches = [say(engine, "Hi.", seed=n, max_frames=1 + n % 2) for n in range(count)]
            for number, speech in enumerate(speeches):
                assert sum(chunk.frames for chunk in speech) == 1 + number % 2
            gc.collect()

        takes(60)
        before, memory = resources(), process.memory_info().rss
        for _ in range(3):
            takes(80)
        assert resources() == before
        assert process.memory_info().rss - memory < 30e6
        until(lambda: not any(engine.streams().values()))


def test_engines_come_and_go() -> None:
    before = resources()
    for _ in range(5):
        with running(shared_drama(), context=256) as engine:
            assert codes_of(say(engine, TEXT, max_frames=2)).shape[1] == 2
    assert resources() == before
