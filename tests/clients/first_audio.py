"""First audio through our own plugins: ``python -m tests.clients.first_audio``.

The server is another process of this machine and its model a random one of a millisecond or two a
frame, so what differs is the clients' doing. The text is complete at the start, or is written by a
language model that takes its time, word by word. Needs the extra ``integrations`` and our plugins.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
)
from pipecat.services.tts_service import TextAggregationMode

from rt_drama3_client import AsyncClient
from tests.clients.livekit.tools import plugin
from tests.clients.pipecat.tools import call
from tests.elsewhere import Elsewhere, elsewhere

RATE = 24_000
SENTENCES = "This is a sentence that takes a while and says little. And this is another one. "

Measure = Callable[[Elsewhere, int, float], Awaitable[list[float]]]


async def written(pause: float) -> AsyncIterator[str]:
    """A language model; everything in one call where it takes no time."""
    if not pause:
        yield SENTENCES
        return
    for word in SENTENCES.split():
        await asyncio.sleep(pause)
        yield word + " "


async def client(place: Elsewhere, count: int, pause: float) -> list[float]:
    found = []
    async with AsyncClient(place.url) as client:
        for _ in range(count):
            began = time.perf_counter()
            async with client.speak(written(pause), sample_rate=RATE) as speech:
                await anext(speech.__aiter__())
                found.append(time.perf_counter() - began)
            await asyncio.to_thread(place.until_free)
    return found


def livekit(**settings: Any) -> Measure:
    async def work(place: Elsewhere, count: int, pause: float) -> list[float]:
        found = []
        async with plugin(place.url, **settings) as tts:
            for _ in range(count):
                began = time.perf_counter()
                async with tts.stream() as stream:

                    async def write(stream: Any = stream) -> None:
                        async for word in written(pause):
                            stream.push_text(word)
                        stream.end_input()

                    writing = asyncio.create_task(write())
                    await anext(stream)
                    found.append(time.perf_counter() - began)
                    writing.cancel()
                await asyncio.to_thread(place.until_free)
        return found

    return work


def pipecat(**settings: Any) -> Measure:
    async def work(place: Elsewhere, count: int, pause: float) -> list[float]:
        found = []
        async with call(place.url, RATE, **settings) as talk:
            for number in range(count):

                async def write() -> None:
                    await talk.send(LLMFullResponseStartFrame())
                    async for word in written(pause):
                        await talk.send(LLMTextFrame(word))
                    await talk.send(LLMFullResponseEndFrame())

                talk.ear.frames.clear()
                began = time.perf_counter()
                writing = asyncio.create_task(write())
                await talk.ear.until(TTSAudioRawFrame, 1)
                found.append(time.perf_counter() - began)
                await writing if number + 1 == count else writing.cancel()
                await talk.send(InterruptionFrame())
                await talk.ear.until(InterruptionFrame, 1)
                await asyncio.to_thread(place.until_free)
        return found

    return work


WAYS: dict[str, Measure] = {
    "rt-drama3-client": client,
    "LiveKit": livekit(),
    "LiveKit, early_words=4": livekit(early_words=4),
    "Pipecat": pipecat(),
    "Pipecat, SENTENCE": pipecat(text_aggregation_mode=TextAggregationMode.SENTENCE),
    "Pipecat, early_words=4": pipecat(early_words=4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.03, help="of the model, seconds a word")
    options = parser.parse_args()
    with elsewhere() as place:
        for pause in (0.0, options.pause):
            for name, measure in WAYS.items():
                found = asyncio.run(measure(place, 3 + options.count, pause))[3:]
                best, middle = 1e3 * min(found), 1e3 * statistics.median(found)
                sys.stdout.write(
                    f"{name:24} {1e3 * pause:3.0f} ms a word: least {best:6.1f} ms, "
                    f"median {middle:6.1f} ms\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
