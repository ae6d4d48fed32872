"""A server that says when to ask again is asked then, for a bounded time."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from rt_drama3_client import AsyncClient, Settings, Unavailable, UsageError
from tests.clients.python.fake import QUICK, Peer, run, served

NOT_READY = {"code": "not_ready", "message": "loading.", "retriable": True}


class Starting:
    """Refuses a number of handshakes, each with ``Retry-After``."""

    def __init__(self, refusals: int, after: str) -> None:
        self.left = refusals
        self.asked: list[float] = []
        self._after = after

    def __call__(self, connection: Any, request: Any) -> Any:
        self.asked.append(time.monotonic())
        if not self.left:
            return None
        self.left -= 1
        response = connection.respond(503, json.dumps(NOT_READY))
        response.headers["Retry-After"] = self._after
        return response


async def spoken(peer: Peer) -> None:
    await peer.speak()


def test_starting_server_is_retried_beyond_the_attempts() -> None:
    async def work() -> None:
        starting = Starting(3 * QUICK.attempts, "0")
        async with served(spoken, process_request=starting) as (_, client):
            speech = client.speak("Hello.")
            assert await speech.read()
            assert speech.timings.attempts == len(starting.asked) == 3 * QUICK.attempts + 1

    run(work())


def test_no_retry_before_the_given_time() -> None:
    async def work() -> None:
        starting = Starting(1, "1")
        async with served(spoken, process_request=starting) as (_, client):
            assert await client.speak("Hello.").read()
            first, second = starting.asked
            assert second - first >= 1

    run(work())


@pytest.mark.parametrize(
    ("settings", "after"),
    [
        (QUICK, "60"),
        (replace(QUICK, ready_timeout=0), "1"),
        (replace(QUICK, attempts=1), "0"),
    ],
)
def test_no_wait_beyond_the_ready_timeout(settings: Settings, after: str) -> None:
    async def work() -> None:
        starting = Starting(2, after)
        async with served(spoken, settings=settings, process_request=starting) as (_, client):
            with pytest.raises(Unavailable) as caught:
                await client.speak("Hello.").read()
            assert caught.value.retry_after == float(after)
            assert len(starting.asked) == 1

    run(work())


def test_other_failures_in_between_are_counted() -> None:
    async def dropped(peer: Peer) -> None:
        await peer.take_until("start")
        peer.drop()

    async def work() -> None:
        starting = Starting(4, "0")
        async with served(dropped, dropped, spoken, process_request=starting) as (server, client):
            assert await client.speak("Hello.").read()
            assert len(server.peers) == QUICK.attempts == 3

    run(work())


@pytest.mark.parametrize("after", ["Wed, 21 Oct 2015 07:28:00 GMT", "-1", "1e9", "9" * 400, "²"])
def test_invalid_retry_after_is_ignored(after: str) -> None:
    from rt_drama3_client.address import read_address
    from rt_drama3_client.connection import refusal

    error = refusal(503, {"retry-after": after}, b"", read_address("host"))
    assert isinstance(error, Unavailable)
    assert error.retry_after is None
    assert error.retriable


def test_routes_report_retry_after() -> None:
    async def work() -> None:
        starting = Starting(1, "7")
        async with served(spoken, process_request=starting) as (_, client):
            with pytest.raises(Unavailable) as caught:
                await client.voices()
            assert caught.value.retry_after == 7

    run(work())


def test_backoff_of_many_attempts_is_finite() -> None:
    from rt_drama3_client.errors import server_error
    from rt_drama3_client.outgoing import MAX_BACKOFF, Outgoing

    async def work() -> None:
        async with AsyncClient(settings=Settings(attempts=10**6)) as client:
            outgoing = Outgoing(client._pool)
            outgoing.inbox.timings.attempts = 10**5
            pause = outgoing._pause(server_error("not_ready", "wait.", retriable=True))
            assert pause is not None
            assert pause <= 1.25 * MAX_BACKOFF

    run(work())


def test_zero_is_a_valid_timeout_and_negative_is_not() -> None:
    assert Settings(ready_timeout=0).ready_timeout == 0
    with pytest.raises(UsageError, match="ready_timeout"):
        Settings(ready_timeout=-1)
