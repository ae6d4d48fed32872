"""Schedules are kept in virtual time, and waiting because of others counts."""

from __future__ import annotations

import asyncio

import pytest

from rt_drama3_bench.dialects import Interruption
from rt_drama3_bench.drive import drive, most_concurrent
from rt_drama3_bench.metrics import Arrival, Recording, measure
from rt_drama3_bench.remote import doubling, judge_level, schedule
from rt_drama3_bench.schedules import ScheduledRequest
from tests.latency.virtual import run

RATE = 1000


class Server:
    """Speaks one utterance at a time, a second each, in two chunks; others wait."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.free = asyncio.Lock()
        self.seconds = seconds
        self.callers = 0

    def client(self) -> Client:
        self.callers += 1
        return Client(self)


class Client:
    def __init__(self, server: Server) -> None:
        self.server = server

    async def say(self, made: Recording, text: str, cut: Interruption) -> None:
        loop = asyncio.get_running_loop()
        made.sent, made.rate = loop.time(), RATE
        async with self.server.free:
            for _ in range(2):
                moment = cut.moment(made)
                try:
                    async with asyncio.timeout_at(moment):
                        await asyncio.sleep(self.server.seconds / 2)
                except TimeoutError:
                    made.cancelled = made.silent = made.ended = loop.time()
                    return
                made.arrivals.append(Arrival(loop.time(), 500))
        made.ended = loop.time()

    async def close(self) -> None:
        pass


def carry_out(dues: list[ScheduledRequest]) -> tuple[list[Recording], Server]:
    async def work() -> tuple[list[Recording], Server]:
        server = Server()
        return await drive(dues, server.client), server

    return run(work())


def test_waiting_for_others_counts() -> None:
    """Coordinated omission: ten requests a second at a server that answers one."""
    dues = [ScheduledRequest(0.1 * n, n, "Hello.") for n in range(5)]
    records, _ = carry_out(dues)
    firsts = [measure(record).first_pcm_ms for record in records]
    assert firsts == pytest.approx([500, 1400, 2300, 3200, 4100], abs=1)
    assert [record.label for record in records] == [f"caller {n}" for n in range(5)]
    assert all(measure(record).late_ms == pytest.approx(0, abs=1e-6) for record in records)


def test_a_client_that_is_held_up_counts_from_the_schedule() -> None:
    async def work() -> list[Recording]:
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, loop.spend, 0.2)  # type: ignore[attr-defined]
        return await drive([ScheduledRequest(0.1, 0, "Hello.")], Server().client)

    (record,) = run(work())
    found = measure(record)
    assert found.late_ms == pytest.approx(150, abs=1)
    assert found.first_pcm_ms == pytest.approx(650, abs=1)


def test_a_callers_next_turn_interrupts_the_one_before() -> None:
    first, second = carry_out([ScheduledRequest(0, 7, "A."), ScheduledRequest(0.8, 7, "B.")])[0]
    assert first.cancelled == pytest.approx(first.due + 0.75)
    assert len(first.arrivals) == 1
    assert measure(second).first_pcm_ms == pytest.approx(500, abs=1)


def test_a_barge_in_after_some_audio() -> None:
    (record,) = carry_out([ScheduledRequest(0, 1, "A.", cut_after=0.2)])[0]
    assert record.cancelled == pytest.approx(record.due + 0.7)


def test_connections_are_used_again() -> None:
    records, server = carry_out([ScheduledRequest(2.0 * n, n, "A.") for n in range(6)])
    assert server.callers == 1
    assert most_concurrent(records) == 1
    records, server = carry_out([ScheduledRequest(0.0, n, "A.") for n in range(6)])
    assert server.callers == 6
    assert most_concurrent(records) == 6


def heard(gap: float, first: float = 0.1) -> Recording:
    made = Recording(due=0.0, rate=RATE, sent=0.0, ended=2.0)
    made.arrivals = [Arrival(first, 500), Arrival(first + 0.5 + gap, 500)]
    return made


def test_what_breaks_a_level() -> None:
    assert judge_level(2, [heard(0), heard(0.09)]).holds
    assert judge_level(2, [heard(0), heard(0.11)]).stuttered == 1
    assert not judge_level(2, [heard(0), heard(0.11)]).holds
    late = judge_level(2, [heard(0), heard(0, first=2.5)])
    assert (late.waited, late.holds) == (1, False)
    refused = judge_level(1, [Recording(due=0.0, error="overloaded")])
    assert (refused.failed, refused.holds) == (1, False)
    assert judge_level(100, [heard(0)] * 99 + [heard(0.2)]).holds


def test_levels() -> None:
    ramp = doubling("steady")
    assert [next(ramp) for _ in range(8)] == [1, 2, 3, 4, 6, 8, 12, 16]
    assert len(schedule("steady", 3, 10, 0)) == 3
    assert {due.at for due in schedule("steady", 3, 10, 0)} == {0}
    assert len(schedule("fixed", 2, 10, 0)) == 20
