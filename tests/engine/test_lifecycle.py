"""The engine from outside: overload, opening and closing, and programs that just end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import rt_drama3
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.scheduling import Estimate
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.errors import DeviceError, Overloaded, RequestError
from tests.small import (
    TEXTS,
    WAIT,
    Frames,
    codes_of,
    position,
    running,
    say,
    shared_drama,
    small_directory,
    until,
)

# Overload.


def test_more_than_fits_waits_with_a_position_and_is_served_in_order() -> None:
    with running(shared_drama(), max_streams=1, max_queue=3) as engine:
        frames = Frames(engine)
        frames.hold()
        speaking = say(engine, TEXTS[0], max_frames=None)
        frames.wait_for_one()
        waiting = [say(engine, text) for text in TEXTS[1:4]]
        with pytest.raises(Overloaded, match=r"4 streams active.*max_streams \+ max_queue"):
            say(engine, TEXTS[4])
        frames.allow_until(lambda: [position(engine, s) for s in waiting] == [0, 1, 2], "queueing")
        assert position(engine, speaking) is None
        waiting[0].cancel()
        frames.allow_until(
            lambda: [position(engine, s) for s in waiting[1:]] == [0, 1], "moving up"
        )
        say(engine, TEXTS[4]).cancel()  # there is room again
        frames.free()
        order = [next(iter(speaking)).stamps.sampled[0]]
        speaking.cancel()
        for speech in waiting[1:]:
            order.append(next(iter(speech)).stamps.sampled[0])
        assert order == sorted(order)


def test_a_cancelled_stream_takes_no_place() -> None:
    """Also before the engine has had time to notice."""
    with running(shared_drama(), max_streams=1, max_queue=1) as engine:
        frames = Frames(engine)
        frames.hold()
        say(engine, TEXTS[0])
        frames.wait_for_one()
        for _ in range(10):
            say(engine, TEXTS[1]).cancel()
        frames.free()


def test_streams_that_would_not_stay_realtime_wait() -> None:
    with running(shared_drama(), max_streams=4, admit_load=0.5) as engine:
        frames = Frames(engine)
        frame = 1 / shared_drama().codec.config.frame_rate
        frames.hold()
        first = say(engine, TEXTS[0], max_frames=100)
        frames.wait_for_one()
        for streams, load in ((1, 0.2), (2, 0.4), (3, 0.6), (4, 0.8)):
            engine.core.costs.step[streams] = Estimate(load * frame)
        for estimate in engine.core.costs.decode.values():
            estimate.seconds = 0.0
        second, third = say(engine, TEXTS[1]), say(engine, TEXTS[2])
        frames.allow_until(lambda: position(engine, third) == 0, "waiting")
        assert position(engine, second) is None
        frames.free()
        assert [codes_of(s).shape[1] for s in (first, second, third)] == [100, 8, 8]


# Opening and closing.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text": ""}, "text is empty"),
        ({"text": "a", "max_frames": 0}, "max_frames is 0; it must be at least 1"),
        ({"text": "a", "max_frames": 2.5}, "max_frames is 2.5; it must be a whole number"),
        ({"text": "a", "seed": 1.0}, "seed is 1.0; it must be a whole number"),
        ({"text": "a", "seed": "x"}, "seed is 'x'"),
        ({"text": "a", "temperature": float("nan")}, "temperature is nan"),
        ({"text": "a", "top_p": 0.0}, "top_p is 0.0"),
        ({"text": "a", "top_k": 0}, "top_k is 0"),
        ({"text": "<|im_end|>"}, "structure"),
    ],
)
def test_a_request_that_cannot_be_spoken_is_refused_immediately(
    engine: Engine, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        engine.open(SpeechRequest(**settings))
    assert sum(engine.streams().values()) == 0


def test_phases_are_reported(engine: Engine) -> None:
    assert set(engine.streams()) == {"idle", "preparing", "waiting", "prefill", "speaking", "done"}
    until(lambda: not any(engine.streams().values()))
    frames = Frames(engine)
    frames.hold()
    speech = say(engine, TEXTS[0])
    frames.wait_for_one()
    assert engine.streams()["speaking"] == 1
    frames.free()
    speech.result(WAIT)
    until(lambda: not any(engine.streams().values()))


def test_close_ends_running_and_waiting_streams() -> None:
    with running(shared_drama(), max_streams=1) as engine:
        frames = Frames(engine)
        speaking = say(engine, TEXTS[0], max_frames=None)
        waiting = say(engine, TEXTS[1])
        idle = engine.open(SpeechRequest(final=False))
        until(lambda: frames.made[speaking] >= 2)
        engine.close()
        for speech in (speaking, waiting, idle):
            with pytest.raises(DeviceError, match="closed"):
                list(speech)
            with pytest.raises(DeviceError, match="closed"):
                speech.result(0)
        engine.close()  # again
        with pytest.raises(Overloaded, match="shutting down"):
            say(engine, TEXTS[0])
        speaking.cancel()
        speaking.flush()
        speaking.finish()
        with pytest.raises(RequestError, match="ended"):
            speaking.push_text("More.")


def test_close_while_a_prompt_is_being_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    drama = shared_drama()
    entered, leave = threading.Event(), threading.Event()

    def slow(references: object) -> list[Any]:
        entered.set()
        assert leave.wait(WAIT)
        return []

    monkeypatch.setattr(drama.references, "codes", slow)
    with running(drama) as engine:
        clip = [("Words.", b"audio")]  # references are prepared in parallel with the device thread
        speech = say(engine, TEXTS[0], references=clip)
        second = say(engine, TEXTS[1], references=clip)
        assert entered.wait(WAIT)
        closing = threading.Thread(target=engine.close)
        closing.start()
        for ended in (speech, second):
            with pytest.raises(DeviceError, match="closed"):
                ended.result(WAIT)  # although its preparation still runs
        leave.set()
        closing.join(WAIT)
        assert not closing.is_alive()


def test_a_drama_that_was_closed_opens_again() -> None:
    config = EngineConfig(step_mode="eager", context=512)
    drama = Drama3(shared_drama().loaded, config)
    takes = []
    for _ in range(2):
        takes.append(drama.generate(TEXTS[0], seed=1, max_frames=5).codes)
        drama.close()
        drama.close()
    assert np.array_equal(takes[0], takes[1])


def test_generate_ends_its_stream_when_the_callback_raises() -> None:
    drama = rt_drama3.load(small_directory(), device="cpu", dtype="float32")

    def progress(done: int, pieces: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drama.generate(TEXTS[0], max_frames=2000, progress=progress)
    until(lambda: not any(drama.engine.streams().values()))
    assert drama.generate(TEXTS[0], max_frames=3).codes.shape[1] == 3
    drama.close()


def test_leaving_a_stream_early_cancels_it() -> None:
    drama = rt_drama3.load(small_directory(), device="cpu", dtype="float32")
    for chunk in drama.stream(TEXTS[0], max_frames=2000):
        assert chunk.first_frame == 0
        break
    until(lambda: not any(drama.engine.streams().values()))
    drama.close()


@pytest.mark.slow
def test_a_program_may_end_while_a_stream_speaks() -> None:
    """Without closing anything: no hang, no abort, nothing on stderr."""
    program = (
        "import sys, rt_drama3\n"
        "drama = rt_drama3.load(sys.argv[1], device='cpu')\n"
        "stream = drama.stream('Hello there. ' * 60)\n"
        "print(next(stream).frames)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "RT_DRAMA3_STEP_MODE": "eager"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(small_directory())],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
