"""What the tests of our Pipecat service share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integrations.tools import FLUSH, SEED, Watched
from tests.small import until

pytest.importorskip("pipecat", reason="needs pipecat-ai")
ours = pytest.importorskip("pipecat_rtdrama3", reason="needs clients/pipecat", exc_type=ImportError)

from pipecat.frames.frames import EndFrame, Frame  # noqa: E402

from tests.integrations.pipelines import Call, piped  # noqa: E402

RATE = 24_000


@asynccontextmanager
async def call(
    server: Watched | str, rate: int = RATE, last: type[Frame] = EndFrame, **settings: Any
) -> AsyncIterator[Call]:
    """The service, in a pipeline that runs; nothing of it is left afterwards."""
    url = server if isinstance(server, str) else server.url
    before = asyncio.all_tasks()
    chosen = settings.pop("settings", ours.RtDrama3TTSSettings(seed=SEED))
    service = ours.RtDrama3TTSService(url, settings=chosen, **settings)
    try:
        async with piped(service, rate, last) as talk:
            yield talk
    finally:
        await asyncio.sleep(0)  # what was just asked to end does
        left = [task for task in asyncio.all_tasks() - before if not task.done()]
        assert not left, left


def begun(server: Watched, number: int, segments: int) -> None:
    """Waits until a stream has begun that many segments of its text."""

    def is_so() -> bool:
        return len(server.speeches) > number and len(server.segments(number)) >= segments

    until(is_so, f"segment {segments} of stream {number}")


def replayed(server: Watched, number: int, text: str, rate: int = RATE) -> bytes:
    """The same utterance by the native dialect, one sentence after the other.

    Args:
        server: that spoke it.
        number: of the stream, oldest first.
        text: that it must have been.
        rate: Hz.
    """
    segments = [segment for segment, _ in server.segments(number)]
    assert " ".join(segments) == " ".join(text.split())
    parts: list[Any] = []
    for segment in segments:
        parts += [segment + " ", FLUSH]
    return server.native(*parts, sample_rate=rate)
