"""The published Fish Audio client, unchanged, against the server."""

from __future__ import annotations

import io
import wave

import pytest

from tests.server.tools import LONG, Place

fishaudio = pytest.importorskip("fishaudio")


def test_stream_websocket(ending: Place) -> None:
    client = fishaudio.FishAudio(api_key="any", base_url=ending.url)
    words = iter(["Hello ", "there. ", "And another ", "one."])
    data = b"".join(client.tts.stream_websocket(words, format="wav"))
    with wave.open(io.BytesIO(data)) as sound:
        assert sound.getframerate() == 44_100
    assert len(data) > 44 + 2 * 2048


def test_convert(ending: Place) -> None:
    client = fishaudio.FishAudio(api_key="any", base_url=ending.url)
    assert client.tts.convert(text="Hello there.", format="mp3")[:2] in (b"ID", b"\xff\xfb")


def test_leaving_early_frees_the_engine(endless: Place) -> None:
    client = fishaudio.FishAudio(api_key="any", base_url=endless.url)
    audio = client.tts.stream_websocket(iter([LONG]), format="pcm")
    assert next(iter(audio))
    audio.close()
    endless.until_free()


def test_errors_are_the_clients_exceptions(ending: Place) -> None:
    client = fishaudio.FishAudio(api_key="any", base_url=ending.url)
    with pytest.raises(fishaudio.exceptions.NotFoundError):
        client.tts.convert(text="Hello.", reference_id="missing")
