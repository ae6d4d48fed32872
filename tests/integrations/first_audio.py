"""How long each client takes to its first audio: ``python -m tests.integrations.first_audio``.

The server is another process of this machine and its model a random one of a millisecond or two a
frame, so what differs is the clients' doing. Needs every package of the extra ``integrations``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import fish_audio_sdk as legacy
import fishaudio
import openai
from livekit.plugins import fishaudio as livekit

from rt_drama3_client import Client
from tests.elsewhere import Elsewhere, elsewhere
from tests.server.tools import LONG
from tests.small import until

RATE = 24_000
TEXT = LONG[:62]


def since(began: float) -> float:
    return 1e3 * (time.perf_counter() - began)


def server_side(place: Elsewhere) -> tuple[float, float]:
    """Seconds that the server took to first audio so far, together, and how many they were."""
    return place.metric("first_audio_seconds_sum"), place.metric("first_audio_seconds_count")


def native(place: Elsewhere, count: int) -> list[float]:
    found = []
    with Client(place.url) as client:
        for _ in range(count):
            began = time.perf_counter()
            with client.speak(TEXT, sample_rate=RATE) as speech:
                next(iter(speech))
                found.append(since(began))
            place.until_free()
    return found


def first_of(make: Callable[[], Any], place: Elsewhere, count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        audio = make()
        iterator = iter(audio)
        next(iterator)
        found.append(since(began))
        iterator.close()
        place.until_free()
    return found


def fish_websocket(place: Elsewhere, count: int) -> list[float]:
    client = fishaudio.FishAudio(api_key="any", base_url=place.url)
    config = fishaudio.TTSConfig(format="pcm", sample_rate=RATE)
    return first_of(lambda: client.tts.stream_websocket(iter([TEXT]), config=config), place, count)


def fish_legacy_websocket(place: Elsewhere, count: int) -> list[float]:
    request = legacy.TTSRequest(text="", format="pcm", sample_rate=RATE)
    with legacy.WebSocketSession("any", base_url=place.url) as session:
        return first_of(lambda: session.tts(request, iter([TEXT])), place, count)


def fish_legacy_http(place: Elsewhere, count: int) -> list[float]:
    request = legacy.TTSRequest(text=TEXT, format="pcm", sample_rate=RATE)
    with legacy.Session("any", base_url=place.url) as session:
        return first_of(lambda: session.tts(request), place, count)


def fish_http(place: Elsewhere, count: int) -> list[float]:
    client = fishaudio.FishAudio(api_key="any", base_url=place.url)
    config = fishaudio.TTSConfig(format="pcm", sample_rate=RATE)

    def make() -> Any:
        return iter(client.tts.stream(text=TEXT, config=config))

    return first_of(make, place, count)


def openai_http(place: Elsewhere, count: int) -> list[float]:
    found = []
    client = openai.OpenAI(api_key="any", base_url=f"{place.url}/v1")
    for _ in range(count):
        began = time.perf_counter()
        with client.audio.speech.with_streaming_response.create(
            model="any", voice="alloy", input=TEXT, response_format="pcm"
        ) as response:
            parts = response.iter_bytes()
            next(parts)
            found.append(since(began))
        place.until_free()
    return found


def livekit_stream(place: Elsewhere, count: int) -> list[float]:
    async def work() -> list[float]:
        found = []
        async with aiohttp.ClientSession() as session:
            tts = livekit.TTS(api_key="any", base_url=place.url, http_session=session)
            for _ in range(count):
                began = time.perf_counter()
                stream = tts.stream()
                stream.push_text(TEXT)
                stream.end_input()
                await anext(aiter(stream))
                found.append(since(began))
                await stream.aclose()
                await tts._pool._drain_to_close()
                await asyncio.to_thread(place.until_free)
            await tts.aclose()
        return found

    return asyncio.run(work())


def pipecat(place: Elsewhere, count: int) -> list[float]:
    from pipecat.frames.frames import InterruptionFrame, TTSAudioRawFrame, TTSSpeakFrame

    from tests.integrations.pipelines import piped
    from tests.integrations.test_pipecat import Here

    def connected() -> None:
        until(lambda: place.metric("streams", phase="idle") == 1, "the service's start")

    async def work() -> list[float]:
        found = []
        async with piped(Here(place.url), RATE) as talk:
            for _ in range(count):
                await asyncio.to_thread(connected)
                talk.ear.frames.clear()
                began = time.perf_counter()
                await talk.send(TTSSpeakFrame(TEXT))
                await talk.ear.until(TTSAudioRawFrame, 1)
                found.append(since(began))
                await talk.send(InterruptionFrame())
                await talk.ear.until(InterruptionFrame, 1)
        return found

    return asyncio.run(work())


CLIENTS: dict[str, Callable[[Elsewhere, int], list[float]]] = {
    "rt-drama3-client": native,
    "fishaudio, WebSocket": fish_websocket,
    "fishaudio, HTTP": fish_http,
    "fish_audio_sdk, WebSocket": fish_legacy_websocket,
    "fish_audio_sdk, HTTP": fish_legacy_http,
    "openai": openai_http,
    "LiveKit, stream": livekit_stream,
    "Pipecat": pipecat,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    count = parser.parse_args().count
    with elsewhere() as place:
        for name, measure in CLIENTS.items():
            measure(place, 3)
            before = server_side(place)
            found = measure(place, count)
            seconds, number = (b - a for a, b in zip(before, server_side(place), strict=True))
            own = 1e3 * seconds / max(number, 1)
            best, middle = min(found), statistics.median(found)
            sys.stdout.write(
                f"{name:28} least {best:6.1f} ms, median {middle:6.1f} ms; "
                f"of that in the server, on average, {own:6.1f} ms\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
