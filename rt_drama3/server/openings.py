"""Openings: from a client's order to a stream of the engine, with voices, clips and notices."""

from __future__ import annotations

import asyncio
import time
import unicodedata
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rt_drama3.engine.best_of import FinishedTake, Takes
from rt_drama3.engine.events import SpeechSummary
from rt_drama3.engine.opening import check_normalize
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.protocol import ModelFacts, Reference, Refused, SpeechOrder, as_speaker
from rt_drama3.protocol.order import checked_audio
from rt_drama3.scenes.best_of import duration_sanity, rank
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.conversion import Converter
from rt_drama3.server.metrics import Metrics
from rt_drama3.server.notices import UNKNOWN_SCRIPT, normalization_notices
from rt_drama3.server.references.clips import ClipReader
from rt_drama3.server.references.fetch import Fetcher
from rt_drama3.server.references.voice_choice import ChosenVoice, choose_voices
from rt_drama3.server.references.voices import VoiceStore
from rt_drama3.server.workers import Workers
from rt_drama3.text.directions import Tokenizer, has_directions, spoken_words

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3
    from rt_drama3.engine.engine import Engine

FIXED_VOICE = "this model has one fixed voice: voices and references are accepted, not followed."
NO_DIRECTIONS = "this model was not trained on directions: guidance is accepted without effect."
UNREADABLE = "this model does not know the script of the text: most of its letters are left out."
NO_WORDS = "the text has directions and no words: nothing is spoken."
CHECKED_CHARACTERS = 60  # of a text; a normalizer may have thousands of rules
LATIN = "\u024f"  # the last Latin letter


@dataclass(frozen=True)
class Model:
    """A loaded checkpoint and its warm engine."""

    drama: Drama3
    engine: Engine
    facts: ModelFacts


@dataclass(frozen=True)
class Opened:
    """A stream ready to be consumed.

    Attributes:
        order: with the server's own notices.
        converter: makes its bytes.
        speech: None if there is nothing to speak.
        voice: name of the voice that will speak.
        request: the request to the engine, if there is something to speak.
        take: the best of several takes, in place of ``speech``.
        notices_of: what a text has that is not spoken, where text is streamed and normalised.
    """

    order: SpeechOrder
    converter: Converter
    speech: Speech | None
    voice: str
    request: SpeechRequest | None = None
    take: FinishedTake | None = None
    notices_of: Callable[[str], list[str]] | None = None

    def cancel(self) -> None:
        """Cancels the stream."""
        if self.speech is not None:
            self.speech.cancel()


class Openings:
    """Opens streams. Use it on one event loop.

    Args:
        config: settings.
        voices: stored voices.
        workers: threads of the server.
        metrics: of the server.
        check_ready: returns the model or raises.
    """

    def __init__(
        self,
        config: ServerConfig,
        voices: VoiceStore,
        workers: Workers,
        metrics: Metrics,
        check_ready: Callable[[], Model],
    ) -> None:
        self._config, self._voices, self._workers = config, voices, workers
        self._limits, self._check_ready = config.limits, check_ready
        self._aliases = dict(config.voice_aliases)
        self._clips = ClipReader(workers, metrics, config.limits.reference_seconds)
        self.fetcher: Fetcher | None = None
        if config.url_references:
            self.fetcher = Fetcher(config.url_seconds, config.url_ports, config.url_requests)

    async def open(self, order: SpeechOrder) -> Opened:
        """Opens a stream for an order.

        Raises:
            RtDrama3Error: it cannot be opened.
        """
        model = self._check_ready()
        chosen, notices = self._chosen(order, model)
        takes = await self.fetched(order.directing.previous_takes)
        order = replace(
            order,
            references=await self.fetched(order.references),
            directing=replace(order.directing, previous_takes=takes),
            notices=(*order.notices, *notices),
        )
        order = await self._clips.read_order(order, model.drama)
        future = self._workers.submit(self._open, model, order, chosen)
        try:
            opened = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(_cancel)
            raise
        if opened.request is None or not order.best_of:
            return opened
        return replace(opened, take=await self._best_of(model, opened.request, order.best_of))

    async def fetched(self, clips: tuple[Reference, ...]) -> tuple[Reference, ...]:
        """Returns clips with their audio; those that are URLs are fetched.

        Raises:
            Refused: ``bad_reference``: one cannot be fetched, or fetching is disabled.
        """
        urls = [clip.url for clip in clips if clip.url]
        if not urls:
            return clips
        if self.fetcher is None:
            raise Refused(
                "bad_reference",
                "this server does not fetch clips from URLs; send the audio itself, or ask the "
                "operator to enable url_references.",
            )
        most, together = self._limits.reference_bytes, self._limits.message_bytes
        audio = iter(await self.fetcher.fetch(urls, most, together))
        return tuple(
            Reference(clip.text, checked_audio(next(audio), self._limits)) if clip.url else clip
            for clip in clips
        )

    async def decoded(self, clips: tuple[Reference, ...]) -> tuple[Reference, ...]:
        """Returns the clips of a voice with their samples; those that are URLs are fetched.

        Raises:
            Refused: ``bad_reference`` or ``overloaded``.
        """
        names = ["the clip"] if len(clips) == 1 else [f"references[{n}]" for n in range(len(clips))]
        fetched = await self.fetched(clips)
        return tuple(await self._clips.read(zip(names, fetched, strict=True)))

    def _chosen(self, order: SpeechOrder, model: Model) -> tuple[list[ChosenVoice], list[str]]:
        unknown = self._config.unknown_voice
        default = unknown == "default" or (unknown == "auto" and model.drama.fixed_voice)
        return choose_voices(order.voices, self._voices.get, self._aliases, default)

    def _open(self, model: Model, order: SpeechOrder, chosen: list[ChosenVoice]) -> Opened:
        drama = model.drama
        several = len(order.voices) > 1
        references: list[tuple[str, Any]] = [
            (as_speaker(text, speaker) if several else text, codes)
            for speaker, voice in chosen
            for text, codes in voice.references
        ]
        spoken_by = [voice.name for _, voice in chosen]
        references += [clip.source for clip in order.references]
        notices = list(order.notices)
        if drama.fixed_voice and (order.references or spoken_by):
            notices.append(FIXED_VOICE)
            references = []
        if order.directing.guidance and not drama.prompts.reads_directions:
            notices.append(NO_DIRECTIONS)
            order = replace(order, directing=replace(order.directing, guidance=None))
        if order.is_speechless(drama.prompts.directions_sound) and has_directions(order.text):
            notices.append(NO_WORDS)
        if is_unreadable(order.text, drama.prompts.tokenizer):
            notices.append(UNREADABLE)
        speech = request = None
        if not order.is_speechless(drama.prompts.directions_sound):
            settings = dict(order.settings(model.facts))
            # The sender knows what the client has left to play, and ends those that stall.
            request = SpeechRequest(references=references, patient=True, **settings)
            if not order.best_of:
                speech = model.engine.open(request)
        notices_of = None
        try:  # after opening: the engine starts meanwhile
            if check_normalize(order.normalize, drama.prompts.normalizes):
                notices_of = partial(normalization_notices, tokenizer=drama.prompts.tokenizer)
                found = notices_of(order.text)
                known = {UNKNOWN_SCRIPT} if UNREADABLE in notices else set()
                notices += [notice for notice in found if notice not in known]
            order = replace(order, notices=tuple(notices))
            converter = Converter(order, model.facts.sample_rate)
        except BaseException:
            if speech is not None:
                speech.cancel()
            raise
        voice = ", ".join(spoken_by)
        return Opened(order, converter, speech, voice, request, notices_of=notices_of)

    async def _best_of(self, model: Model, request: SpeechRequest, count: int) -> FinishedTake:
        """Generates takes in half of the engine's slots, and returns the best."""
        started = time.monotonic()
        engine, drama = model.engine, model.drama
        takes = Takes(engine, request, count, max(1, engine.config.max_streams // 2))
        try:
            summaries = await self._workers.wait(takes.run)
        except asyncio.CancelledError:
            takes.cancel()
            raise

        def best(summaries: list[SpeechSummary]) -> FinishedTake:
            found = rank(map(drama.decode_take, summaries), duration_sanity).best
            return FinishedTake(found, found.durations, started)

        return await self._workers.encode(best, summaries)


def _cancel(future: Future[Opened]) -> None:
    """Cancels a stream that is no longer awaited."""
    if not future.cancelled() and future.exception() is None:
        future.result().cancel()


def is_unreadable(text: str, tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer has no tokens for most letters of a text, and drops them.

    Latin letters are not checked. Tokenizers that fall back to bytes, as those of large models do,
    know every script.
    """
    normalizer = getattr(tokenizer, "normalizer", None)
    shown = spoken_words(text[: 10 * CHECKED_CHARACTERS])[:CHECKED_CHARACTERS]
    letters = _letters(shown)
    if normalizer is None or 2 * sum(char > LATIN for char in letters) <= len(letters):
        return False
    return 2 * len(_letters(normalizer.normalize_str(shown))) < len(letters)


def _letters(text: str) -> str:
    """Letters and digits of every script; private-use characters may stand for some."""
    found = ((char, unicodedata.category(char)) for char in text)
    return "".join(char for char, kind in found if kind[0] in "LMN" or kind == "Co")
