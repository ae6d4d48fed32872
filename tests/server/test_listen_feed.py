"""Turns, captions and bounds of what listeners are sent, without a server."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgpack
import numpy as np
import pytest

from rt_drama3.protocol import ListenOptions
from rt_drama3.server.monitor import feed as listen_feed
from rt_drama3.server.monitor.feed import Feed

RATE = 16_000
TEN_MS = np.full(160, 0.5, np.float32)


class Subscriber:
    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.more = asyncio.Event()

    def put(self, messages: Sequence[bytes]) -> None:
        self.heard += [msgpack.unpackb(message) for message in messages]
        self.more.set()

    def stop(self) -> None:
        raise AssertionError

    @property
    def names(self) -> list[str]:
        return [f"{m['type']} {m['stream']}" if "stream" in m else m["type"] for m in self.heard]


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


def feed(mode: str = "queue", seconds: float = 10.0) -> tuple[Feed, Subscriber]:
    made, subscriber = Feed(ListenOptions(RATE, mode), seconds), Subscriber()
    made.join(subscriber)
    return made, subscriber


def begin(made: Feed, *names: str) -> None:
    for name in names:
        made.begin(name, f"request-{name}", None, RATE, 0)


@on_loop
async def test_the_queue_in_order() -> None:
    made, subscriber = feed()
    begin(made, "a", "b", "c")
    for name in "cba":
        made.audio(name, TEN_MS)
        made.end(name)
    assert subscriber.names == [
        f"{kind} {name}" for name in "abc" for kind in ("begin", "audio", "end")
    ]


@on_loop
async def test_a_mix_as_it_comes() -> None:
    made, subscriber = feed("mix")
    begin(made, "a", "b")
    for name in "ba":
        made.audio(name, TEN_MS)
    made.end("b")
    assert subscriber.names == ["begin a", "begin b", "audio b", "audio a", "end b"]


@on_loop
async def test_one_who_waits_and_is_cancelled_was_never_there() -> None:
    made, subscriber = feed()
    begin(made, "a", "b", "c")
    made.audio("b", TEN_MS)
    made.audio("c", TEN_MS)
    made.cancel("b")
    made.cancel("a")
    assert subscriber.names == ["begin a", "end a", "begin c", "audio c"]
    made.audio("a", TEN_MS)
    made.end("b")
    assert len(subscriber.heard) == 4


@on_loop
async def test_what_has_ended_can_be_cancelled_once() -> None:
    made, subscriber = feed()
    begin(made, "a")
    made.end("a")
    made.cancel("a")
    made.cancel("a")
    made.cancel("unknown")
    assert [message.get("cancelled") for message in subscriber.heard] == [None, False, True]


@on_loop
async def test_who_says_nothing_lets_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_feed, "TURN_SECONDS", 0.01)
    made, subscriber = feed()
    begin(made, "a", "b")
    made.audio("b", TEN_MS)
    made.end("b")
    async with asyncio.timeout(30):
        while "end b" not in subscriber.names:
            subscriber.more.clear()
            await subscriber.more.wait()
    made.audio("a", TEN_MS)
    assert subscriber.names == ["begin a", "begin b", "audio b", "end b", "audio a"]


@on_loop
async def test_the_queue_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    made, subscriber = feed(seconds=0.1)
    begin(made, "a", "b")
    for _ in range(30):
        made.audio("b", TEN_MS)
    made.audio("a", TEN_MS)
    made.end("b")
    made.end("a")
    said = [len(m["pcm"]) // 2 for m in subscriber.heard if m.get("stream") == "b" and "pcm" in m]
    assert sum(said) == 1_600
    assert subscriber.heard[-1] == {
        "type": "end",
        "stream": "b",
        "samples": 1_600,
        "cancelled": False,
    }
    assert caplog.text.count("queue is full") == 1


@on_loop
async def test_stop_forgets_everything() -> None:
    made, subscriber = feed()
    begin(made, "a", "b")
    made.audio("b", TEN_MS)
    made.stop(20.0)
    made.audio("a", TEN_MS)
    made.end("b")
    assert subscriber.names == ["begin a", "stop", "end a"]
    begin(made, "c")
    assert subscriber.names[-1] == "begin c"


@on_loop
async def test_one_who_comes_late_hears_from_here_on() -> None:
    made, _ = feed()
    made.begin("a", "request-a", None, 2 * RATE, 3_200)
    made.segment("a", "Hello.", 3_200, 2 * RATE)
    late = Subscriber()
    made.join(late)
    made.audio("a", np.zeros(640, np.float32))
    assert late.names == ["begin a", "segment a", "audio a"]
    assert late.heard[1]["first_sample"] == late.heard[2]["first_sample"] == 1_600
    made.leave(late)
    made.end("a")
    assert len(late.heard) == 3
