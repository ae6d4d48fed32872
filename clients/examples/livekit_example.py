"""LiveKit's plugin for Fish Audio: two utterances on one socket, and an interruption."""

from __future__ import annotations

import asyncio
import os
import wave

import aiohttp
from livekit.plugins import fishaudio

URL = os.environ.get("RT_DRAMA3_CLIENT_URL", "http://127.0.0.1:8035")


async def say(tts: fishaudio.TTS, words: list[str], file: wave.Wave_write) -> None:
    """Says what a language model writes, word by word."""
    async with tts.stream() as stream:
        for word in words:
            stream.push_text(word)
        stream.end_input()
        async for event in stream:
            file.writeframes(bytes(event.frame.data))


async def interrupted(tts: fishaudio.TTS) -> None:
    """Begins a long answer and drops it, as an agent does when the user speaks."""
    async with tts.stream() as stream:
        stream.push_text("This is a long answer that you do not want to hear. " * 20)
        stream.flush()
        await anext(aiter(stream))


async def main() -> None:
    """Outside of a LiveKit job, which would bring the HTTP session along."""
    async with aiohttp.ClientSession() as session:
        tts = fishaudio.TTS(api_key="any", base_url=URL, http_session=session)
        with wave.open("livekit.wav", "wb") as file:
            file.setparams((1, 2, tts.sample_rate, 0, "NONE", ""))
            await say(tts, ["Sure. ", "Your order ", "arrives on Monday."], file)
            await interrupted(tts)
            await say(tts, ["You are ", "welcome."], file)
        await tts.aclose()


asyncio.run(main())
