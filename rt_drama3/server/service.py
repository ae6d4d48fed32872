"""Service: what all routes of a server share; opens streams, admits clients, and stops in peace.

It exists before the model does, so that /health can answer and /ready can say no.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rt_drama3.engine.speech import Speech, SpeechRequest, SpeechSummary
from rt_drama3.protocol import ModelFacts, Outcome, Reference, Refused, SpeechOrder, as_speaker
from rt_drama3.protocol.order import checked_audio
from rt_drama3.server.choosing import choose
from rt_drama3.server.clips import read_clips
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.fetch import Fetcher
from rt_drama3.server.metrics import Metrics
from rt_drama3.server.monitor.hub import make_hub
from rt_drama3.server.notices import FIXED_VOICE, NO_DIRECTIONS, UNREADABLE, is_unreadable
from rt_drama3.server.outgoing import Outgoing
from rt_drama3.server.voices import VoiceStore
from rt_drama3.sinks import Sink

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3
    from rt_drama3.engine.engine import Engine
    from rt_drama3.scenes.best_of import Chosen

log = logging.getLogger("rt_drama3.server")

AFTER_FADE = 0.5  # seconds that the last chunks have to be faded out and sent
LONG_MESSAGE = 32_768  # bytes; larger ones are unpacked in a thread
T = TypeVar("T")


class Conversation(Protocol):
    """A client's connection, as the service sees it when it stops."""

    def cut(self) -> int:
        """End what is being spoken, for the operator; returns how much that was."""

    def drain(self) -> None:
        """End when nothing is being spoken; asked again and again while the server drains."""

    def stop(self) -> None:
        """End now, telling the client so."""


@dataclass(frozen=True)
class Opened:
    """A stream ready to be taken from.

    Attributes:
        order: with the notices that only the server knows of.
        outgoing: makes its bytes.
        speech: None where there is nothing to speak.
        voice: name of the one that will speak.
        request: what the engine was, or is to be, asked for.
        chosen: the best of several takes, instead of ``speech``.
    """

    order: SpeechOrder
    outgoing: Outgoing
    speech: Speech | None
    voice: str
    request: SpeechRequest | None = None
    chosen: Chosen | None = None


class Service:
    """A server's shared state. Use it on one event loop; ``attach`` is for any thread.

    Args:
        config: settings.
        name: of the model, for clients.
        sink: instead of the one that the settings name.

    Raises:
        SinkError: this system has no sink of that kind.
    """

    def __init__(self, config: ServerConfig, name: str = "nano", sink: Sink | None = None) -> None:
        self.config = config
        self.limits = config.limits
        self.facts = ModelFacts(name)
        self.voices = VoiceStore(config.folder / "voices", config.max_voices)
        self.metrics = Metrics(self._phases)
        self.draining = False
        self.fading = False
        self.failed: str | None = None  # why the model could not be loaded
        self._name = name
        self._drama: Drama3 | None = None
        self._engine: Engine | None = None
        self._clients: Counter[str] = Counter()
        self._talks: set[Conversation] = set()
        self.hub = make_hub(config, sink, self.metrics.sink_cuts.inc)
        self._keys = tuple(key.encode() for key in config.api_keys)
        self.fetcher: Fetcher | None = None
        if config.url_references:
            ports = [int(port) for port in config.url_ports]
            self.fetcher = Fetcher(config.url_seconds, ports, config.url_requests)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="rt-drama3-server")
        self._unpacking = ThreadPoolExecutor(2, thread_name_prefix="rt-drama3-unpack")
        self._encoding = ThreadPoolExecutor(1, thread_name_prefix="rt-drama3-voices")

    # The model.

    def attach(self, drama: Drama3, engine: Engine) -> None:
        """The model is loaded and warm."""
        codec = drama.codec.config
        self.facts = ModelFacts(
            self._name, codec.sample_rate, codec.frame_samples, drama.config.num_codebooks
        )
        self.voices.adopt(drama)
        drama.steering.folder = self.config.folder / "steering"
        self._drama, self._engine = drama, engine

    @property
    def ready(self) -> bool:
        """Whether speech can be asked for."""
        engine = self._engine
        return engine is not None and engine.wait_until_warm(0) and not self.draining

    @property
    def broken(self) -> str | None:
        """Why this process will never speak again; None while it speaks, or may yet."""
        failure = None if self._engine is None else self._engine.failure
        return self.failed if failure is None else str(failure)

    def check_ready(self) -> Drama3:
        """Returns the model.

        Raises:
            Refused: ``not_ready`` or ``shutting_down``.
            DeviceError: the engine failed for good.
        """
        if self.draining:
            raise Refused("shutting_down", "the server is stopping.")
        if self._engine is not None and (failure := self._engine.failure) is not None:
            raise failure
        if self._drama is None or not self.ready:
            raise Refused("not_ready", self.failed or "the model is still being loaded.")
        return self._drama

    async def open(self, order: SpeechOrder) -> Opened:
        """Opens a stream for an order.

        Raises:
            RtDrama3Error: it cannot be opened.
        """
        drama = self.check_ready()
        takes = await self.fetched(order.directing.previous_takes)
        order = replace(
            order,
            references=await self.fetched(order.references),
            directing=replace(order.directing, previous_takes=takes),
        )
        future = self._pool.submit(self._open, drama, order)
        try:
            opened = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(_abandon)
            raise
        if opened.request is None or not order.best_of:
            return opened
        assert self._engine is not None
        chosen = await choose(
            drama, self._engine, opened.request, order.best_of, self.in_thread, self.encode
        )
        return replace(opened, chosen=chosen)

    async def fetched(self, clips: tuple[Reference, ...]) -> tuple[Reference, ...]:
        """Clips with their audio, those that are URLs fetched.

        Raises:
            Refused: ``bad_reference``: one cannot be had, or URLs are not fetched here.
        """
        urls = [clip.url for clip in clips if clip.url]
        if not urls:
            return clips
        if self.fetcher is None:
            raise Refused(
                "bad_reference",
                "URLs of clips are not opened; send the audio itself, or let the operator switch "
                "url_references on.",
            )
        most, together = self.limits.reference_bytes, self.limits.message_bytes
        audio = iter(await self.fetcher.fetch(urls, most, together))
        return tuple(
            Reference(clip.text, checked_audio(next(audio), self.limits)) if clip.url else clip
            for clip in clips
        )

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Runs what takes longer than the event loop may be held."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def unpack(self, work: Callable[..., T], parts: Sequence[bytes], *arguments: Any) -> T:
        """Runs ``work`` on the bytes of a message: a small one here, a large one in a thread."""
        if sum(map(len, parts)) <= LONG_MESSAGE:
            return work(b"".join(parts), *arguments)

        def joined() -> T:
            return work(b"".join(parts), *arguments)

        return await asyncio.get_running_loop().run_in_executor(self._unpacking, joined)

    async def encode(self, work: Callable[..., T], *arguments: Any) -> T:
        """Runs what takes seconds; one at a time, so that streams keep their cores."""
        return await asyncio.get_running_loop().run_in_executor(self._encoding, work, *arguments)

    def _open(self, drama: Drama3, order: SpeechOrder) -> Opened:
        references: list[tuple[str, Any]] = []
        spoken_by = []
        for number, name in enumerate(order.voices):
            voice = self.voices.get(name)
            if voice is None:
                if order.voice_optional:
                    continue
                raise Refused("unknown_voice", f"voice {name!r} is not stored here.")
            spoken_by.append(name)
            several = len(order.voices) > 1
            references += [
                (as_speaker(text, number) if several else text, codes)
                for text, codes in voice.references
            ]
        order = read_clips(order, drama, self.limits.reference_seconds)
        references += [clip.source for clip in order.references]
        if drama.fixed_voice and (order.references or spoken_by):
            order = replace(order, notices=(*order.notices, FIXED_VOICE))
            references = []
        if order.directing.guidance and not drama.prompts.reads_directions:
            directing = replace(order.directing, guidance=None)
            order = replace(order, notices=(*order.notices, NO_DIRECTIONS), directing=directing)
        if is_unreadable(order.text, drama.prompts.tokenizer):
            order = replace(order, notices=(*order.notices, UNREADABLE))
        speech = request = None
        if not order.silent:
            assert self._engine is not None
            settings = dict(order.settings(self.facts))
            request = SpeechRequest(references=references, **settings)
            if not order.best_of:
                speech = self._engine.open(request)
        try:
            outgoing = Outgoing(order, self.facts.sample_rate)
        except BaseException:
            if speech is not None:
                speech.cancel()
            raise
        return Opened(order, outgoing, speech, ", ".join(spoken_by), request)

    def silent(self, speech: Speech) -> bool:
        """Whether a stream has waited for text for so long that nobody counts on it."""
        return self._engine is not None and self._engine.silent(speech)

    def tokens(self, text: str) -> int:
        """Tokens of a text, for OpenAI's usage figures."""
        return self._drama.prompts.text_tokens(text) if self._drama is not None else 0

    def outcome(self, summary: SpeechSummary | None, order: SpeechOrder) -> Outcome:
        """What a client is told of a stream that ended; counts it as well."""
        if summary is None:  # there was nothing to speak: a seed is told all the same
            seed = order.sampling.seed
            return Outcome(seed=secrets.randbits(32) if seed is None else seed)
        frames = summary.codes.shape[1]
        seconds = frames * self.facts.frame_seconds
        self.metrics.frames.inc(frames)
        if frames:
            self.metrics.frame.observe(summary.durations.frames / frames, frames)
        return Outcome(
            frames=frames,
            seed=summary.seed,
            complete=summary.complete,
            segments=len(summary.segments),
            timings=summary.durations.figures(frames, seconds),
            codes=summary.codes,
            text=summary.text,
        )

    def waited(self, speech: Speech | None) -> str:
        """Why a stream that is over had to wait, "" if it had not; counts it as well."""
        reason = "" if speech is None else speech.waited_for
        if reason:
            self.metrics.waits.labels(reason).inc()
        return reason

    def _phases(self) -> Mapping[str, int]:
        return self._engine.streams() if self._engine is not None else {}

    # Clients.

    def check_key(self, authorization: str | None) -> None:
        """Checks ``Authorization``.

        Raises:
            Refused: ``unauthorized``.
        """
        if not self._keys:
            return
        scheme, _, key = (authorization or "").partition(" ")
        given = key.strip().encode()
        # Every key is compared, and each in constant time: nothing tells how near a guess was.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            what = "no API key came" if not key else "the API key is not known"
            raise Refused("unauthorized", f"{what}.")

    @contextmanager
    def client(self, address: str, route: str) -> Iterator[None]:
        """Counts a connection while it lasts.

        Raises:
            Refused: ``overloaded``: there are too many, in all or of this client.
        """
        mine, all_of_them = self._clients[address], self._clients.total()
        if mine >= self.config.connections_per_client or all_of_them >= self.config.connections:
            raise Refused(
                "overloaded",
                f"{mine} connections of this client and {all_of_them} in all are open; at most "
                f"{self.config.connections_per_client} and {self.config.connections} may be.",
            )
        self._clients[address] += 1
        gauge = self.metrics.connections.labels(route)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()
            self._clients[address] -= 1
            if not self._clients[address]:
                del self._clients[address]

    @contextmanager
    def conversation(self, talk: Conversation) -> Iterator[None]:
        """A client that is told when the server stops."""
        self._talks.add(talk)
        try:
            yield
        finally:
            self._talks.discard(talk)

    # The end.

    def cut(self) -> int:
        """Ends all that is being spoken, with the error ``stopped``; returns how much it was."""
        return sum(talk.cut() for talk in list(self._talks))

    async def drain(self) -> None:
        """Refuses new speech, lets the running finish, and fades what is left at the deadline."""
        self.draining = True
        log.info("draining", extra={"fields": {"conversations": len(self._talks)}})
        deadline = time.monotonic() + self.config.drain_seconds
        await self._until_quiet(self.config.drain_seconds, drain=True)
        if self.hub is not None and not self._talks:
            await self.hub.play_out(deadline - time.monotonic())
        self.fading = True
        await self._until_quiet(AFTER_FADE)
        await self.end()

    async def end(self) -> None:
        """Ends every conversation at once, with a word to each client."""
        if self.hub is not None:
            await self.hub.end()
        for talk in list(self._talks):
            talk.stop()
        await self._until_quiet(AFTER_FADE)

    async def _until_quiet(self, seconds: float, drain: bool = False) -> None:
        deadline = time.monotonic() + seconds
        while self._talks and time.monotonic() < deadline:
            for talk in list(self._talks) if drain else ():
                talk.drain()
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """Ends the service's threads."""
        for pool in (self._pool, self._unpacking, self._encoding):
            pool.shutdown(wait=False, cancel_futures=True)


def _abandon(future: Future[Opened]) -> None:
    """A stream that nobody waits for any more."""
    if not future.cancelled() and future.exception() is None:
        speech = future.result().speech
        if speech is not None:
            speech.cancel()
