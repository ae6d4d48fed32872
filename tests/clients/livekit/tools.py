"""What the tests of the LiveKit plugin share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integrations.tools import FLUSH, SEED, Watched
from tests.small import until

pytest.importorskip("livekit.agents", reason="needs livekit-agents")
rtdrama3 = pytest.importorskip(
    "livekit.plugins.rtdrama3", reason="needs clients/livekit", exc_type=ImportError
)

from livekit import rtc  # noqa: E402
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT  # noqa: E402
from livekit.agents.voice import io  # noqa: E402

RATE = 24_000  # the plugin's own choice


@asynccontextmanager
async def plugin(server: Watched | str, **settings: Any) -> AsyncIterator[Any]:
    """The plugin, for one server; nothing of it is left afterwards."""
    url = server if isinstance(server, str) else server.url
    before = asyncio.all_tasks()
    tts = rtdrama3.TTS(url, **{"seed": SEED, **settings})
    try:
        yield tts
    finally:
        await tts.aclose()
        await asyncio.sleep(0)  # what was just asked to end does
        left = [task for task in asyncio.all_tasks() - before if not task.done()]
        assert not left, left


class Utterance:
    """What came of one.

    Attributes:
        pcm: without the 10 ms of silence that LiveKit sometimes marks the end with.
        marks: timed strings, with their starts in seconds.
        ids: of the requests.
    """

    def __init__(self) -> None:
        self._frames: list[Any] = []
        self.marks: list[tuple[str, float]] = []
        self.ids: set[str] = set()

    def add(self, event: Any) -> None:
        assert (event.frame.sample_rate, event.frame.num_channels) == (self.rate or RATE, 1)
        self._frames.append(event.frame)
        self.ids.add(event.request_id)
        for mark in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, ()):
            self.marks.append((str(mark), mark.start_time))

    rate = 0

    @property
    def pcm(self) -> bytes:
        return b"".join(bytes(frame.data) for frame in self._frames)


async def hear(stream: Any, rate: int = RATE) -> Utterance:
    """All of a stream."""
    heard = Utterance()
    heard.rate = rate
    async for event in stream:
        heard.add(event)
    return heard


async def speak(tts: Any, words: Iterable[str], **more: Any) -> Utterance:
    """Returns what is heard of streamed text."""
    async with tts.stream(**more) as stream:
        for word in words:
            stream.push_text(word)
        stream.end_input()
        return await hear(stream, tts.sample_rate)


async def say(stream: Any, server: Watched, number: int, *sentences: str, size: int = 4) -> None:
    """Pushes sentences in small parts, each while the previous one is being spoken."""
    for count, sentence in enumerate(sentences, start=1):
        text = sentence + " "
        for place in range(0, len(text), size):
            stream.push_text(text[place : place + size])

        def begun(count: int = count) -> bool:
            return len(server.speeches) > number and len(server.segments(number)) >= count

        await asyncio.to_thread(until, begun, f"beginning {sentence!r}")
    stream.end_input()


def replayed(server: Watched, number: int, text: str, rate: int = RATE) -> bytes:
    """The same utterance by the native dialect, one sentence after the other.

    The engine speaks as many sentences in one go as are there in time, so the tests give it the
    next one only when it has begun the one before; see ``say``.

    Args:
        server: that spoke it.
        number: of the stream, oldest first.
        text: that it must have been.
        rate: Hz.
    """
    segments = [segment for segment, _ in server.segments(number)]
    assert " ".join(segments) == " ".join(text.split())
    parts: list[Any] = []
    for segment in segments:
        parts += [segment + " ", FLUSH]
    return server.native(*parts, sample_rate=rate)


def without_marker(pcm: bytes, expected: bytes, rate: int = RATE) -> bytes:
    """Without the 10 ms of silence that LiveKit may mark the end of an utterance with."""
    end = pcm[len(expected) :]
    assert end in (b"", bytes(2 * rate // 100)), len(end)
    return pcm[: len(expected)]


class Sink(io.AudioOutput):  # type: ignore[misc]
    """The audio output of an agent session: plays instantly, and records.

    Attributes:
        heard: audio of each segment of speech.
        first: set once there is some.
    """

    def __init__(self) -> None:
        capabilities = io.AudioOutputCapabilities(pause=False)
        super().__init__(label="test", capabilities=capabilities, sample_rate=RATE)
        self.heard: list[bytes] = []
        self.first = asyncio.Event()
        self._seconds = 0.0

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self._seconds:
            self.heard.append(b"")
        self.heard[-1] += bytes(frame.data)
        self._seconds += frame.duration
        self.first.set()

    def flush(self) -> None:
        super().flush()
        self._end(interrupted=False)

    def clear_buffer(self) -> None:
        self._end(interrupted=True)

    def _end(self, interrupted: bool) -> None:
        seconds, self._seconds = self._seconds, 0.0
        if seconds:
            self.on_playback_finished(playback_position=seconds, interrupted=interrupted)
