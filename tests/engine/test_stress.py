"""Many clients in many threads in parallel: every stream must end, and end right."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from rt_drama3.engine.engine import Engine
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.errors import Overloaded, RequestError
from tests.small import WAIT, codes_of, ending_drama, expected_codes, running, say, until

TEXTS = ("Hello there.", "Why not?", "Hm.")
MOST = 10  # frames of a take


class Client(threading.Thread):
    """One client; what went wrong is in ``problem``."""

    def __init__(self, engine: Engine, seed: int, rounds: int) -> None:
        super().__init__(daemon=True)
        self.engine, self.rng, self.rounds = engine, random.Random(seed), rounds
        self.problem: BaseException | None = None

    def run(self) -> None:
        acts = (self.whole, self.whole, self.barge_in, self.drop, self.words, self.coroutine)
        try:
            for _ in range(self.rounds):
                with suppress(Overloaded):
                    self.rng.choice(acts)()
        except BaseException as problem:  # noqa: BLE001 - raised by the test's thread
            self.problem = problem

    def pick(self) -> tuple[str, int]:
        return self.rng.choice(TEXTS), self.rng.randrange(4)

    def whole(self) -> None:
        """Listens to the end and checks every code."""
        text, seed = self.pick()
        speech = say(self.engine, text, seed=seed, max_frames=MOST)
        frames = sum(chunk.frames for chunk in speech)
        expected = expected_codes(ending_drama(), text, seed, MOST)
        assert np.array_equal(codes_of(speech), expected), (text, seed)
        assert frames == expected.shape[1]

    def barge_in(self) -> None:
        """Cancels somewhere, possibly from a thread of its own, while it listens."""
        speech = say(self.engine, self.pick()[0], max_frames=None)
        timer = threading.Timer(self.rng.random() * 0.02, speech.cancel)
        timer.start()
        last = -1
        for chunk in speech:
            assert chunk.first_frame > last
            last = chunk.first_frame
        timer.join(WAIT)
        speech.result(WAIT)

    def drop(self) -> None:
        """Loses interest without a word."""
        say(self.engine, self.pick()[0], max_frames=self.rng.randint(1, MOST))

    def words(self) -> None:
        """Pushes text from another thread, and finishes or cancels from this one."""
        speech = self.engine.open(SpeechRequest(final=False, seed=1))

        def push() -> None:
            with suppress(Overloaded, RequestError):
                for word in ("Why", " not? ", "Hello", " there. ", "Hm."):
                    speech.push_text(word)
                    if self.rng.random() < 0.3:
                        speech.flush()

        pusher = threading.Thread(target=push, daemon=True)
        pusher.start()
        if self.rng.random() < 0.5:
            pusher.join(WAIT)
        self.rng.choice((speech.finish, speech.cancel))()
        frames = sum(chunk.frames for chunk in speech)
        summary = speech.result(WAIT)
        assert summary.cancelled or frames == summary.codes.shape[1]
        pusher.join(WAIT)

    def coroutine(self) -> None:
        """Listens in asyncio, and is sometimes cancelled there."""
        text, seed = self.pick()
        speech = say(self.engine, text, seed=seed, max_frames=MOST)

        async def listen() -> int:
            return sum([chunk.frames async for chunk in speech])

        async def impatient() -> None:
            task = asyncio.create_task(listen())
            await asyncio.sleep(self.rng.random() * 0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        if self.rng.random() < 0.5:
            asyncio.run(impatient())  # and its loop is closed when the next chunk comes
            speech.cancel()
        else:
            expected = expected_codes(ending_drama(), text, seed, MOST)
            assert asyncio.run(asyncio.wait_for(listen(), WAIT)) == expected.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("overlapped", [True, False], ids=["async", "inline"])
def test_everything_concurrently(overlapped: bool) -> None:
    for text in TEXTS:
        for seed in range(4):
            expected_codes(ending_drama(), text, seed, MOST)
    with running(ending_drama(), max_streams=3, max_queue=4, codec_async=overlapped) as engine:
        clients = [Client(engine, seed, rounds=12) for seed in range(6)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(4 * WAIT)
            assert not client.is_alive(), "a client waits for ever"
            if client.problem is not None:
                raise client.problem
        until(lambda: not any(engine.streams().values()), "the end of every stream")
        assert not engine.core.slots.taken
        assert np.array_equal(
            codes_of(say(engine, TEXTS[0], seed=0, max_frames=MOST)),
            expected_codes(ending_drama(), TEXTS[0], 0, MOST),
        )


@pytest.mark.parametrize("seed", range(4))
def test_closing_in_the_middle_of_it(seed: int) -> None:
    """Whatever clients do just then, close returns, and no client waits for ever."""
    stop, problems = threading.Event(), list[Exception]()

    def busy(engine: Engine, act: Callable[[], None]) -> None:
        while not stop.is_set():
            try:
                act()
            except (Overloaded, RequestError):
                return
            except Exception as error:  # noqa: BLE001 - raised by the test's thread
                if "closed" not in str(error):
                    problems.append(error)
                return

    with running(ending_drama(), max_streams=2, max_queue=50) as engine:
        clients = [Client(engine, 10 * seed + n, 1) for n in range(4)]
        acts = [
            client.rng.choice((client.barge_in, client.words, client.drop)) for client in clients
        ]
        threads = [threading.Thread(target=busy, args=(engine, act), daemon=True) for act in acts]
        for thread in threads:
            thread.start()
        stop.wait(0.02 * seed)
        engine.close()
        stop.set()
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive(), "a client waits for ever"
        assert problems == []
