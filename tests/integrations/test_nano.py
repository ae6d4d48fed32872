"""The embedded voice through each client: real speech, whole, and understood."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.integrations.conftest import run
from tests.integrations.tools import FLUSH, Watched, assert_same, level

TEXT = "We like red boats."
WORDS = {"we", "like", "red", "boats"}
RATE = 16_000


def fish_http(server: Watched) -> bytes:
    fishaudio = importlib.import_module("fishaudio")
    config = fishaudio.TTSConfig(format="pcm", sample_rate=RATE)
    client = fishaudio.FishAudio(api_key="any", base_url=server.url)
    return bytes(client.tts.convert(text=TEXT, config=config))


def fish_websocket(server: Watched) -> bytes:
    fishaudio = importlib.import_module("fishaudio")
    config = fishaudio.TTSConfig(format="pcm", sample_rate=RATE)
    client = fishaudio.FishAudio(api_key="any", base_url=server.url)
    words = iter(["We like ", "red ", "boats."])
    return b"".join(client.tts.stream_websocket(words, config=config))


def openai(server: Watched) -> bytes:
    module = importlib.import_module("openai")
    client = module.OpenAI(api_key="any", base_url=f"{server.url}/v1")
    speech = client.audio.speech.create(
        model="any",
        voice="alloy",
        input=TEXT,
        response_format="pcm",
        extra_body={"sample_rate": RATE},
    )
    return bytes(speech.read())


def livekit(server: Watched) -> bytes:
    from tests.integrations.test_livekit import plugin, speak

    async def work() -> bytes:
        async with plugin(server, sample_rate=RATE) as tts:
            return await speak(tts, "We like ", "red ", "boats.")

    return bytes(run(work()))


def pipecat(server: Watched) -> bytes:
    from tests.integrations.test_pipecat import call

    async def work() -> bytes:
        async with call(server, RATE, stop_frame_timeout_s=5.0) as talk:
            await talk.say(TEXT)
            return talk.ear.heard[0]

    return bytes(run(work()))


@pytest.fixture(scope="module")
def hear(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], str] | None:
    """What a recogniser understands; None where there is none installed."""
    from training import asr

    needed = ("faster_whisper", *asr.PARTS)
    if any(importlib.util.find_spec(name) is None for name in needed):
        return None
    judge = asr.Judge(Path(tmp_path_factory.mktemp("asr")))

    def understand(pcm: bytes) -> str:
        return judge.hear(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768, RATE)

    return understand


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "package"),
    [
        (fish_http, "fishaudio"),
        (fish_websocket, "fishaudio"),
        (openai, "openai"),
        (livekit, "livekit.plugins.fishaudio"),
        (pipecat, "pipecat"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_speech_is_whole_and_understood(
    client: Callable[[Watched], bytes],
    package: str,
    speaker: Watched,
    hear: Callable[[bytes], str] | None,
) -> None:
    pytest.importorskip(package, reason=f"needs {package}", exc_type=ImportError)
    heard = client(speaker)
    if client is pipecat:
        (expected,) = speaker.native_pieces(TEXT, sample_rate=RATE)
    else:
        expected = speaker.native(TEXT, FLUSH, sample_rate=RATE)
    assert_same(heard[: len(expected)], expected)
    # Only LiveKit may add something: the 10 ms of silence that mark its end.
    assert heard[len(expected) :] in (b"", bytes(2 * RATE // 100 * (client is livekit)))
    assert 0.5 < len(heard) / 2 / RATE < 5
    assert level(heard) > 0.01
    if hear is None:
        pytest.skip("the audio is right; its words need faster-whisper (training/requirements.txt)")
    understood = hear(heard)
    words = set(understood.lower().replace(".", "").replace(",", "").split())
    assert len(words & WORDS) >= 3, understood
