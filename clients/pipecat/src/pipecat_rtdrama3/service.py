"""RtDrama3TTSService: Pipecat's text to speech over a server's native dialect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.tts_service import TextAggregationMode, TTSService

from pipecat_rtdrama3.errors import category
from pipecat_rtdrama3.settings import IGNORED, RtDrama3TTSSettings, complete, voice_options
from pipecat_rtdrama3.turn import Turn
from rt_drama3_client import (
    AsyncClient,
    AudioChunk,
    ClientError,
    Done,
    EarlyStart,
    Event,
    Notice,
    Ready,
    Segment,
)
from rt_drama3_client import Settings as ClientSettings
from rt_drama3_client.options import Quality

SILENCE_MS = 10  # for a text with no speakable content, which Pipecat would treat as a failure
# Pipecat ends an audio context that was silent for this long. Here every context is ended
# explicitly, and a language model that pauses in an answer, or a queue, must not end it.
STOP_FRAME_TIMEOUT = 3_600.0


class RtDrama3TTSService(TTSService):
    """Speech of an rt-drama3 server.

    Every answer is one utterance. Its text is sent as the language model writes it; the server
    speaks sentences as they complete, so there is no need to aggregate them here, and the prosody
    is the same. An interruption cancels the utterance and keeps the connection.

    Args:
        url: address of the server; default: the environment variable ``RT_DRAMA3_CLIENT_URL``, then
            ``http://127.0.0.1:8035``.
        api_key: default: the environment variable ``RT_DRAMA3_CLIENT_API_KEY``.
        settings: speech options; a ``TTSUpdateSettingsFrame`` changes them for the next utterance.
        quality: resampling quality; ``high`` adds tens of milliseconds.
        early_words: speak this many words before the first sentence is complete, see
            ``rt_drama3_client.EarlyStart``; None waits for the sentence.
        client_settings: timeouts and limits of the connections.
        text_aggregation_mode: ``SENTENCE`` holds text back until the end of its sentence, which
            text transforms for whole sentences need.
        more: arguments of ``TTSService``; ``sample_rate`` defaults to the pipeline's.

    Raises:
        UsageError: an argument is not valid.
    """

    Settings = RtDrama3TTSSettings
    _settings: RtDrama3TTSSettings

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        settings: RtDrama3TTSSettings | None = None,
        quality: Quality = "low_latency",
        early_words: int | None = None,
        client_settings: ClientSettings | None = None,
        text_aggregation_mode: TextAggregationMode = TextAggregationMode.TOKEN,
        **more: Any,
    ) -> None:
        more.setdefault("stop_frame_timeout_s", STOP_FRAME_TIMEOUT)
        more.setdefault("append_trailing_space", True)  # between sentences that Pipecat split
        super().__init__(
            text_aggregation_mode=text_aggregation_mode,
            push_text_frames=False,  # the server's segments carry the text and its timing
            push_start_frame=True,
            settings=complete(settings),
            **more,
        )
        EarlyStart(early_words)
        self._client = AsyncClient(url, api_key=api_key, settings=client_settings)
        self._quality: Quality = quality
        self._early_words = early_words
        self._turns: dict[str, Turn] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._warming: asyncio.Task[None] | None = None
        self._framed = False  # the pipeline sends a frame where an answer begins
        self._interrupted = False  # and no new answer has begun since an interruption

    def can_generate_metrics(self) -> bool:
        """True: time to first audio, and usage."""
        return True

    @property
    def supports_processing_metrics(self) -> bool:
        """False: ``run_tts`` only forwards text."""
        return False

    # Pipecat's life cycle.

    async def start(self, frame: StartFrame) -> None:
        """Connects before the first utterance."""
        await super().start(frame)
        self._warming = self.create_task(self._warm(), "rtdrama3 connect")

    async def stop(self, frame: EndFrame) -> None:
        """Finishes pending utterances, then closes the connections."""
        for turn in list(self._turns.values()):
            await turn.finish()
        await super().stop(frame)
        await self._close()

    async def cancel(self, frame: CancelFrame) -> None:
        """Stops immediately."""
        await super().cancel(frame)
        await self._close()

    async def cleanup(self) -> None:
        """Releases all resources."""
        await super().cleanup()  # type: ignore[no-untyped-call]
        await self._close()

    # Text in.

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Like ``TTSService``, but drops late words of an interrupted answer.

        An interruption overtakes frames, so a word of the interrupted answer may arrive after it
        and must not be spoken. If the pipeline does not mark the beginning of answers, the next
        word is assumed to belong to a new one.
        """
        if isinstance(frame, LLMTextFrame) and self._interrupted and not frame.skip_tts:
            logger.debug(f"{self}: dropped text of the interrupted answer: [{frame.text}]")
            return
        if isinstance(frame, InterruptionFrame):
            self._interrupted = self._framed
        elif isinstance(frame, LLMFullResponseStartFrame):
            self._framed, self._interrupted = True, False
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame) and self._turn_context_id is not None:
            self._interrupted = False  # an answer that must not be interrupted continues

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Forwards text; its audio comes from the turn's own task."""
        await self.start_tts_usage_metrics(text)
        turn = self._turns.get(context_id)
        if turn is None:
            turn = self._begin(context_id)
        await turn.write(text)
        if context_id != self._turn_context_id:  # text outside of an answer is complete
            await turn.finish()
        yield None

    async def flush_audio(self, context_id: str | None = None) -> None:
        """Ends the text of a context."""
        context_id = context_id or self.get_active_audio_context_id()
        turn = self._turns.get(context_id or "")
        if turn is not None:
            await turn.finish()
        elif context_id is not None and self.audio_context_available(context_id):
            await self._close_context(context_id)  # nothing was spoken in it

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Cancels the utterance in the background, so that the interruption is not delayed."""
        turn = self._turns.pop(context_id, None)
        if turn is not None:
            self._end(turn)

    async def _update_settings(self, delta: Any) -> dict[str, Any]:
        changed = await super()._update_settings(delta)
        ignored = [name for name in changed if name in IGNORED]
        self._warn_unhandled_updated_settings(ignored)  # type: ignore[no-untyped-call]
        return changed

    # Audio out.

    def _begin(self, context_id: str) -> Turn:
        turn = self._turns[context_id] = Turn(context_id, self._early_words)
        turn.task = self.create_task(self._speak(turn), "rtdrama3 speech")
        return turn

    async def _speak(self, turn: Turn) -> None:
        """Speaks an utterance; cancelling this task cancels it at the server."""
        pending = self._ending | ({self._warming} if self._warming else set())
        if pending:  # their connections will be free
            await asyncio.wait(pending)
        options = voice_options(self._settings)
        rate, quality = self.sample_rate, self._quality
        try:
            speech = self._client.speak(turn.parts(), sample_rate=rate, quality=quality, **options)
            async with speech, aclosing(speech.events()) as events:
                async for event in events:
                    await self._handle(turn, event)
        except ClientError as error:
            turn.drop()
            # Later text of this answer belongs to the failed utterance.
            why = category(error)
            await self.push_error(f"speech failed: {error}", exception=error, category=why)
            await turn.ended.wait()
        self._turns.pop(turn.context_id, None)
        await self._close_context(turn.context_id)

    async def _handle(self, turn: Turn, event: Event) -> None:
        context_id = turn.context_id
        if isinstance(event, AudioChunk):
            await self._push_audio(context_id, event)
        elif isinstance(event, Segment):
            mark = (turn.hear(event.text), event.first_sample / self.sample_rate)
            await self.add_word_timestamps([mark], context_id)
        elif isinstance(event, Done):
            if not event.sent.samples:
                samples = self.sample_rate * SILENCE_MS // 1000  # whole ones, at 22050 Hz too
                await self._push_audio(context_id, bytes(2 * samples))
        elif isinstance(event, Notice):
            logger.info(f"{self}: notice from the server: {event.text}")
        elif isinstance(event, Ready):
            for notice in event.notices:
                logger.info(f"{self}: notice from the server: {notice}")
            if event.ignored:
                logger.warning(f"{self}: the server does not know {', '.join(event.ignored)}")

    async def _push_audio(self, context_id: str, audio: bytes) -> None:
        if audio:
            frame = TTSAudioRawFrame(bytes(audio), self.sample_rate, 1, context_id=context_id)
            await self.append_to_audio_context(context_id, frame)

    async def _close_context(self, context_id: str) -> None:
        if self.audio_context_available(context_id):
            await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
            await self.remove_audio_context(context_id)

    # End.

    def _end(self, turn: Turn) -> None:
        """Starts ending an utterance."""
        turn.drop()
        task = turn.task
        if task is not None and not task.done():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    async def _close(self) -> None:
        for turn in list(self._turns.values()):
            self._end(turn)
        self._turns.clear()
        if self._ending:
            await asyncio.wait(self._ending)
        if self._warming is not None:
            warming, self._warming = self._warming, None
            if not warming.done():
                await self.cancel_task(warming)
            await self._call_event_handler("on_disconnected")
        await self._client.close()

    async def _warm(self) -> None:
        try:
            await self._client.connect()
        except ClientError as error:  # the first utterance retries and reports it
            await self._call_event_handler("on_connection_error", str(error))
        else:
            await self._call_event_handler("on_connected")
