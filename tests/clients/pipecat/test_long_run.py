"""Many utterances: every one whole, nothing grows on either side.

Ten belong to every run of the tests; RT_DRAMA3_UTTERANCES=200 makes it a long one.
"""

from __future__ import annotations

import time

import pytest

from tests.clients.pipecat.tools import call
from tests.integrations.conftest import run
from tests.integrations.test_long_run import (
    RATE,
    TEXTS,
    UTTERANCES,
    Log,
    flat,
    report,
    task_count,
)
from tests.integrations.tools import SENTENCES, Watched, assert_same, footprint
from tests.small import until


@pytest.mark.slow
def test_utterances(server: Watched) -> None:
    expected = {text: server.native(text, sample_rate=RATE) for text in SENTENCES}
    log = Log(server)

    async def work() -> None:
        async with call(server, RATE) as talk:
            for text in TEXTS:
                log.add(await talk.say(text), task_count())
                talk.ear.frames.clear()  # the test's own

    run(work(), 60 + 10 * UTTERANCES)
    report("pipecat-rtdrama3", log.marks, time.monotonic() - log.began)
    for text, heard in zip(TEXTS, log.heard, strict=True):
        assert_same(heard, expected[text])
    flat(log.marks)
    assert max(mark.server_sockets for mark in log.marks) == 1
    until(lambda: footprint(server.place.port).server_sockets == 0, "closing the sockets")
