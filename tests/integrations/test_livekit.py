"""livekit-plugins-fishaudio, unchanged: synthesize, stream, the pooled socket, interruptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import run
from tests.integrations.tools import (
    FLUSH,
    SENTENCES,
    Interruption,
    Watched,
    assert_same,
    samples_of,
)
from tests.server.tools import LONG, serving
from tests.small import WAIT, ending_drama, until

aiohttp = pytest.importorskip("aiohttp", reason="needs livekit-plugins-fishaudio")
fish = pytest.importorskip(
    "livekit.plugins.fishaudio", reason="needs livekit-plugins-fishaudio", exc_type=ImportError
)

RATE = 24_000  # the plugin's own choice


@asynccontextmanager
async def plugin(server: Watched, **settings: Any) -> AsyncIterator[Any]:
    """The plugin outside of a LiveKit job, which would bring the HTTP session along."""
    async with aiohttp.ClientSession() as session:
        tts = fish.TTS(api_key="any", base_url=server.url, http_session=session, **settings)
        try:
            yield tts
        finally:
            await tts.aclose()


async def speak(tts: Any, *words: str) -> bytes:
    """What a listener hears of text that comes piece by piece."""
    async with tts.stream() as stream:
        for word in words:
            stream.push_text(word)
        stream.end_input()
        return b"".join([bytes(event.frame.data) async for event in stream])


def expected(server: Watched, *sentences: str, sample_rate: int = RATE) -> bytes:
    """The same from the native dialect, flushed as the plugin does."""
    parts: list[Any] = []
    for sentence in sentences:
        parts += [sentence + " ", FLUSH]
    return server.native(*parts, sample_rate=sample_rate)


def without_marker(heard: bytes, samples: int, rate: int = RATE) -> bytes:
    """Without the 10 ms of silence that LiveKit sometimes marks the end of an utterance with."""
    assert heard[2 * samples :] in (b"", bytes(2 * rate // 100))
    return heard[: 2 * samples]


# The plugin asks for wav by default, and unpacks it itself.
@pytest.mark.parametrize("settings", [{}, {"output_format": "pcm"}], ids=["wav", "pcm"])
def test_synthesize(settings: dict[str, Any], server: Watched) -> None:
    async def work() -> bytes:
        async with plugin(server, **settings) as tts:
            frames = [event.frame async for event in tts.synthesize(SENTENCES[0])]
        assert {(f.sample_rate, f.num_channels) for f in frames} == {(RATE, 1)}
        return b"".join(bytes(frame.data) for frame in frames)

    heard = without_marker(run(work()), samples_of(server.frames(), RATE))
    assert_same(heard, server.native(SENTENCES[0], sample_rate=RATE))


@pytest.mark.parametrize(
    ("settings", "rate"),
    [({}, RATE), ({"output_format": "pcm"}, RATE), ({"sample_rate": 16_000}, 16_000)],
    ids=["wav", "pcm", "wav at 16 kHz"],
)
def test_two_utterances_on_the_pooled_socket(
    settings: dict[str, Any], rate: int, server: Watched
) -> None:
    connections = server.place.metric("utterances_total", route="/v1/tts/live")

    async def work() -> list[bytes]:
        async with plugin(server, **settings) as tts:
            heard = [await speak(tts, "Hello ", "there. And ", "another one.")]
            heard.append(await speak(tts, "Now ", "the third."))
            assert tts._pool.last_connection_reused
            return heard

    first, second = run(work())
    made = [speech.result(WAIT).codes.shape[1] for speech in server.speeches]
    first, second = (
        without_marker(one, samples_of(frames, rate), rate)
        for one, frames in zip((first, second), made, strict=True)
    )
    assert_same(first, expected(server, *SENTENCES[:2], sample_rate=rate))
    assert_same(second, expected(server, SENTENCES[2], sample_rate=rate))
    assert server.place.metric("utterances_total", route="/v1/tts/live") == connections + 2


def test_a_socket_that_waits_in_the_pool_is_used_again(tmp_path: Path) -> None:
    """The plugin does not read it meanwhile, and so answers no pings."""
    with serving(ending_drama(), tmp_path, ping_seconds=0.5) as place:
        connections = place.server._uvicorn.server_state.connections

        def pinged(websocket: Any) -> None:
            for _ in range(2):
                before = websocket.ping_sent_at
                until(lambda before=before: websocket.ping_sent_at > before, "a ping")

        async def work() -> None:
            async with aiohttp.ClientSession() as session:
                tts = fish.TTS(api_key="any", base_url=place.url, http_session=session)
                assert await speak(tts, "Hello there.")
                (websocket,) = connections
                await asyncio.to_thread(pinged, websocket)
                assert await speak(tts, "Hello again.")
                assert set(connections) == {websocket}
                await tts.aclose()

        run(work())


@pytest.mark.parametrize(("name", "rate", "lost"), [("mp3", 32_000, 0), ("opus", 48_000, 960)])
def test_compressed_formats(name: str, rate: int, lost: int, server: Watched) -> None:
    """LiveKit's decoder drops the first 20 ms of every Ogg Opus, of any writer."""

    async def work() -> bytes:
        async with plugin(server, output_format=name) as tts:
            return await speak(tts, SENTENCES[0])

    heard = run(work())
    samples = samples_of(server.frames(), rate)
    assert -lost <= len(heard) // 2 - samples <= 0.1 * rate


def test_its_defaults_are_not_taken_for_wishes(server: Watched) -> None:
    async def work() -> None:
        async with plugin(server) as tts:  # with a voice of the cloud, 0.7 and 0.7, and features
            await speak(tts, SENTENCES[0])
        async with plugin(server, temperature=0.4, top_p=0.8, model="drama-3") as tts:
            await speak(tts, SENTENCES[0])

    run(work())
    usual, chosen = (speech.request for speech in server.speeches)
    assert (usual.temperature, usual.top_p) == (None, None)
    assert (chosen.temperature, chosen.top_p) == (0.4, 0.8)


def test_metrics(server: Watched) -> None:
    found: list[Any] = []

    async def work() -> None:
        async with plugin(server) as tts:
            tts.on("metrics_collected", found.append)
            await speak(tts, SENTENCES[0])
            await speak(tts, SENTENCES[0])

    run(work())
    assert [metrics.cancelled for metrics in found] == [False, False]
    seconds = samples_of(server.frames(), RATE) / RATE
    for metrics in found:
        assert 0 < metrics.ttfb <= metrics.duration
        assert metrics.audio_duration == pytest.approx(seconds, abs=0.011)
        assert metrics.characters_count == len(SENTENCES[0])


def test_interruption(talkative: Watched) -> None:
    """The plugin closes the socket of an interrupted utterance when it needs the next one."""

    async def work() -> None:
        async with plugin(talkative) as tts:
            held = Interruption(talkative)
            stream = tts.stream()
            stream.push_text(LONG)
            stream.end_input()
            await anext(aiter(stream))
            await asyncio.to_thread(held.wait_until_held)
            await stream.aclose()  # what an agent session does when the user speaks
            again = tts.stream()
            again.push_text(LONG)
            again.flush()
            await asyncio.to_thread(held.wait_until_known)
            assert await asyncio.to_thread(held.finish) <= 1
            assert await anext(aiter(again))
            assert not tts._pool.last_connection_reused
            await again.aclose()

    run(work())
    assert len(talkative.speeches) == 2


def test_errors_are_the_frameworks_own(server: Watched) -> None:
    from livekit.agents import APIConnectOptions, APIError

    async def work() -> None:
        async with plugin(server, voice_id="missing") as tts:
            once = APIConnectOptions(max_retry=0, timeout=30)
            with pytest.raises(APIError):
                async for _ in tts.synthesize(SENTENCES[0], conn_options=once):
                    pass
            stream = tts.stream(conn_options=once)
            stream.push_text(SENTENCES[0])
            stream.end_input()
            with pytest.raises(APIError):
                async for _ in stream:
                    pass
            await stream.aclose()
            tts.update_options(voice_id="0" * 32)
            assert await speak(tts, SENTENCES[0])

    run(work())
