"""/v1/tts/live over real sockets, in the order of the clients in the wild."""

from __future__ import annotations

import io
import wave

import pytest

from tests.server.tools import LONG, Place, audio_of
from tests.small import until


def test_pooled_sockets_start_again_after_finish(ending: Place) -> None:
    with ending.fish(additional_headers={"model": "s1"}) as client:
        for _ in range(3):
            client.send("start", request={"text": "", "format": "wav", "sample_rate": 24000})
            client.send("text", text="Hello there. ")
            client.send("flush")
            client.send("stop")
            messages = client.take_until("finish")
            assert messages[-1]["reason"] == "stop"
            data = audio_of(messages)
            assert data[:4] == b"RIFF"
            assert data.count(b"RIFF") == 1
            with wave.open(io.BytesIO(data)) as sound:
                assert (sound.getframerate(), sound.getnchannels()) == (24_000, 1)
            assert len(data) > 44
            assert all(len(m["audio"]) % 2 == 0 for m in messages if m["event"] == "audio")


def test_flush_twice_speaks_once(ending: Place) -> None:
    with ending.fish() as client:
        for flushes in (1, 2):
            client.send(
                "start", request={"text": "", "format": "pcm", "sample_rate": 44100, "seed": 5}
            )
            client.send("text", text="Hello")
            for _ in range(flushes):
                client.send("flush")
            client.send("stop")
            messages = client.take_until("finish")
            audio = audio_of(messages)
            assert audio
            if flushes == 1:
                once = audio
    assert audio == once


def test_what_was_stopped_is_spoken_before_the_next_start(ending: Place) -> None:
    request = {"text": "", "format": "pcm", "sample_rate": 44_100, "seed": 5}
    alone = []
    for text in ("Hello there.", "And another one."):
        with ending.fish() as client:
            client.send("start", request=request)
            client.send("text", text=text)
            client.send("stop")
            alone.append(audio_of(client.take_until("finish")))
    with ending.fish() as client:
        for text in ("Hello there.", "", "And another one."):
            client.send("start", request=request)
            client.send("text", text=text)
            client.send("flush")
            client.send("stop")
        found = [client.take_until("finish") for _ in range(3)]
    assert [messages[-1]["reason"] for messages in found] == ["stop"] * 3
    assert [audio_of(messages) for messages in found] == [alone[0], b"", alone[1]]


def test_a_wrong_start_waits_for_its_turn_too(ending: Place) -> None:
    with ending.fish() as client:
        client.send("start", request={"text": "Hello there.", "format": "pcm"})
        client.send("stop")
        for wrong in ({"format": "ogg"}, {"reference_id": "missing"}):
            client.send("start", request=wrong)
            client.send("stop")
        messages = client.take_until("finish")
        assert messages[-1]["reason"] == "stop"
        assert audio_of(messages)
        finish = client.take()
        assert (finish["reason"], finish["code"]) == ("error", "unsupported_format")


def test_starts_that_are_given_up_leave_nothing_behind(endless: Place) -> None:
    with endless.fish() as client:
        client.send("start", request={"text": LONG, "format": "pcm"})
        client.send("stop")
        client.take_until("audio")
        for _ in range(200):
            client.send("start", request={"text": "Hello.", "format": "pcm"})
        client.send("nothing")
        client.take_until("warning")
        (connection,) = endless.service.drain.conversations
        until(lambda: len(connection._live) == 2, "forgetting them")  # type: ignore[attr-defined]
    endless.until_free()


def test_flush_of_nothing_makes_no_audio(ending: Place) -> None:
    with ending.fish() as client:
        client.send("start", request={"text": "", "format": "pcm"})
        client.send("flush")
        client.send("stop")
        assert [m["event"] for m in client.take_until("finish")] == ["finish"]


@pytest.mark.parametrize("text", ["...", "\U0001f642", "<whisper></whisper>"])
def test_text_without_words_is_a_moment_of_silence(text: str, ending: Place) -> None:
    """Once for each flush or stop: agent frameworks treat missing audio as a failure."""
    moment = bytes(2 * 441)
    with ending.fish() as client:
        client.send("start", request={"text": "", "format": "pcm"})
        for _ in range(2):
            client.send("text", text=text)
            client.send("flush")
            assert client.take() == {"event": "audio", "audio": moment}
        client.send("flush")  # of nothing
        client.send("text", text="Hello there. ")
        client.send("text", text=text)
        client.send("flush")
        frames, heard = spoken_frames(ending, 1), b""
        while len(heard) < 2 * 2048 * frames:
            heard += client.take()["audio"]
        assert len(heard) == 2 * 2048 * frames  # no silence is added to what has words
        client.send("text", text=text)
        client.send("stop")
        assert audio_of(client.take_until("finish")) == moment
        client.send("start", request={"text": "", "format": "pcm"})
        client.send("text", text=text)
        client.send("stop")
        assert audio_of(client.take_until("finish")) == moment


@pytest.mark.parametrize("form", ["mp3", "opus", "wav"])
def test_a_moment_of_silence_comes_out_of_every_encoder(form: str, ending: Place) -> None:
    waited = ending.metric("first_audio_seconds_count")
    with ending.fish() as client:
        client.send("start", request={"text": "", "format": form})
        client.send("text", text="...")
        client.send("flush")
        assert client.take()["audio"]
        assert ending.metric("first_audio_seconds_count") == waited  # it was not awaited
        client.send("stop")
        client.take_until("finish")


def test_no_silence_is_added_to_speech_however_late_its_flush_comes(ending: Place) -> None:
    """A language model often ends a moment after its last sentence was heard."""
    with ending.fish() as client:
        client.send("start", request={"text": "", "format": "pcm", "seed": 48})
        frames, heard = 0, b""
        for number, text in enumerate(("Hello there. ", "And another one. "), 1):
            client.send("text", text=text)
            frames = spoken_frames(ending, number)
            while len(heard) < 2 * 2048 * frames:
                heard += client.take()["audio"]
            client.send("flush")
        client.send("stop")
        heard += audio_of(client.take_until("finish"))
        assert len(heard) == 2 * 2048 * frames


def test_speech_comes_without_a_stop(ending: Place) -> None:
    with ending.fish() as client:
        client.send("start", request={"text": "", "format": "pcm"})
        for _ in range(3):
            client.send("text", text="Hello there")
            client.send("flush")
            assert client.take_until("audio")
        client.send("stop")
        assert client.take_until("finish")[-1]["reason"] == "stop"


def spoken_frames(place: Place, pieces: int) -> int:
    """Frames of the one stream that speaks, once it has spoken that many segments and waits."""
    assert place.engine is not None
    streams = place.engine.core.streams
    until(lambda: streams, "the stream")
    stream = next(iter(streams.values()))

    def at_rest() -> bool:
        spoken = len(stream.segments) == pieces and stream.phase.name == "IDLE"
        return spoken and not stream.playout.undelivered_seconds()

    until(at_rest, "coming to rest")
    return stream.playout.delivered


@pytest.mark.parametrize("latency", ["balanced", "normal"])
def test_nothing_is_held_back_while_the_client_waits(latency: str, ending: Place) -> None:
    """A client that flushes and never stops hears each utterance to its last sample."""
    rate = 16_000
    request = {"text": "", "format": "pcm", "sample_rate": rate, "latency": latency, "seed": 48}
    heard = 0
    with ending.fish() as client:
        client.send("start", request=request)
        for number, text in enumerate(("Hello there.", "And another one."), 1):
            client.send("text", text=text)
            client.send("flush")
            frames = spoken_frames(ending, number)
            wanted = -(-frames * 2048 * rate // 44_100)
            while heard < wanted:
                heard += len(client.take()["audio"]) // 2
            assert heard - wanted <= 1
        client.send("stop")
        assert client.take()["event"] == "finish"


def test_stop_and_close_cancels(endless: Place) -> None:
    with endless.fish() as client:
        client.send("start", request={"text": "", "format": "pcm"})
        client.send("text", text=LONG)
        client.send("flush")
        client.take_until("audio")
        client.send("stop")
        client.socket.close()
    endless.until_free()


def test_an_unknown_voice_is_a_finish_with_an_error(ending: Place) -> None:
    with ending.fish() as client:
        client.send("start", request={"text": "", "reference_id": "missing"})
        finish = client.take()
        assert (finish["event"], finish["reason"]) == ("finish", "error")
        assert finish["code"] == "unknown_voice"


def test_an_id_of_the_cloud_means_the_default_voice(ending: Place) -> None:
    with ending.fish() as client:
        client.send("start", request={"text": "Hello. ", "reference_id": "9" * 32, "format": "pcm"})
        client.send("stop")
        assert client.take_until("finish")[-1]["reason"] == "stop"
