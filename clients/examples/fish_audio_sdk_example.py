"""fish-audio-sdk: text goes in piece by piece, audio comes out meanwhile."""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator

from fishaudio import FishAudio, TTSConfig

URL = os.environ.get("RT_DRAMA3_CLIENT_URL", "http://127.0.0.1:8035")
RATE = 24_000


def words() -> Iterator[str]:
    """What a language model writes."""
    yield from ["Sure. ", "Your order ", "arrives on ", "Monday."]


client = FishAudio(api_key="any", base_url=URL)
with wave.open("fish-audio-sdk.wav", "wb") as file:
    file.setparams((1, 2, RATE, 0, "NONE", ""))
    config = TTSConfig(format="pcm", sample_rate=RATE)
    for chunk in client.tts.stream_websocket(words(), config=config):
        file.writeframes(chunk)
