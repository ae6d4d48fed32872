"""fish-audio-sdk, both of its modules, unchanged: HTTP and WebSocket, sync and async."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.integrations.conftest import run
from tests.integrations.tools import (
    FLUSH,
    SENTENCE,
    Interruption,
    Watched,
    assert_same,
    assert_whole,
    samples_of,
)
from tests.server.tools import LONG

fishaudio = pytest.importorskip("fishaudio", reason="needs the package fish-audio-sdk")
legacy = pytest.importorskip("fish_audio_sdk", reason="needs the package fish-audio-sdk")

WORDS = ["Hello ", "there. ", "And ano", "ther one. ", "The end"]


async def later(words: list[str]) -> AsyncIterator[str]:
    for word in words:
        yield word


def new(server: Watched) -> Any:
    return fishaudio.FishAudio(api_key="any", base_url=server.url)


def new_async(server: Watched) -> Any:
    return fishaudio.AsyncFishAudio(api_key="any", base_url=server.url)


def config(**more: Any) -> Any:
    return fishaudio.TTSConfig(format="pcm", sample_rate=16_000, **more)


# One entry for each way to ask; each returns all bytes of PCM at 16 kHz.


def convert(server: Watched) -> bytes:
    return bytes(new(server).tts.convert(text=SENTENCE, config=config()))


def stream(server: Watched) -> bytes:
    return b"".join(new(server).tts.stream(text=SENTENCE, config=config()))


def async_convert(server: Watched) -> bytes:
    async def work() -> bytes:
        async with new_async(server) as client:
            return bytes(await client.tts.convert(text=SENTENCE, config=config()))

    return bytes(run(work()))


def async_stream(server: Watched) -> bytes:
    async def work() -> bytes:
        async with new_async(server) as client:
            return b"".join(
                [c async for c in await client.tts.stream(text=SENTENCE, config=config())]
            )

    return bytes(run(work()))


def legacy_request(text: str) -> Any:
    return legacy.TTSRequest(text=text, format="pcm", sample_rate=16_000)


def legacy_http(server: Watched) -> bytes:
    with legacy.Session("any", base_url=server.url) as session:
        return b"".join(session.tts(legacy_request(SENTENCE)))


def legacy_async_http(server: Watched) -> bytes:
    async def work() -> bytes:
        session = legacy.Session("any", base_url=server.url)
        return b"".join([c async for c in session.tts.awaitable(legacy_request(SENTENCE))])

    return bytes(run(work()))


@pytest.mark.parametrize(
    "ask", [convert, stream, async_convert, async_stream, legacy_http, legacy_async_http]
)
def test_http(ask: Callable[[Watched], bytes], server: Watched) -> None:
    expected = server.native(SENTENCE, sample_rate=16_000)
    heard = ask(server)
    assert_same(heard, expected)
    assert len(heard) // 2 == samples_of(server.frames(), 16_000)


def socket(server: Watched, words: Iterator[Any]) -> bytes:
    return b"".join(new(server).tts.stream_websocket(words, config=config()))


def async_socket(server: Watched, words: Iterator[Any]) -> bytes:
    async def work() -> bytes:
        async with new_async(server) as client:
            audio = client.tts.stream_websocket(later(list(words)), config=config())
            return b"".join([c async for c in audio])

    return bytes(run(work()))


def legacy_socket(server: Watched, words: Iterator[Any]) -> bytes:
    with legacy.WebSocketSession("any", base_url=server.url) as session:
        return b"".join(session.tts(legacy_request(""), words))


def legacy_async_socket(server: Watched, words: Iterator[Any]) -> bytes:
    async def work() -> bytes:
        async with legacy.AsyncWebSocketSession("any", base_url=server.url) as session:
            audio = session.tts(legacy_request(""), later(list(words)))
            return b"".join([c async for c in audio])

    return bytes(run(work()))


@pytest.mark.parametrize("ask", [socket, async_socket, legacy_socket, legacy_async_socket])
def test_websocket(ask: Callable[[Watched, Iterator[Any]], bytes], server: Watched) -> None:
    expected = server.native(*WORDS, sample_rate=16_000)
    for _ in range(2):
        heard = ask(server, iter(WORDS))
        assert_same(heard, expected)
        assert len(heard) // 2 == samples_of(server.frames(), 16_000)


def test_flush_event(server: Watched) -> None:
    flush = fishaudio.types.FlushEvent()
    heard = socket(server, iter(["Hello", flush, flush, " there. "]))
    assert_same(heard, server.native("Hello", FLUSH, " there. ", sample_rate=16_000))


def test_audio_comes_while_text_is_still_written(server: Watched) -> None:
    first: list[bytes] = []

    def words() -> Iterator[str]:
        yield "Hello there. And "
        # The SDK reads in another thread than it writes: this waits for the first sound.
        assert heard_something.wait(30), "no audio before the end of the text"
        yield "more."

    heard_something = threading.Event()
    for data in new(server).tts.stream_websocket(words(), config=config()):
        first.append(data)
        heard_something.set()
    assert_same(b"".join(first), server.native("Hello there. And ", "more.", sample_rate=16_000))


def test_defaults_of_the_new_module_are_mp3_at_44_1_khz(server: Watched) -> None:
    data = bytes(new(server).tts.convert(text=SENTENCE))
    assert server.speeches[-1].request.temperature is None  # its own 0.7 is not a wish
    assert server.speeches[-1].request.top_p is None
    assert_whole(data, samples_of(server.frames(), 44_100), 44_100)
    assert data == server.native(SENTENCE, format="mp3", bitrate=128_000)


@pytest.mark.parametrize(
    ("asked", "rate", "bitrate"),
    [
        ({"format": "mp3", "sample_rate": 32_000, "mp3_bitrate": 64}, 32_000, 64_000),
        ({"format": "opus", "sample_rate": None, "opus_bitrate": 24}, 48_000, 24_000),
        ({"format": "wav", "sample_rate": 24_000}, 24_000, None),
    ],
    ids=["mp3", "opus", "wav"],
)
def test_formats(asked: dict[str, Any], rate: int, bitrate: int | None, server: Watched) -> None:
    chosen = fishaudio.TTSConfig(**asked)
    data = b"".join(new(server).tts.stream_websocket(iter([SENTENCE]), config=chosen))
    samples = samples_of(server.frames(), rate)
    expected = server.native(SENTENCE, sample_rate=rate, format=asked["format"], bitrate=bitrate)
    assert_whole(data, samples, rate)
    if asked["format"] == "opus":
        assert len(data) == len(expected)  # each Ogg stream has a number of its own
        return
    assert data == expected
    if asked["format"] == "wav":
        assert data.count(b"RIFF") == 1
        assert_same(data[44:], server.native(SENTENCE, sample_rate=rate))


def test_what_a_user_sets_is_followed(server: Watched) -> None:
    louder = config(
        temperature=0.5,
        top_p=0.9,
        latency="normal",
        prosody=fishaudio.types.Prosody(speed=1.0, volume=-6.0),
    )
    heard = bytes(new(server).tts.convert(text=SENTENCE, config=louder))
    request = server.speeches[-1].request
    assert (request.temperature, request.top_p) == (0.5, 0.9)
    expected = server.native(
        SENTENCE, sample_rate=16_000, quality="high", gain_db=-6.0, temperature=0.5, top_p=0.9
    )
    assert_same(heard, expected)


def test_leaving_early_stops_within_a_frame(talkative: Watched) -> None:
    held = Interruption(talkative)
    audio = new(talkative).tts.stream_websocket(iter([LONG]), config=config())
    assert next(iter(audio))
    held.wait_until_held()
    audio.close()
    held.wait_until_known()
    assert held.finish() <= 1


def test_leaving_http_early_stops_within_a_frame(talkative: Watched) -> None:
    held = Interruption(talkative)
    with legacy.Session("any", base_url=talkative.url) as session:
        audio = session.tts(legacy_request(LONG))
        assert next(audio)
        held.wait_until_held()
        audio.close()
        held.wait_until_known()
        assert held.finish() <= 1


def test_errors_are_the_clients_own(server: Watched) -> None:
    client = new(server)
    with pytest.raises(fishaudio.exceptions.NotFoundError, match="missing"):
        client.tts.convert(text=SENTENCE, reference_id="missing")
    with pytest.raises(fishaudio.exceptions.WebSocketError):
        list(client.tts.stream_websocket(iter([SENTENCE]), reference_id="missing"))
    with (
        legacy.Session("any", base_url=server.url) as session,
        pytest.raises(legacy.HttpCodeErr) as refused,
    ):
        list(session.tts(legacy.TTSRequest(text=SENTENCE, reference_id="missing")))
    assert refused.value.status == 404
    assert_same(convert(server), server.native(SENTENCE, sample_rate=16_000))
