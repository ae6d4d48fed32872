"""Many utterances through each client: every one whole, and nothing grows on either side.

Server and client are one process here, so what it holds is the sum of both sides. Ten utterances
belong to every run of the tests; RT_DRAMA3_UTTERANCES=200 makes it a long one (some minutes), and
RT_DRAMA3_FIGURES names a file to which the figures are added.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import run
from tests.integrations.tools import SENTENCES, Footprint, Watched, assert_same, footprint
from tests.small import until

UTTERANCES = int(os.environ.get("RT_DRAMA3_UTTERANCES", "10"))
RATE = 16_000
WARM = 4  # utterances after which everything that is made once has been made
EVERY = max(1, UTTERANCES // 40)  # utterances between looks, which cost some time each
MOST_GROWTH = 12 << 20  # bytes, of caches and heaps that settle

TEXTS = [SENTENCES[n % len(SENTENCES)] for n in range(UTTERANCES)]


class Log:
    """Footprints while a client speaks; ``heard`` is what came of each text."""

    def __init__(self, server: Watched) -> None:
        self._server = server
        self.heard: list[bytes] = []
        self.marks: list[Footprint] = []
        self.began = time.monotonic()

    def add(self, pcm: bytes, tasks: int = 0) -> None:
        self.heard.append(pcm)
        if len(self.heard) >= WARM and len(self.heard) % EVERY == 0:
            self.marks.append(footprint(self._server.place.port, tasks))


def task_count() -> int:
    return len(asyncio.all_tasks())


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
    # Only idle connections of the clients' pools may be left, and those end with their clients.
    until(lambda: footprint(server.place.port).server_sockets == 0, "closing the sockets")


def expectation(client: Callable[..., None], server: Watched) -> list[bytes]:
    """What must be heard of each text."""
    if client is pipecat:  # one stream, whose pieces follow each other
        return server.native_pieces(*TEXTS, sample_rate=RATE)
    known: dict[str, bytes] = {}
    for text in SENTENCES:
        parts = (text + " ",) if client is livekit else (text,)
        known[text] = server.native(*parts, sample_rate=RATE)
    return [known[text] for text in TEXTS]


def flat(marks: Sequence[Footprint]) -> None:
    """Nothing grows from the first third of the marks to the last one."""
    third = max(1, len(marks) // 3)
    for name in ("threads", "tasks", "client_sockets", "server_sockets"):
        early, late = (
            max(getattr(mark, name) for mark in part) for part in (marks[:third], marks[-third:])
        )
        assert late <= early + 1, f"{name}: {[getattr(mark, name) for mark in marks]}"
    grown = min(m.bytes for m in marks[-third:]) - max(m.bytes for m in marks[:third])
    assert grown <= MOST_GROWTH, f"memory grew by {grown >> 10} KiB"


def report(name: str, marks: Sequence[Footprint], seconds: float) -> None:
    """Adds the figures to the file that was asked for."""
    path = os.environ.get("RT_DRAMA3_FIGURES")
    if path:
        figures: dict[str, Any] = {"client": name, "utterances": UTTERANCES, "seconds": seconds}
        figures |= {"first": asdict(marks[0]), "last": asdict(marks[-1])}
        with Path(path).open("a") as file:
            file.write(json.dumps(figures) + "\n")
