"""Barge-in: cancelling, leaving early, and what the connection is good for afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rt_drama3_client import (
    AsyncClient,
    ClientClosed,
    ServerSilent,
    Settings,
    SpeechCancelled,
)
from tests.clients.python.fake import QUICK, Peer, run, served
from tests.server.tools import LONG, Place
from tests.small import WAIT

SMALL_BUFFER = Settings(buffer_bytes=5_000)


def test_barge_in_keeps_the_connection(endless: Place) -> None:
    async def work() -> None:
        async with AsyncClient(endless.url) as client:
            for turn in range(3):
                async with client.stream() as speech:
                    await speech.push(LONG)
                    async for _ in speech:
                        break
                    await speech.push(LONG)  # more text after the audio began
                    report = await speech.cancel()
                    assert report.acknowledged
                    assert report.id == speech.request_id
                    assert report.generated_frames * 2048 >= report.sent.samples > 0
                    assert [chunk async for chunk in speech] == []
                    assert await speech.cancel() == report
                    with pytest.raises(SpeechCancelled):
                        await speech.read()
                assert speech.timings.reused == (turn > 0)
                endless.until_free()

    run(work())


def test_barge_in_without_a_reader(endless: Place) -> None:
    async def work() -> None:
        async with AsyncClient(endless.url, settings=SMALL_BUFFER) as client:
            speech = client.speak(LONG)
            async with speech:
                async for _ in speech:
                    break
                inbox = speech._inbox
                while inbox._size <= SMALL_BUFFER.buffer_bytes:  # full: the reader waits
                    await inbox.wait(WAIT)
                await speech.cancel()
            assert await client.speak("Hello.", seed=3, max_seconds=0.1).read()
            assert speech.timings.attempts == 1

    run(work())


@pytest.mark.parametrize("how", ["break", "task", "block", "close"])
def test_leaving_early_stops_the_speech(endless: Place, how: str) -> None:
    async def listen(client: AsyncClient) -> None:
        if how == "block":
            async with client.speak(LONG) as speech:
                async for _ in speech:
                    return
        async for _ in client.speak(LONG):
            if how == "break":
                return
            heard.set()

    async def work() -> None:
        async with AsyncClient(endless.url) as client:
            listening = asyncio.create_task(listen(client))
            if how in ("task", "close"):
                await heard.wait()
                if how == "task":
                    listening.cancel()
                else:
                    await client.close()
                with pytest.raises(asyncio.CancelledError if how == "task" else ClientClosed):
                    await listening
            else:
                await listening
            await asyncio.to_thread(endless.until_free)

    heard = asyncio.Event()
    run(work())


def test_cancelled_utterance_returns_no_events() -> None:
    async def script(peer: Peer) -> None:
        await peer.take()
        await peer.ready()
        for _ in range(3):
            await peer.audio()
        await peer.take_until("cancel")
        for _ in range(3):
            await peer.audio()
        await peer.cancelled()
        await peer.take()
        await peer.ready("u2")
        await peer.audio(b"\7\7", "u1")  # of the old one: not the new one's
        await peer.audio(b"\5\5", "u2")
        await peer.done("u2")

    async def work() -> None:
        async with served(script) as (_, client):
            async with client.speak("Hello.") as speech:
                async for _ in speech:
                    break
                after: list[bytes] = []

                async def listen() -> None:
                    async for chunk in speech:
                        after.append(chunk)

                while speech._inbox.sent().messages < 3:
                    await speech._inbox.wait(WAIT)
                cancelling = asyncio.create_task(speech.cancel())
                listening = asyncio.create_task(listen())
                report = await cancelling
                await listening
                assert after == []
                assert (report.generated_frames, report.sent.messages) == (3, 2)
            assert await client.speak("Next.").read() == b"\5\5"

    run(work())


def test_cancel_that_crosses_done() -> None:
    async def script(peer: Peer) -> None:
        await peer.take()
        await peer.ready()
        await peer.audio()
        await peer.take_until("cancel")
        await peer.done()
        await peer.cancelled(frames=0)
        await peer.speak()

    async def work() -> None:
        async with served(script) as (server, client):
            async with client.speak("Hello.") as speech:
                async for _ in speech:
                    break
                report = await speech.cancel()
                assert report.finished
                assert report.generated_frames == 1
            assert await client.speak("Next.").read()
            assert len(server.peers) == 1

    run(work())


def test_cancel_without_a_response_drops_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.take()
        await peer.ready()
        await peer.audio()

    async def work() -> None:
        async with served(script, settings=replace(QUICK, cancel_timeout=0.05)) as (server, client):
            async with client.speak("Hello.") as speech:
                async for _ in speech:
                    break
                with pytest.raises(ServerSilent, match="did not respond to a cancel"):
                    await speech.cancel()
            async with client.speak("Hello.") as speech:
                async for _ in speech:
                    break
                server.peers[1].drop()
                report = await speech.cancel()
            assert not report.acknowledged
            assert report.sent.samples == 100

    run(work())


def test_cancel_before_the_start_and_after_the_end(ending: Place) -> None:
    async def work() -> None:
        async with AsyncClient(ending.url) as client:
            speech = client.speak("Hello.")
            assert (await speech.cancel()).generated_frames == 0
            assert [chunk async for chunk in speech] == []
            speech = client.speak("Hello.")
            await speech.read()
            report = await speech.cancel()
            assert report.finished
            assert speech.done is not None
            assert report.sent == speech.done.sent

    run(work())
