"""Client: the same without an event loop; its thread, and what several threads do with it."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from rt_drama3_client import (
    Client,
    ClientClosed,
    Done,
    Ready,
    Speech,
    SpeechCancelled,
    UnknownVoice,
)
from rt_drama3_client.sync import _Loop
from tests.server.tools import LONG, Place
from tests.small import WAIT, until


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("rt-drama3-client")]


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    until(lambda: not threads(), "the end of the client's threads")


def test_one_shot(ending: Place, tmp_path: Path) -> None:
    with Client(ending.url) as client:
        assert client.connect() > 0
        audio = client.speak("Hello there.", seed=3).read()
        assert b"".join(client.speak("Hello there.", seed=3)) == audio
        speech = client.speak("Hello there.", seed=3)
        events = list(speech.events())
        assert isinstance(events[0], Ready)
        assert isinstance(events[-1], Done)
        assert (events[0], events[-1]) == (speech.ready, speech.done)
        assert speech.request_id == speech.done.id
        assert speech.segments
        assert speech.timings.reused
        done = client.speak("Hello there.", seed=3).save(tmp_path / "x.pcm")
        assert (tmp_path / "x.pcm").read_bytes() == audio
        assert done.sent.bytes == len(audio)
        with pytest.raises(UnknownVoice):
            client.speak("Hello.", voice="missing").read()
        assert client.ping().seconds > 0
        assert client.models() == [ending.service.facts.name]
    client.close()
    with pytest.raises(ClientClosed):
        client.speak("Hello.").read()


def test_text_from_one_thread_and_audio_in_another(endless: Place) -> None:
    heard: queue.Queue[bytes] = queue.Queue()
    with Client(endless.url) as client:
        with client.stream() as speech:
            listener = threading.Thread(target=lambda: [heard.put(c) for c in speech])
            listener.start()
            speech.push("This is a whole sentence. And ")
            assert heard.get(timeout=WAIT)
            speech.push("another one")
            speech.flush()
            report = speech.cancel()
            listener.join(WAIT)
            assert not listener.is_alive()
            assert report.sent.samples > 0
            with pytest.raises(SpeechCancelled):
                speech.push("more")
        assert client.speak("Hello.", seed=3, max_seconds=0.1).read()
    endless.until_free()


def test_text_from_a_generator_while_audio_arrives(endless: Place) -> None:
    heard = threading.Event()

    def text() -> Iterator[str]:
        yield "This is a whole sentence. And "
        assert heard.wait(WAIT)
        yield "more."

    with Client(endless.url) as client:
        for _ in client.speak(text(), max_seconds=1):
            heard.set()
    assert heard.is_set()


def test_leaving_a_loop_stops_the_speech(endless: Place) -> None:
    with Client(endless.url) as client:
        for _ in client.speak(LONG):
            break
        endless.until_free()
        with client.speak(LONG) as speech:
            for _ in speech:
                break
        endless.until_free()


def test_close_wakes_readers(endless: Place) -> None:
    client = Client(endless.url)
    heard, raised = threading.Event(), []

    def listen() -> None:
        try:
            for _ in client.speak(LONG):
                heard.set()
        except ClientClosed as error:
            raised.append(error)

    listener = threading.Thread(target=listen)
    listener.start()
    assert heard.wait(WAIT)
    client.close()
    listener.join(WAIT)
    assert not listener.is_alive()
    assert raised
    endless.until_free()


def test_abandoned_client_leaves_no_thread(ending: Place) -> None:
    client = Client(ending.url)
    client.speak("Hello.").read()
    assert threads()
    del client
    gc.collect()
    until(lambda: not threads(), "the end of the thread")


def test_speech_keeps_its_client(ending: Place) -> None:
    def speech_of_a_lost_client(text: str) -> Speech:
        client = Client(ending.url)
        return client.speak(text, seed=3)

    audio = Client(ending.url).speak("Hello there.", seed=3).read()
    assert audio
    speech = speech_of_a_lost_client("Hello there.")
    gc.collect()
    assert b"".join(speech) == audio
    del speech
    chunks = iter(speech_of_a_lost_client("Hello there."))
    gc.collect()
    assert b"".join(chunks) == audio
    events = speech_of_a_lost_client("Hello there.").events()
    gc.collect()
    assert isinstance(list(events)[-1], Done)
    del chunks, events
    gc.collect()
    until(lambda: not threads(), "the end of the threads")


def test_loop_dropped_with_its_client_stops_the_speech(endless: Place) -> None:
    chunks = iter(Client(endless.url).speak(LONG))
    assert next(chunks)
    del chunks
    gc.collect()
    endless.until_free()


def test_loop_collected_in_the_clients_thread_stops_the_speech(
    endless: Place,
) -> None:
    client, ended = Client(endless.url), threading.Event()
    held = [iter(client.speak(LONG))]
    assert next(held[0])
    assert client._loop._loop is not None

    def collect() -> None:
        held.clear()
        ended.set()

    client._loop._loop.call_soon_threadsafe(collect)
    if not ended.wait(WAIT):
        client._finalizer.detach()  # its thread is stuck and must not be joined
        pytest.fail("the thread waits for itself")
    endless.until_free()
    client.close()


@pytest.mark.parametrize("scheduled", [True, False])
def test_interruption_while_work_is_being_begun_is_the_error_that_is_seen(
    monkeypatch: pytest.MonkeyPatch, scheduled: bool
) -> None:
    async def source() -> AsyncIterator[int]:
        await asyncio.sleep(60)
        yield 1

    loop = _Loop()
    loop.run(asyncio.sleep(0))
    assert loop._loop is not None
    real = loop._loop.call_soon_threadsafe

    def interrupted(call: Callable[[], object]) -> None:
        monkeypatch.undo()
        if scheduled:
            real(call)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop._loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(loop.iterate(source()))
    loop.stop()
