"""The LiveKit plugin against a real server: audio, marks, metrics, options, errors, its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rt_drama3_client import Settings, UsageError
from tests.clients.livekit.tools import RATE, hear, plugin, replayed, say, speak, without_marker
from tests.integrations.conftest import run
from tests.integrations.tools import FLUSH, SENTENCES, Watched, assert_same, samples_of
from tests.ports import free_port
from tests.server.tools import Place
from tests.small import WAIT

from livekit.agents import (  # isort: skip - tools has looked whether it is there
    APIConnectionError,
    APIConnectOptions,
    APIError,
    APIStatusError,
    APITimeoutError,
)

ONCE = APIConnectOptions(max_retry=0, timeout=WAIT)


@pytest.mark.parametrize("rate", [24_000, 16_000, 44_100])
def test_synthesize(rate: int, server: Watched) -> None:
    async def work() -> bytes:
        async with plugin(server, sample_rate=rate) as tts:
            return (await hear(tts.synthesize(SENTENCES[0]), rate)).pcm

    heard = run(work())
    expected = server.native(SENTENCES[0], sample_rate=rate)
    assert_same(without_marker(heard, expected, rate), expected)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_stream(size: int, server: Watched) -> None:
    """However the text is cut, and the second utterance over the first one's connection."""
    found: list[Any] = []

    async def utterance(tts: Any, number: int, *sentences: str) -> bytes:
        async with tts.stream() as stream:
            _, heard = await asyncio.gather(
                say(stream, server, number, *sentences, size=size), hear(stream)
            )
        return bytes(heard.pcm)

    async def work() -> list[bytes]:
        async with plugin(server) as tts:
            tts.on("metrics_collected", found.append)
            heard = [await utterance(tts, 0, *SENTENCES), await utterance(tts, 1, SENTENCES[1])]
            assert tts.model != "unknown"
            return heard

    first, second = run(work())
    expected = replayed(server, 0, " ".join(SENTENCES))
    assert_same(without_marker(first, expected), expected)
    expected = replayed(server, 1, SENTENCES[1])
    assert_same(without_marker(second, expected), expected)
    assert [metrics.connection_reused for metrics in found] == [False, True]
    assert [metrics.acquire_time > 0 for metrics in found] == [True, False]


def test_utterance_starts_before_its_text_ends(server: Watched) -> None:
    async def work() -> bytes:
        async with plugin(server) as tts, tts.stream() as stream:
            stream.push_text("Hello there. ")
            first = await anext(stream)
            assert not stream._input_ch.closed
            stream.push_text("And another one.")
            stream.end_input()
            return bytes(first.frame.data) + (await hear(stream)).pcm

    heard = run(work())
    expected = replayed(server, 0, "Hello there. And another one.")
    # In the pause between the two, LiveKit releases what it held back; nothing is added there.
    assert_same(without_marker(heard, expected), expected)


def test_early_words(server: Watched) -> None:
    """The flush comes at the end of a word, wherever the tokens end."""

    async def work() -> bytes:
        async with plugin(server, early_words=2) as tts:
            return (await speak(tts, ["Hel", "lo th", "ere a", "nd good day. ", "Yes."])).pcm

    heard = run(work())
    expected = server.native(
        "Hello there ", FLUSH, "and good day. ", FLUSH, "Yes.", sample_rate=RATE
    )
    assert_same(without_marker(heard, expected), expected)
    assert server.segments(-1)[0][0] == "Hello there"


def test_flush_speaks_an_incomplete_sentence(server: Watched) -> None:
    async def work() -> None:
        async with plugin(server) as tts, tts.stream() as stream:
            stream.push_text("No end in sight")
            stream.flush()
            assert (await anext(stream)).frame.duration > 0
            stream.end_input()
            await hear(stream)

    run(work())


def test_timed_strings(server: Watched) -> None:
    """Joined, they are the text; they stand where the server says that a segment begins."""
    written = ["Hello", " there.\n", "And  another ", "one. Now", " the third."]

    async def work() -> Any:
        async with plugin(server) as tts:
            assert tts.capabilities.aligned_transcript
            return await speak(tts, written)

    heard = run(work())
    spoken, frame = server.speeches[-1].result(WAIT), 2048 / 44_100
    *marks, (last, end) = heard.marks
    assert "".join(text for text, _ in marks) == "".join(written)
    assert [text.strip() for text, _ in marks] == [text for text, _ in spoken.segments]
    for (_, start), (_, first_frame) in zip(marks, spoken.segments, strict=True):
        assert start == pytest.approx(first_frame * frame, abs=1 / RATE)
    assert (last, end) == ("", samples_of(server.frames(), RATE) / RATE)


def test_metrics(server: Watched) -> None:
    found: list[Any] = []

    async def work() -> None:
        async with plugin(server) as tts:
            tts.on("metrics_collected", found.append)
            await speak(tts, [SENTENCES[0]])
            await hear(tts.synthesize(SENTENCES[0]))

    run(work())
    seconds = samples_of(server.frames(), RATE) / RATE
    assert [metrics.streamed for metrics in found] == [True, False]
    for metrics in found:
        assert 0 < metrics.ttfb <= metrics.duration
        assert metrics.audio_duration == pytest.approx(seconds, abs=0.011)
        assert metrics.characters_count == len(SENTENCES[0])
        assert not metrics.cancelled
        assert metrics.request_id
        assert metrics.metadata.model_provider == "rt-drama3"


def test_updated_options_apply_to_the_next_utterance(server: Watched) -> None:
    async def work() -> None:
        async with plugin(server, temperature=0.5) as tts:
            await speak(tts, [SENTENCES[0]])
            tts.update_options(temperature=0.4, top_p=0.8, guidance=2, seed=7)
            await speak(tts, [SENTENCES[0]])
            tts.update_options(temperature=None)
            await hear(tts.synthesize(SENTENCES[0]))
            with pytest.raises(UsageError, match="speed"):
                tts.update_options(speed=1.2)

    run(work())
    asked = [speech.request for speech in server.speeches]
    assert [r.temperature for r in asked] == [0.5, 0.4, None]
    assert [r.top_p for r in asked] == [None, 0.8, 0.8]
    assert [r.seed for r in asked] == [48, 7, 7]
    assert asked[1].guidance == 2


@pytest.mark.parametrize("settings", [{"speed": 1.1}, {"format": "mp3"}, {"early_words": 0}])
def test_invalid_arguments_raise_immediately(settings: dict[str, Any]) -> None:
    async def work() -> None:
        with pytest.raises(UsageError):
            async with plugin("http://127.0.0.1:1", **settings):
                pass

    run(work())


@pytest.mark.parametrize("text", ["...", " \n"])
def test_unspeakable_text_is_not_an_error(text: str, server: Watched) -> None:
    failed: list[Any] = []

    async def work() -> list[bytes]:
        async with plugin(server) as tts:
            tts.on("error", failed.append)
            heard = [(await speak(tts, [text])).pcm, (await speak(tts, [])).pcm]
            if text.strip():
                heard.append((await hear(tts.synthesize(text))).pcm)
            return heard

    for pcm in run(work()):
        assert len(pcm) <= 2 * RATE // 50
        assert not any(pcm)
    assert not failed


async def failure(tts: Any, **more: Any) -> APIError:
    """The error of an utterance, the same both ways."""
    with pytest.raises(APIError) as first:
        await hear(tts.synthesize(SENTENCES[0], **more))
    with pytest.raises(APIError) as second:
        await speak(tts, [SENTENCES[0]], **more)
    assert type(first.value) is type(second.value)
    assert first.value.retryable == second.value.retryable
    return first.value


def test_refused_request_is_not_retried(server: Watched) -> None:
    errors: list[Any] = []

    async def work() -> APIError:
        async with plugin(server, voice="missing") as tts:
            tts.on("error", errors.append)
            error = await failure(tts)
            tts.update_options(voice=None)
            assert (await speak(tts, [SENTENCES[0]])).pcm
            return error

    error = run(work())
    assert isinstance(error, APIStatusError)
    assert (error.status_code, error.retryable) == (404, False)
    assert "missing" in error.message
    assert error.body["code"] == "unknown_voice"
    assert [event.recoverable for event in errors] == [False, False]


def test_no_server() -> None:
    async def work() -> APIError:
        async with plugin(f"http://127.0.0.1:{free_port()}") as tts:
            return await failure(tts, conn_options=ONCE)

    error = run(work())
    assert type(error) is APIConnectionError
    assert error.retryable


def test_unresponsive_server() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def work() -> APIError:
        async with await asyncio.start_server(silent, "127.0.0.1", 0) as silence:
            port = silence.sockets[0].getsockname()[1]
            brief = APIConnectOptions(max_retry=0, timeout=0.2)
            async with plugin(f"http://127.0.0.1:{port}") as tts:
                return await failure(tts, conn_options=brief)

    error = run(work())
    assert type(error) is APITimeoutError
    assert error.retryable


def test_livekit_retries_until_the_server_is_running(server: Watched) -> None:
    """What was pushed meanwhile is not lost."""
    errors: list[Any] = []

    async def work() -> bytes:
        port = free_port()
        quick = APIConnectOptions(max_retry=3, retry_interval=0.1, timeout=WAIT)
        async with plugin(f"http://127.0.0.1:{port}", client_settings=Settings(attempts=1)) as tts:
            stream = tts.stream(conn_options=quick)
            tts.on("error", errors.append)
            tts.once("error", lambda _: relays.append(asyncio.ensure_future(relay(port, server))))
            relays: list[asyncio.Future[asyncio.Server]] = []
            stream.push_text("Hello ")
            stream.push_text("there.")
            stream.end_input()
            heard = await hear(stream)
            await stream.aclose()
        (await relays[0]).close()
        return heard.pcm

    heard = run(work())
    assert [event.recoverable for event in errors] == [True]
    expected = server.native("Hello there.", sample_rate=RATE)
    assert_same(without_marker(heard, expected), expected)


async def relay(port: int, server: Watched) -> asyncio.Server:
    """Another door to a server."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server.place.port)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    return await asyncio.start_server(visit, "127.0.0.1", port)


def test_prewarm_connects_in_advance(server: Watched) -> None:
    found: list[Any] = []

    async def work() -> None:
        async with plugin(server) as tts:
            tts.on("metrics_collected", found.append)
            tts.prewarm()
            await tts._warming
            await speak(tts, [SENTENCES[0]])
        async with plugin(f"http://127.0.0.1:{free_port()}") as tts:
            tts.prewarm()  # says so in the log alone

    run(work())
    assert [metrics.connection_reused for metrics in found] == [True]


def test_closing_ends_utterances(endless: Place) -> None:
    async def work() -> None:
        async with plugin(endless.url) as tts:
            stream, chunked = tts.stream(), tts.synthesize("One. Two. Three.")
            stream.push_text("Hello there. ")
            await anext(stream)
            await anext(chunked)

    run(work())
    endless.until_free()
