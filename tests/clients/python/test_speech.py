"""Speech of a real server, and of a scripted one where the order of messages matters."""

from __future__ import annotations

import asyncio
import itertools
import threading
import wave
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import av
import pytest

from rt_drama3.audio import read_audio
from rt_drama3_client import (
    FLUSH,
    AsyncClient,
    AudioChunk,
    Client,
    ClientClosed,
    Done,
    Notice,
    Ready,
    Segment,
    ServerSilent,
    UnknownVoice,
    UsageError,
)
from rt_drama3_client.speech import AHEAD
from tests.clients.python.fake import QUICK, Peer, run, served
from tests.server.tools import LONG, Place
from tests.small import WAIT, until


def test_events_arrive_in_order(ending: Place) -> None:
    async def work() -> None:
        async with AsyncClient(ending.url) as client:
            speech = client.speak(
                "Hello there. And another one.", seed=3, timings=True, take=True, sample_rate=16_000
            )
            events = [event async for event in speech.events()]
        assert isinstance(events[0], Ready)
        assert isinstance(events[-1], Done)
        done, place = events[-1], 0
        audio = [event for event in events if isinstance(event, AudioChunk)]
        for number, chunk in enumerate(audio):
            assert (chunk.seq, chunk.first_sample) == (number, place)
            assert len(chunk) == 2 * chunk.samples
            if chunk.stamps or not number:  # what a resampler held back at the end has none
                assert chunk.stamps["decoded"] <= chunk.stamps["sent"]
            place += chunk.samples
        assert place == done.sent.samples == -(-done.frames * 2048 * 16_000 // 44_100)
        assert done.seed == 3
        assert done.take is not None
        assert len(done.take.vq_codes) == 2 * done.take.num_codebooks * done.take.frames
        assert [s.text for s in speech.segments] == [
            s.text for s in events if isinstance(s, Segment)
        ]
        timings = speech.timings
        assert timings.ready is not None
        assert timings.first_audio is not None
        assert timings.total is not None
        assert 0 < timings.ready <= timings.first_audio <= timings.total
        assert timings.server["first_audio_ms"] is not None
        assert not timings.reused

    run(work())


def test_notices_are_events_and_are_kept() -> None:
    async def script(peer: Peer) -> None:
        await peer.take_until("start")
        await peer.ready()
        await peer.say("notice", id="u1", text="[1] is not spoken.")
        await peer.audio()
        await peer.done()

    async def work() -> None:
        async with served(script) as (_, client):
            speech = client.speak("Hi, see [1].")
            events = [event async for event in speech.events()]
            assert Notice("[1] is not spoken.") in events
            assert speech.notices == ["[1] is not spoken."]

    run(work())


def test_audio_does_not_depend_on_the_kind_of_source(ending: Place) -> None:
    text = "Hello there. And another one."

    async def words() -> AsyncIterator[str]:
        for word in text.split(" "):
            await asyncio.sleep(0)
            yield word + " "

    async def work() -> None:
        async with AsyncClient(ending.url) as client:
            whole = await client.speak(list(text), seed=3).read()
            assert whole
            assert await client.speak(words(), seed=3).read() == whole
            assert await client.speak((c for c in text), seed=3).read() == whole
            async with client.stream(seed=3) as speech:
                for word in text.split(" "):
                    await speech.push(word + " ")
                await speech.finish()
                assert await speech.read() == whole

    run(work())


def test_connections_are_reused(ending: Place) -> None:
    async def work() -> None:
        async with AsyncClient(ending.url) as client:
            assert await client.connect() > 0
            for _ in range(3):
                speech = client.speak("Hello.")
                await speech.read()
                assert speech.timings.reused
            both = client.speak("Hello."), client.speak("Hello.")
            await asyncio.gather(*(speech.read() for speech in both))
            assert sorted(speech.timings.reused for speech in both) == [False, True]

    run(work())


def test_audio_arrives_while_text_is_pushed(endless: Place) -> None:
    async def work() -> None:
        heard = asyncio.Event()

        async def text() -> AsyncIterator[str]:
            yield "Hello there, this is a whole sentence. And "
            await heard.wait()  # would wait for ever if audio waited for the end of the text
            yield "more."

        async with AsyncClient(endless.url) as client:
            async for _ in client.speak(text(), max_seconds=1):
                heard.set()
        endless.until_free()

    run(work())


def test_flush_speaks_an_incomplete_sentence(endless: Place) -> None:
    async def work() -> None:
        async with AsyncClient(endless.url) as client:
            async with client.stream() as speech:
                await speech.push("No end of a sentence")
                await speech.flush()
                async for _ in speech:
                    break
            async for _ in client.speak(itertools.chain(["Nor here", FLUSH], endless_text())):
                break
        endless.until_free()

    def endless_text() -> Iterator[str]:
        over.wait(WAIT)
        yield "x"

    over = threading.Event()
    try:
        run(work())
    finally:
        over.set()


def test_slow_reader_applies_backpressure() -> None:
    data, count = b"\1\2" * 30_000, 400  # more than the system's buffers hold
    all_sent = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.take()
        await peer.ready()
        for _ in range(count):
            await peer.audio(data)
        await peer.done()
        all_sent.set()

    async def work() -> None:
        settings = replace(QUICK, buffer_bytes=100_000, ping_seconds=0.05)
        async with served(script, settings=settings) as (_, client):
            speech, size = client.speak("Hello."), 0
            async for chunk in speech:
                if not size:
                    while speech._inbox._size <= settings.buffer_bytes:
                        await speech._inbox.wait(WAIT)
                    await asyncio.sleep(0.3)  # unread pings must not look like a dead server
                    assert not all_sent.is_set()
                assert speech._inbox._size <= settings.buffer_bytes + 2 * len(data)
                size += len(chunk)
            assert size == count * len(data)

    run(work())


def test_push_blocks_while_too_much_text_is_pending() -> None:
    received, enough = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.take()
        await peer.ready()
        size = 0
        while size <= AHEAD:
            size += len((await peer.take())["text"])
        received.set()
        await enough.wait()
        await peer.segment("x" * AHEAD)
        await peer.take_until("finish")
        await peer.audio()
        await peer.done()

    async def silent(peer: Peer) -> None:
        await peer.take()
        await peer.ready()

    async def work() -> None:
        async with served(script) as (_, client), client.stream() as speech:
            pushing = asyncio.create_task(speech.push("x" * (AHEAD + 1)))
            await received.wait()
            assert not pushing.done()
            enough.set()
            await pushing
            await speech.finish()
            assert await speech.read()
        settings = replace(QUICK, timeout=0.05)
        async with served(silent, settings=settings) as (_, client), client.stream() as speech:
            with pytest.raises(ServerSilent, match="read audio while pushing"):
                await speech.push("x" * (AHEAD + 1))

    run(work())


def test_error_of_the_source_is_raised(endless: Place) -> None:
    async def broken() -> AsyncIterator[str]:
        yield "Hello there, this is a whole sentence. "
        raise LookupError("the model is gone")

    def odd() -> Iterator[str]:
        yield "Hello. "
        yield 7  # type: ignore[misc]

    async def work() -> None:
        async with AsyncClient(endless.url) as client:
            with pytest.raises(LookupError, match="the model is gone"):
                await client.speak(broken()).read()
            with pytest.raises(UsageError, match="a part of the text is 7"):
                await client.speak(odd()).read()
            with pytest.raises(UsageError, match="text is a int"):
                await client.speak(7).read()  # type: ignore[arg-type]
            speech = client.speak("Hello.", seed=3, max_seconds=0.1)
            assert await speech.read()
            assert speech.timings.reused
        endless.until_free()

    run(work())


def test_source_is_closed_when_the_reader_leaves(endless: Place) -> None:
    closed = asyncio.Event()

    async def model() -> AsyncIterator[str]:
        try:
            for number in itertools.count():
                yield f"This is sentence {number}. "
                await asyncio.sleep(0)
        finally:
            closed.set()

    def thread() -> Iterator[str]:
        for number in itertools.count():
            yield f"This is sentence {number}. "

    def reading() -> bool:
        return any(t.name == "rt-drama3-client text" for t in threading.enumerate())

    async def work() -> None:
        async with AsyncClient(endless.url) as client:
            async for _ in client.speak(model()):
                break
            await closed.wait()
            async for _ in client.speak(thread()):
                break
            await asyncio.to_thread(until, lambda: not reading(), "the end of the thread")

    run(work())


@pytest.mark.parametrize(
    ("name", "least"), [("x.wav", 0), ("x.mp3", 0), ("x.opus", 0), ("x.flac", 0), ("x.aac", 0)]
)
def test_files_by_extension(ending: Place, tmp_path: Path, name: str, least: int) -> None:
    async def work() -> None:
        async with AsyncClient(ending.url) as client:
            done = await client.speak("Hello there.", seed=3).save(tmp_path / name)
        samples, rate = read_audio(tmp_path / name)
        assert len(samples) / rate == pytest.approx(done.sent.seconds, abs=0.12)

    run(work())


def test_wav_has_correct_sizes(ending: Place, tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncClient(ending.url) as client:
            pcm = await client.speak("Hello there.", seed=3).read()
            audio = await client.speak("Hello there.", seed=3, format="wav").read()
            await client.speak("Hello there.", seed=3).save(tmp_path / "x.wav")
            assert (tmp_path / "x.wav").read_bytes() == audio
            with wave.open(str(tmp_path / "x.wav")) as file:
                assert file.getnframes() == len(pcm) // 2
                assert file.readframes(1 << 20) == pcm
            assert int.from_bytes(audio[4:8], "little") == len(audio) - 8
            with pytest.raises(UsageError, match="has no supported extension"):
                await client.speak("Hello.").save(tmp_path / "x.txt")
            with pytest.raises(UsageError, match="would hold mp3, but wav was requested"):
                await client.speak("Hello.", format="wav").save(tmp_path / "x.mp3")
            done = await client.speak("Hello there.", seed=3).save(tmp_path / "x.flac")
            header = (tmp_path / "x.flac").read_bytes()[:26]
            assert int.from_bytes(header[21:26], "big") & (1 << 36) - 1 == done.sent.samples > 0
            assert header[21] >> 4 == 15  # of 16 bits a sample, less one, as it was
            with av.open(str(tmp_path / "x.flac")) as container:
                frames = list(container.decode(audio=0))
            assert sum(frame.samples for frame in frames) == done.sent.samples
            for ending_in in ("mp3", "opus", "flac", "aac"):  # players fail at files without sound
                path = tmp_path / f"nothing.{ending_in}"
                done = await client.speak("...").save(path)
                assert (done.frames, done.sent.samples) == (0, 441 if ending_in != "opus" else 480)
                with av.open(str(path)) as container:
                    assert sum(frame.samples for frame in container.decode(audio=0)) > 0
            await client.speak("...").save(tmp_path / "nothing.wav")
            with wave.open(str(tmp_path / "nothing.wav")) as file:
                assert file.getnframes() == 0

    run(work())


def test_invalid_calls_raise(ending: Place) -> None:
    async def work() -> None:
        async with AsyncClient(ending.url) as client:
            with pytest.raises(UsageError, match="unknown option sped"):
                client.speak("Hello.", sped=2)  # type: ignore[call-arg]
            with pytest.raises(UsageError, match="cannot be sent"):
                await client.speak("Hello.", seed=object()).read()  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="use stream"):
                await client.speak("Hello.").push("more")
            with pytest.raises(UsageError, match="nothing is being spoken"):
                await client.speak("Hello.").ping()
            async with client.stream() as speech:
                await speech.finish()
                with pytest.raises(UsageError, match="has ended"):
                    await speech.push("more")
            with pytest.raises(UnknownVoice, match=r"missing.*Name a voice"):
                await client.speak("Hello.", voice="missing").read()
        with pytest.raises(ClientClosed):
            await client.speak("Hello.").read()

    run(work())


def test_pings(endless: Place) -> None:
    async def work() -> None:
        async with AsyncClient(endless.url) as client:
            pong = await client.ping()
            assert pong.seconds > 0
            async with client.speak(LONG) as speech:
                async for _ in speech:
                    break
                assert (await speech.ping()).server_ms > pong.server_ms

    run(work())


@pytest.mark.parametrize("text", [None, b"Hello.", 7])
def test_other_values_than_text_raise_immediately(text: object) -> None:
    with pytest.raises(UsageError, match="text is"):
        AsyncClient().speak(text)  # type: ignore[arg-type]
    with Client() as client, pytest.raises(UsageError, match="text is"):
        client.speak(text)  # type: ignore[arg-type]


def test_unspeakable_text_has_a_seed(ending: Place) -> None:
    async def work() -> None:
        async with AsyncClient(ending.url) as client:
            for seed in (None, 7):
                whole, pieces = client.speak("...", seed=seed), client.speak(["..."], seed=seed)
                for speech in (whole, pieces):
                    assert await speech.read() == b""
                    assert speech.done is not None
                    assert speech.done.seed  # 0 is drawn once in 2^32
                    assert seed is None or speech.done.seed == seed

    run(work())


def test_finishing_twice_raises(ending: Place) -> None:
    async def work() -> None:
        async with AsyncClient(ending.url) as client, client.stream(seed=3) as speech:
            await speech.push("Hello there.")
            await speech.finish()
            for again in (speech.finish, speech.flush):
                with pytest.raises(UsageError, match="has ended"):
                    await again()
            assert await speech.read()

    run(work())
