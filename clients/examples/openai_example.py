"""openai: audio as it is made."""

from __future__ import annotations

import os
import wave

from openai import OpenAI

URL = os.environ.get("RT_DRAMA3_CLIENT_URL", "http://127.0.0.1:8035")
RATE = 24_000  # of OpenAI's pcm

client = OpenAI(api_key="any", base_url=f"{URL}/v1")
with (
    wave.open("openai.wav", "wb") as file,
    client.audio.speech.with_streaming_response.create(
        model="any",
        voice="alloy",
        input="Sure. Your order arrives on Monday.",
        response_format="pcm",
    ) as response,
):
    file.setparams((1, 2, RATE, 0, "NONE", ""))
    for chunk in response.iter_bytes():
        file.writeframes(chunk)
