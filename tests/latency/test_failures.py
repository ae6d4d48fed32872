"""A server that fails some requests is never called fine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rt_drama3.cli.main import app
from rt_drama3_bench import remote
from rt_drama3_bench.dialects import Interruption, record_utterance
from rt_drama3_bench.metrics import Arrival, Recording
from rt_drama3_bench.result import Result, read
from rt_drama3_bench.soak import RoundSample, judge
from tests.latency.virtual import run

RATE = 1000
runner = CliRunner()


class Client:
    """Speaks half a second in one chunk when it is due; every n-th request fails.

    Args:
        every: n; 0 never.
        error: what the server answers; empty text is an answer without audio.
    """

    def __init__(self, every: int, error: str = "HTTP 503: overloaded") -> None:
        self.every, self.error, self.requests = every, error, 0

    async def say(self, made: Recording, text: str, cut: Interruption) -> None:
        self.requests += 1
        made.sent, made.rate = made.due, RATE  # no clock: two runs differ in nothing but failures
        if self.every and self.requests % self.every == 0:
            made.error = self.error or None
        else:
            pcm = np.full(500, 0.1, np.float32)
            made.arrivals.append(Arrival(made.sent, 500, 1000, pcm))
        made.ended = made.sent

    async def close(self) -> None:
        pass


def serve(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.setattr(remote, "make_client", lambda endpoint: Client(every))


def verdict(result: Result, name: str = "utterances that failed") -> float:
    (found,) = [one for one in result.verdicts if one.name == name]
    return found.value


def test_peer_judges_failed_requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = {0: tmp_path / "healthy.json", 3: tmp_path / "failing.json"}
    command = ["bench", "peer", "http://h", "--pause", "0", "--check", "--json"]
    codes = {}
    for every, file in runs.items():
        serve(monkeypatch, every)
        codes[every] = runner.invoke(app, [*command, str(file)]).exit_code
    assert codes == {0: 0, 3: 1}
    failing = read(runs[3])
    assert verdict(failing) == 8  # of 25 after the first
    assert "of 25, the first with: HTTP 503: overloaded" in failing.verdicts[0].detail

    healthy, broken = str(runs[0]), str(runs[3])
    worse = runner.invoke(app, ["bench", "compare", healthy, broken, "--check"])
    assert worse.exit_code == 1, worse.output
    assert [line for line in worse.output.splitlines() if "failed" in line and "worse" in line]
    assert runner.invoke(app, ["bench", "compare", broken, healthy, "--check"]).exit_code == 0
    assert runner.invoke(app, ["bench", "compare", healthy, healthy, "--check"]).exit_code == 0


def test_failed_barge_ins_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result("peer")
    serve(monkeypatch, 4)
    remote.peer(result, remote.Endpoint("http://h"), times=2, barge_ins=1, pause=0)
    assert verdict(result) == 1


def test_load_judges_the_levels_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for every, met in ((0, True), (3, False)):
        result = Result("load")
        client = Client(every)  # one for all connections
        monkeypatch.setattr(remote, "make_client", lambda endpoint, one=client: one)
        remote.load(result, remote.Endpoint("http://h"), levels=[2, 3], seconds=1)
        assert [one.name for one in result.verdicts] == [
            "2 streams: share that went wrong",
            "3 streams: share that went wrong",
        ]
        assert result.met is met


def test_an_answer_without_audio_is_a_failure() -> None:
    made = run(record_utterance(Client(1, error=""), "Hello.", 0.0))
    assert made.error == "it ended without any audio"


def test_soak_keeps_failures_for_comparisons() -> None:
    result = Result("soak")
    judge(result, [RoundSample(20.0, asked=4), RoundSample(40.0, failed=["refused"], asked=5)])
    (series,) = [one for one in result.series if one.name == "failed"]
    assert sorted(series.samples) == [0.0] * 8 + [1.0]
