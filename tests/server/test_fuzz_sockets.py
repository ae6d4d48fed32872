"""Pests on every side of a real server, while a good client plays: nothing breaks, nothing stays.

``RT_DRAMA3_FUZZ=10000 pytest tests/server/test_fuzz_sockets.py -s`` sends that many messages and
connections instead of a few hundred; ``RT_DRAMA3_FUZZ_SEED`` chooses others.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import sys
import threading
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from tests.fuzz.attacks import ROUTES, Attacker
from tests.fuzz.schemas import conversations, drawn
from tests.server.tools import Place, audio_of, serving
from tests.small import WAIT, shared_drama, until

ITEMS = int(os.environ.get("RT_DRAMA3_FUZZ", "600"))
SEED = int(os.environ.get("RT_DRAMA3_FUZZ_SEED", "4"))
DEADLINE = max(180.0, ITEMS / 5)  # seconds; a server that hangs is found, a slow machine is not
ATTACKERS = 3  # so that one of the engine's four streams is the good client's
QUARTERS = 4
GROWTH = 60_000  # bytes of Python objects that a thousand items may leave
RESIDENT_GROWTH = 4 << 20  # bytes of the process's memory, which the allocator rounds up


class GoodClient(threading.Thread):
    """Plays one utterance after the other and compares each with what it heard when alone."""

    def __init__(self, place: Place, alone: tuple[bytes, bytes]) -> None:
        super().__init__(name="good-client", daemon=True)
        self.place, self.alone = place, alone
        self.enough = threading.Event()
        self.played = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            with self.place.native() as client:
                while not self.enough.is_set():
                    assert heard(client) == self.alone, "it differs from what it is alone"
                    self.played += 1
        except BaseException as problem:  # noqa: BLE001 - raised by the test's thread
            problem.add_note(state_of(self.place))
            self.problem = problem


def state_of(place: Place) -> str:
    """What the engine and its threads are at."""
    assert place.engine is not None
    lines = [f"The engine has {dict(place.engine.streams())}."]
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.name.startswith("rt-drama3") and thread.ident in frames:
            lines += [thread.name, *traceback.format_stack(frames[thread.ident])[-8:]]
    return "\n".join(lines)


def heard(client: Any) -> tuple[bytes, bytes]:
    """One utterance, checked: its audio and its codes."""
    client.send("start", seed=7, take=True, max_seconds=1)
    client.send("text", text="Hello there. And ")
    client.send("text", text="another one.")
    client.send("finish")
    messages = client.take_until("done", "error", "cancelled")
    done = messages[-1]
    assert done["type"] == "done", done
    audio = [message for message in messages if message["type"] == "audio"]
    assert [message["seq"] for message in audio] == list(range(len(audio)))
    place = 0
    for message in audio:
        assert message["first_sample"] == place
        assert len(message["audio"]) == 2 * message["samples"]
        place += message["samples"]
    assert place == done["sent"]["samples"] == done["frames"] * 2048
    return audio_of(messages), done["take"]["vq_codes"]


class Watch(logging.Handler):
    """Everything that escapes: logged errors, the loop's exceptions, those of threads."""

    def __init__(self, place: Place) -> None:
        super().__init__(logging.ERROR)
        self.place = place
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))

    def of_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.found.append(f"loop: {context}")

    def of_thread(self, problem: threading.ExceptHookArgs) -> None:
        self.found.append(f"thread: {problem}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        loop = self.place.server.loop
        assert loop is not None
        before, threading.excepthook = threading.excepthook, self.of_thread
        loop.call_soon_threadsafe(loop.set_exception_handler, self.of_loop)
        logging.getLogger().addHandler(self)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(self)
            loop.call_soon_threadsafe(loop.set_exception_handler, None)
            threading.excepthook = before


class Pest(threading.Thread):
    """One attacker, for its share of the items."""

    def __init__(self, attacker: Attacker, items: int, deadline: float) -> None:
        super().__init__(name="pest", daemon=True)
        self.attacker, self.items, self.deadline = attacker, items, deadline
        self.done = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            while self.done < self.items:
                assert time.monotonic() < self.deadline, f"only {self.done} were done in time"
                self.done += self.attacker.attack()
        except BaseException as problem:  # noqa: BLE001 - raised by the test's thread
            self.problem = problem


def tasks_of(place: Place) -> int:
    """Tasks of the server's loop, without the one that counts."""

    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    assert place.server.loop is not None
    return asyncio.run_coroutine_threadsafe(count(), place.server.loop).result(WAIT)


def until_quiet(place: Place, most_tasks: int) -> None:
    try:
        place.until_free()
    except AssertionError as problem:
        problem.add_note(state_of(place))
        raise
    until(lambda: not place.service.access.connections, "counting the clients out")
    until(lambda: not place.server._uvicorn.server_state.connections, "closing the connections")
    until(lambda: tasks_of(place) <= most_tasks, "ending the tasks")


@pytest.mark.slow
def test_a_good_client_plays_on_among_pests(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    tracing = not tracemalloc.is_tracing()
    same = {"codec_batch_frames": 1}  # groups depend on the time, and round otherwise
    pool = {dialect: drawn(conversations(dialect), 60, SEED) for dialect in ROUTES}
    process, deadline = psutil.Process(), time.monotonic() + DEADLINE
    with serving(shared_drama(), tmp_path, same, connections_per_client=200) as place:
        with place.native() as client:
            alone = heard(client)
            assert heard(client) == alone
        until(lambda: not place.service.access.connections, "leaving")
        base = tasks_of(place)
        watch, rows, played, done = Watch(place), [], 0, 0
        with watch.watching():
            for quarter in range(QUARTERS):
                good = GoodClient(place, alone)
                rngs = [random.Random(f"{SEED} {quarter} {n}") for n in range(ATTACKERS)]
                share = -(-ITEMS // QUARTERS // ATTACKERS)
                pests = [
                    Pest(Attacker(place.port, rng, pool, WAIT), share, deadline) for rng in rngs
                ]
                for thread in (good, *pests):
                    thread.start()
                for pest in pests:
                    pest.join()
                good.enough.set()
                good.join()
                for thread in (good, *pests):
                    if thread.problem is not None:
                        raise AssertionError(f"seed {SEED}: {thread.name}") from thread.problem
                played, done = played + good.played, done + sum(pest.done for pest in pests)
                until_quiet(place, base)
                gc.collect()
                if quarter == 0 and tracing:
                    tracemalloc.start()
                rows.append(
                    (
                        tracemalloc.get_traced_memory()[0],
                        process.memory_info().rss,
                        threading.active_count(),
                        len(process.net_connections()),
                    )
                )
                with capfd.disabled():
                    sys.stdout.write(f"\nseed {SEED}: {done} items, {played} played, {rows[-1]}")
        if tracing:
            tracemalloc.stop()
        internal = place.metric("errors_total", code="internal")
    assert watch.found == []
    assert "Traceback" not in capfd.readouterr().err
    assert internal == 0
    assert played >= QUARTERS
    warm, end = rows[0], rows[-1]
    thousands = ITEMS * (QUARTERS - 1) / QUARTERS / 1_000
    assert end[0] - warm[0] < 200_000 + GROWTH * thousands
    assert end[1] - warm[1] < (48 << 20) + RESIDENT_GROWTH * thousands
    assert end[2] <= warm[2] + 5  # a pool starts its threads as it needs them
    assert end[3] <= warm[3]
