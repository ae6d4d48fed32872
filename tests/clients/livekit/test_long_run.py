"""Many utterances: every one whole, nothing grows on either side.

Ten belong to every run of the tests; RT_DRAMA3_UTTERANCES=200 makes it a long one.
"""

from __future__ import annotations

import pytest

from tests.clients.livekit.tools import plugin, speak, without_marker
from tests.integrations.long_run import RATE, TEXTS, Log, check_plugin, task_count
from tests.integrations.tools import Watched


@pytest.mark.serial
@pytest.mark.slow
def test_utterances(server: Watched) -> None:
    async def speak_all(log: Log) -> None:
        async with plugin(server, sample_rate=RATE) as tts:
            for text in TEXTS:
                log.add((await speak(tts, [text])).pcm, task_count())

    def trimmed(heard: bytes, expected: bytes) -> bytes:
        return without_marker(heard, expected, RATE)

    check_plugin("livekit-plugins-rtdrama3", server, speak_all, trimmed)
