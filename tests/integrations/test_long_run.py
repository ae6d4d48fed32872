"""Many utterances through each client: every one whole, and nothing grows on either side.

Server and client are one process here, so what it holds is the sum of both sides. Ten utterances
belong to every run of the tests; RT_DRAMA3_UTTERANCES=200 makes it a long one (some minutes), and
RT_DRAMA3_FIGURES names a file to which the figures are added.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

import pytest

from tests.integrations.conftest import run
from tests.integrations.long_run import (
    RATE,
    TEXTS,
    UTTERANCES,
    Log,
    flat,
    left_alone,
    report,
    task_count,
)
from tests.integrations.tools import SENTENCES, Watched, assert_same


def fish_http(server: Watched, log: Log) -> None:
    fishaudio = importlib.import_module("fishaudio")
    config = fishaudio.TTSConfig(format="pcm", sample_rate=RATE)
    with fishaudio.FishAudio(api_key="any", base_url=server.url) as client:
        for text in TEXTS:
            log.add(bytes(client.tts.convert(text=text, config=config)))


def fish_websocket(server: Watched, log: Log) -> None:
    fishaudio = importlib.import_module("fishaudio")
    config = fishaudio.TTSConfig(format="pcm", sample_rate=RATE)
    with fishaudio.FishAudio(api_key="any", base_url=server.url) as client:
        for text in TEXTS:
            log.add(b"".join(client.tts.stream_websocket(iter([text]), config=config)))


def fish_legacy(server: Watched, log: Log) -> None:
    legacy = importlib.import_module("fish_audio_sdk")
    request = legacy.TTSRequest(text="", format="pcm", sample_rate=RATE)
    with legacy.WebSocketSession("any", base_url=server.url) as session:
        for text in TEXTS:
            log.add(b"".join(session.tts(request, iter([text]))))


def openai(server: Watched, log: Log) -> None:
    module = importlib.import_module("openai")
    with module.OpenAI(api_key="any", base_url=f"{server.url}/v1") as client:
        for text in TEXTS:
            with client.audio.speech.with_streaming_response.create(
                model="any",
                voice="alloy",
                input=text,
                response_format="pcm",
                extra_body={"sample_rate": RATE},
            ) as response:
                log.add(b"".join(response.iter_bytes()))


def livekit(server: Watched, log: Log) -> None:
    from tests.integrations.test_livekit import plugin, speak

    async def work() -> None:
        async with plugin(server, output_format="pcm", sample_rate=RATE) as tts:
            for text in TEXTS:
                log.add(await speak(tts, text), task_count())

    run(work(), 60 + 10 * UTTERANCES)


def pipecat(server: Watched, log: Log) -> None:
    from tests.integrations.test_pipecat import call

    async def work() -> None:
        async with call(server, RATE) as talk:
            for number, text in enumerate(TEXTS):
                await talk.say(text)
                log.add(talk.ear.heard[number], task_count())
                talk.ear.frames.clear()  # the test's own

    run(work(), 60 + 10 * UTTERANCES)


@pytest.mark.parametrize(
    ("client", "package"),
    [
        (fish_http, "fishaudio"),
        (fish_websocket, "fishaudio"),
        (fish_legacy, "fish_audio_sdk"),
        (openai, "openai"),
        (livekit, "livekit.plugins.fishaudio"),
        (pipecat, "pipecat"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.slow
def test_utterances(client: Callable[[Watched, Log], None], package: str, server: Watched) -> None:
    pytest.importorskip(package, reason=f"needs {package}", exc_type=ImportError)
    expected = expectation(client, server)
    log = Log(server)
    client(server, log)
    seconds = time.monotonic() - log.began
    server.place.until_free()
    report(client.__name__, log.marks, seconds)
    assert len(log.heard) == UTTERANCES
    for one, other in zip(log.heard, expected, strict=True):
        # LiveKit may mark the end with 10 ms of silence.
        marker = 2 * RATE // 100 if client is livekit and len(one) > len(other) else 0
        assert_same(one[: len(other)] if marker else one, other)
        assert one[len(other) :] == bytes(marker)
    flat(log.marks)
    left_alone(server)


def expectation(client: Callable[..., None], server: Watched) -> list[bytes]:
    """What must be heard of each text."""
    if client is pipecat:  # one stream, whose pieces follow each other
        return server.native_pieces(*TEXTS, sample_rate=RATE)
    known: dict[str, bytes] = {}
    for text in SENTENCES:
        parts = (text + " ",) if client is livekit else (text,)
        known[text] = server.native(*parts, sample_rate=RATE)
    return [known[text] for text in TEXTS]
