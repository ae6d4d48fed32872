"""TTS: LiveKit's text to speech over a server's native protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncGenerator
from typing import Never, Unpack

from livekit import rtc
from livekit.agents import APIConnectOptions, APITimeoutError, tts, utils
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS
from livekit.plugins.rtdrama3.errors import api_error
from livekit.plugins.rtdrama3.transcript import Transcript

from rt_drama3_client import (
    FLUSH,
    AsyncClient,
    AsyncSpeech,
    AudioChunk,
    ClientError,
    Done,
    EarlyStart,
    Event,
    Notice,
    Ready,
    Segment,
    Settings,
    VoiceOptions,
)
from rt_drama3_client.options import Quality, check_voice
from rt_drama3_client.sources import Part, TextSource

logger = logging.getLogger("livekit.plugins.rtdrama3")
# One retry if a pooled connection turns out to be dead; everything else is retried by LiveKit.
ATTEMPTS = 2
SILENCE_MS = 10  # for a text with no speakable content, which LiveKit would treat as a failure


class TTS(tts.TTS[Never]):
    """Speech of an rt-drama3 server.

    It belongs to the event loop of its first use. Connections are pooled, and an interruption keeps
    the connection.

    Args:
        url: address of the server; default: the environment variable ``RT_DRAMA3_CLIENT_URL``, then
            ``http://127.0.0.1:8035``.
        api_key: default: the environment variable ``RT_DRAMA3_CLIENT_API_KEY``.
        sample_rate: output rate in Hz: 8000, 16000, 22050, 24000, 32000, 44100 or 48000.
        quality: resampling quality; ``high`` adds tens of milliseconds.
        early_words: speak this many words before the first sentence is complete, see
            ``rt_drama3_client.EarlyStart``; None waits for the sentence.
        client_settings: timeouts and limits of the connections.
        options: speech options, see ``rt_drama3_client.Options``.

    Raises:
        UsageError: an argument is not valid.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        sample_rate: int = 24_000,
        quality: Quality = "low_latency",
        early_words: int | None = None,
        client_settings: Settings | None = None,
        **options: Unpack[VoiceOptions],
    ) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=sample_rate,
            num_channels=1,
        )
        check_voice(options)
        EarlyStart(early_words)
        settings = client_settings or Settings(attempts=ATTEMPTS)
        self._client = AsyncClient(url, api_key=api_key, settings=settings)
        self._quality: Quality = quality
        self._early_words = early_words
        self._options: VoiceOptions = {**options}
        self._model = "unknown"
        self._streams: weakref.WeakSet[SynthesizeStream | ChunkedStream] = weakref.WeakSet()
        self._warming: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        """The server's model; ``unknown`` before the first utterance."""
        return self._model

    @property
    def provider(self) -> str:
        """The name of the provider."""
        return "rt-drama3"

    def update_options(self, **options: Unpack[VoiceOptions]) -> None:
        """Changes the options of later utterances; None restores the server's default.

        Raises:
            UsageError: an option is unknown.
        """
        check_voice(options)
        self._options.update(options)

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> ChunkedStream:
        """Speaks a complete text."""
        stream = ChunkedStream(tts=self, input_text=text, conn_options=conn_options)
        self._streams.add(stream)
        return stream

    def stream(
        self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> SynthesizeStream:
        """Speaks a streamed text: sentences as they complete, everything at a flush."""
        stream = SynthesizeStream(tts=self, conn_options=conn_options)
        self._streams.add(stream)
        return stream

    def prewarm(self) -> None:
        """Opens a connection before the first utterance, on the running event loop."""
        if self._warming is None:
            self._warming = asyncio.create_task(self._warm(), name="rtdrama3 prewarm")

    async def aclose(self) -> None:
        """Ends all utterances and closes all connections."""
        for stream in list(self._streams):
            await stream.aclose()
        self._streams.clear()
        if self._warming is not None:
            await utils.aio.cancel_and_wait(self._warming)
        await self._client.close()

    async def _warm(self) -> None:
        try:
            await self._client.connect()
        except ClientError as error:  # the first utterance retries and raises
            logger.warning("connecting before the first utterance failed: %s", error)

    async def _warmed(self) -> None:
        """Waits for the connection that ``prewarm`` is opening instead of opening another one."""
        if self._warming is not None:
            await asyncio.wait((self._warming,))

    def _speak(self, text: TextSource) -> AsyncSpeech:
        rate, quality = self.sample_rate, self._quality
        return self._client.speak(text, sample_rate=rate, quality=quality, **self._options)


class _Emitter:
    """Passes an utterance to LiveKit as it arrives."""

    def __init__(
        self,
        stream: SynthesizeStream | ChunkedStream,
        voice: TTS,
        output: tts.AudioEmitter,
        segmented: bool,
    ) -> None:
        self.transcript = Transcript(voice.sample_rate)
        self._stream = stream
        self._voice = voice
        self._output = output
        self._segmented = segmented
        self._initialized = False

    def begin(self, request_id: str) -> None:
        """Initializes the output, when the server has accepted the utterance or there is none."""
        if self._initialized:  # it was restarted on another connection
            return
        self._initialized = True
        self._output.initialize(
            request_id=request_id,
            sample_rate=self._voice.sample_rate,
            num_channels=1,
            mime_type="audio/pcm",
            stream=self._segmented,
        )
        if self._segmented:
            self._output.start_segment(segment_id=request_id)

    async def speak(self, speech: AsyncSpeech, patience: float) -> None:
        """Speaks an utterance to its end.

        Leaving early cancels the utterance and waits until its connection is free.

        Args:
            speech: the utterance.
            patience: seconds within which the server has to accept it.

        Raises:
            APIError: it failed.
        """
        try:
            async with (
                asyncio.timeout(patience) as limit,
                speech,
                contextlib.aclosing(speech.events()) as events,
            ):
                await self._voice._warmed()
                async for event in events:
                    if isinstance(event, Ready):
                        limit.reschedule(None)
                        self._note(speech, event)
                    self._take(event)
        except ClientError as error:
            raise api_error(error) from error
        except TimeoutError as error:
            raise APITimeoutError(f"the server did not accept it within {patience:g} s.") from error

    def _note(self, speech: AsyncSpeech, ready: Ready) -> None:
        self._voice._model = ready.model or "unknown"
        self._stream._acquire_time = speech.timings.connect
        self._stream._connection_reused = speech.timings.reused
        for notice in (*ready.notices, *(f"unknown option {name}" for name in ready.ignored)):
            logger.info("notice from the server: %s", notice)
        self.begin(ready.id)

    def _take(self, event: Event) -> None:
        if isinstance(event, AudioChunk):
            if event.samples:
                self._push(event, event.samples)
        elif isinstance(event, Segment):
            self._output.push_timed_transcript(self.transcript.hear(event.text, event.first_sample))
        elif isinstance(event, Notice):
            logger.info("notice from the server: %s", event.text)
        elif isinstance(event, Done):
            if event.sent.samples:
                self._output.push_timed_transcript(self.transcript.end(event.sent.samples))
            else:
                samples = self._voice.sample_rate * SILENCE_MS // 1000
                self._push(bytes(2 * samples), samples)

    def _push(self, audio: bytes, samples: int) -> None:
        # As a frame: LiveKit would split bytes into its own chunks, and wait until they are full.
        self._output.push_frame(rtc.AudioFrame(audio, self._voice.sample_rate, 1, samples))


class ChunkedStream(tts.ChunkedStream):
    """An utterance with a complete text."""

    def __init__(self, *, tts: TTS, input_text: str, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=tts, input_text=input_text, conn_options=conn_options)
        self._voice = tts

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        emitter = _Emitter(self, self._voice, output_emitter, segmented=False)
        emitter.transcript.write(self.input_text)
        await emitter.speak(self._voice._speak(self.input_text), self._conn_options.timeout)


class SynthesizeStream(tts.SynthesizeStream):
    """An utterance with a streamed text."""

    def __init__(self, *, tts: TTS, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=tts, conn_options=conn_options)
        self._voice = tts

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        emitter = _Emitter(self, self._voice, output_emitter, segmented=True)
        first = await self._first_text()
        if first is None:
            emitter.begin(utils.shortuuid())
            return
        text = self._written(first, emitter.transcript)
        await emitter.speak(self._voice._speak(text), self._conn_options.timeout)

    async def _first_text(self) -> str | None:
        """Waits for the first text; the utterance starts only then."""
        async for item in self._input_ch:
            if isinstance(item, str):
                return item
        return None

    async def _written(self, first: str, transcript: Transcript) -> AsyncGenerator[Part, None]:
        """Yields the text as it arrives."""
        early = EarlyStart(self._voice._early_words)
        self._mark_started()
        transcript.write(first)
        for part in early.split(first):
            yield part
        async for item in self._input_ch:
            if isinstance(item, str):
                transcript.write(item)
                for part in early.split(item):
                    yield part
            else:
                yield FLUSH
