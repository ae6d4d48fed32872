"""/v1/tts/live over real sockets, in the order of the clients in the wild."""

from __future__ import annotations

import io
import wave

from tests.server.tools import LONG, Place, audio_of


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


def test_flush_of_nothing_makes_no_audio(ending: Place) -> None:
    with ending.fish() as client:
        client.send("start", request={"text": "", "format": "pcm"})
        client.send("flush")
        client.send("stop")
        assert [m["event"] for m in client.take_until("finish")] == ["finish"]


def test_speech_comes_without_a_stop(ending: Place) -> None:
    with ending.fish() as client:
        client.send("start", request={"text": "", "format": "pcm"})
        for _ in range(3):
            client.send("text", text="Hello there")
            client.send("flush")
            assert client.take_until("audio")
        client.send("stop")
        assert client.take_until("finish")[-1]["reason"] == "stop"


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
        client.send("start", request={"text": "", "reference_id": "nobody"})
        finish = client.take()
        assert (finish["event"], finish["reason"]) == ("finish", "error")
        assert finish["code"] == "unknown_voice"


def test_an_id_of_the_cloud_means_the_default_voice(ending: Place) -> None:
    with ending.fish() as client:
        client.send("start", request={"text": "Hello. ", "reference_id": "9" * 32, "format": "pcm"})
        client.send("stop")
        assert client.take_until("finish")[-1]["reason"] == "stop"
