"""Many utterances: every one whole, nothing grows on either side.

Ten belong to every run of the tests; RT_DRAMA3_UTTERANCES=200 makes it a long one.
"""

from __future__ import annotations

import pytest

from tests.clients.pipecat.tools import call
from tests.integrations.long_run import RATE, TEXTS, Log, check_plugin, task_count
from tests.integrations.tools import Watched


@pytest.mark.serial
@pytest.mark.slow
def test_utterances(server: Watched) -> None:
    async def speak(log: Log) -> None:
        async with call(server, RATE) as talk:
            for text in TEXTS:
                log.add(await talk.say(text), task_count())
                talk.ear.frames.clear()  # the test's own

    check_plugin("pipecat-rtdrama3", server, speak)
