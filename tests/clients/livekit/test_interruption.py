"""Interruptions as LiveKit makes them: what is heard, what is computed, and the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.clients.livekit.tools import RATE, Sink, plugin, speak
from tests.integrations.conftest import run
from tests.integrations.tools import Interruption, Watched
from tests.server.tools import LONG
from tests.small import until

from livekit.agents import Agent, AgentSession  # isort: skip - tools has looked
from livekit.agents.voice import io  # isort: skip


async def words() -> AsyncIterator[str]:
    """A language model that does not stop writing."""
    for word in LONG.split():
        yield word + " "
    await asyncio.Event().wait()


def test_closing_a_stream(talkative: Watched) -> None:
    """One more frame at most, then the next utterance on the same connection."""
    found: list[Any] = []

    async def work() -> None:
        async with plugin(talkative) as tts:
            tts.on("metrics_collected", found.append)
            held = Interruption(talkative)
            stream = tts.stream()
            stream.push_text(LONG)
            await anext(stream)
            await asyncio.to_thread(held.wait_until_held)
            closing = asyncio.create_task(stream.aclose())
            await asyncio.to_thread(held.wait_until_known)
            assert await asyncio.to_thread(held.finish) <= 1
            await closing
            tts.update_options(max_seconds=0.3)
            heard = await speak(tts, [LONG])
            assert len(heard.pcm) >= 2 * 0.2 * RATE
            assert len(heard.ids) == 1

    run(work())
    assert len(talkative.speeches) == 2
    assert found[-1].connection_reused


def test_interrupted_agent_session(talkative: Watched) -> None:
    """Nothing of the old answer is played after ``interrupt``, and the next one is."""
    found: list[Any] = []

    async def work() -> None:
        async with plugin(talkative) as tts, AgentSession(tts=tts) as session:
            tts.on("metrics_collected", found.append)
            session.output.audio = sink = Sink()
            await session.start(Agent(instructions="Talk."))
            talking = session.say(words())
            await sink.first.wait()
            await session.interrupt()
            await talking
            assert talking.interrupted
            old = sink.heard[0]
            # The engine has nothing of it left, so nothing more could come.
            await asyncio.to_thread(lambda: until(lambda: talkative.speeches[0].ended, "its end"))
            tts.update_options(max_seconds=0.3)
            await session.say(LONG)
            assert sink.heard[0] == old
            assert len(sink.heard) == 2
            assert len(sink.heard[1]) >= 2 * 0.2 * RATE

    run(work())
    assert talkative.speeches[0]._cancelled
    assert len(talkative.speeches) == 2
    assert found[-1].connection_reused


def test_session_with_aligned_transcript(server: Watched) -> None:
    """The transcript that is shown comes from the plugin, and is the text as it was written."""
    written = "Hello there.  And another one.\nNow the third."

    class Captions(io.TextOutput):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(label="test", next_in_chain=None)
            self.shown: list[str] = []

        async def capture_text(self, text: str) -> None:
            self.shown.append(text)

        def flush(self) -> None:
            pass

    async def work() -> list[str]:
        async with plugin(server) as tts:
            session = AgentSession(tts=tts, use_tts_aligned_transcript=True)
            async with session:
                session.output.audio = Sink()
                session.output.transcription = captions = Captions()
                await session.start(Agent(instructions="Talk."))
                await session.say(written)
                return captions.shown

    shown = run(work())
    assert "".join(shown) == written
    segments = [segment for segment, _ in server.segments(0)]
    assert [text.strip() for text in shown if text] == segments


def test_interruption_before_the_first_audio(talkative: Watched) -> None:
    async def work() -> None:
        async with plugin(talkative) as tts:
            for _ in range(5):
                stream = tts.stream()
                stream.push_text("No end in sight")  # whose sentence is open
                await asyncio.sleep(0)
                await stream.aclose()
            tts.update_options(max_seconds=0.1)
            assert (await speak(tts, [LONG])).pcm

    run(work())
