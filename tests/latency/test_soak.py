"""The verdicts of a soak on made-up rounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rt_drama3_bench.metrics import Arrival, Recording
from rt_drama3_bench.process_watch import Usage, usage
from rt_drama3_bench.result import Result
from rt_drama3_bench.soak import RoundSample, judge, sample_round


def rounds(leak: float = 0.0, **more: object) -> list[RoundSample]:
    made = []
    for n in range(100):
        figures = {"memory, MiB": 200 + leak * n, "threads": 9.0, "descriptors": 20.0}
        figures |= {"first audio p50, ms": 40.0 + n % 3, "lead p50, ms": 500.0 - n % 7}
        made.append(RoundSample(20.0 * n, figures))
    for name, value in more.items():
        setattr(made[50], name, value)
    return made


def verdicts(samples: list[RoundSample]) -> dict[str, bool]:
    result = Result("soak")
    judge(result, samples)
    return {verdict.name: verdict.met for verdict in result.verdicts}


def test_quiet_hours_pass() -> None:
    found = verdicts(rounds())
    assert all(found.values())
    assert len(found) == 7


def test_a_leak_fails_and_its_time_is_reported() -> None:
    result = Result("soak")
    judge(result, rounds(leak=2.0))
    (failed,) = [verdict for verdict in result.verdicts if not verdict.met]
    assert failed.name == "drift of memory, MiB"
    # The baseline is that of rounds 10 to 29, 239 MiB; 32 more are reached in round 36.
    assert "off since 7" in failed.detail
    assert "+360.00 an hour" in failed.detail


def test_gaps_and_failures_fail() -> None:
    assert not verdicts(rounds(worst_ms=101.0))["continuity: worst underrun, ms"]
    assert not verdicts(rounds(failed=["refused"]))["utterances that failed"]


def test_a_round() -> None:
    one = Recording(1.0, 1000, 1.0, ended=3.0, arrivals=[Arrival(1.1, 500), Arrival(1.7, 500)])
    found = sample_round(7.0, [one, Recording(2.0, error="gone")], Usage(100.0, 10, 5))
    assert found.failed == ["gone"]
    assert found.worst_ms == pytest.approx(100)
    assert found.figures["first audio p50, ms"] == pytest.approx(100)
    assert found.figures["threads"] == 5
    assert "threads" not in sample_round(7.0, [], Usage()).figures


def test_usage(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    (folder / "fd" / "0").touch()
    (folder / "status").write_text("Name:\tx\nRssAnon:\t    2048 kB\nThreads:\t3\n")
    assert usage(7, tmp_path) == Usage(2.0, 1, 3)
    assert usage(8, tmp_path) == Usage()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux has /proc")
def test_usage_of_this_process() -> None:
    found = usage(os.getpid())
    assert found.threads is not None
    assert found.threads >= 1
