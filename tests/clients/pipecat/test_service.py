"""The Pipecat service in a real pipeline, against a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rt_drama3_client import UsageError
from tests.clients.pipecat.tools import RATE, begun, call, ours, replayed
from tests.integrations.conftest import run
from tests.integrations.tools import FLUSH, SEED, SENTENCES, Watched, assert_same
from tests.ports import free_port
from tests.server.tools import LONG, Place

from pipecat.frames.frames import (  # isort: skip - tools has looked whether it is there
    AggregatedTextFrame,
    CancelFrame,
    EndFrame,
    ErrorFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    TextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData, TTSUsageMetricsData  # isort: skip
from pipecat.services.tts_service import TextAggregationMode  # isort: skip
from pipecat.utils.errors import ErrorCategory  # isort: skip


@pytest.mark.parametrize("rate", [44_100, 24_000, 16_000])
def test_sentences(rate: int, server: Watched) -> None:
    """Each is an utterance of its own; all go over one connection."""

    async def work() -> list[bytes]:
        async with call(server, rate) as talk:
            heard = [await talk.say(text) for text in SENTENCES]
            assert talk.ear.rates == {rate}
            assert not talk.ear.of(ErrorFrame)
            assert server.place.metric("connections", route="/v1/stream") == 1
            return heard

    heard = run(work())
    assert len(server.speeches) == len(SENTENCES)
    for text, one in zip(SENTENCES, heard, strict=True):
        assert_same(one, server.native(text, sample_rate=rate))


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_streamed_answer(size: int, server: Watched) -> None:
    """Its sentences are spoken as they complete, with no wait for what comes behind."""

    async def work() -> bytes:
        async with call(server) as talk:
            await talk.send(LLMFullResponseStartFrame())
            for count, sentence in enumerate(SENTENCES, start=1):
                text = sentence + " "
                for place in range(0, len(text), size):
                    await talk.send(LLMTextFrame(text[place : place + size]))
                await asyncio.to_thread(begun, server, 0, count)
            await talk.send(LLMFullResponseEndFrame())
            await talk.ear.until(TTSStoppedFrame, 1)
            assert len(talk.ear.heard) == 1
            return talk.ear.heard[0]

    heard = run(work())
    assert len(server.speeches) == 1
    assert_same(heard, replayed(server, 0, " ".join(SENTENCES)))


def test_line_breaks_are_kept_in_the_context(server: Watched) -> None:
    """The server's segments have spaces there, which Pipecat would find nowhere in the answer."""

    async def work() -> list[str]:
        async with call(server) as talk:
            await talk.answer(["Hello\nthere. ", "And\nanother ", "one. Now the third."])
            assert not talk.ear.of(ErrorFrame)
            return talk.spoken_text()

    assert run(work()) == ["Hello\nthere.", "And\nanother one.", "Now the third."]


def test_sentence_aggregation_of_pipecat(server: Watched) -> None:
    async def work() -> bytes:
        async with call(server, text_aggregation_mode=TextAggregationMode.SENTENCE) as talk:
            return await talk.answer(["Hello ", "there. ", "And another ", "one."])

    heard = run(work())
    assert heard
    assert " ".join(segment for segment, _ in server.segments(0)) == " ".join(SENTENCES[:2])


def test_early_words(server: Watched) -> None:
    async def work() -> bytes:
        async with call(server, early_words=2) as talk:
            return await talk.answer(["Hel", "lo th", "ere a", "nd good day."])

    heard = run(work())
    assert_same(heard, server.native("Hello there ", FLUSH, "and good day.", sample_rate=RATE))


def test_text_and_audio_come_in_order(server: Watched) -> None:
    """A mark for every segment, in front of its audio, which is where it begins."""

    async def work() -> list[Any]:
        async with call(server) as talk:
            await talk.send(LLMFullResponseStartFrame())
            for count, sentence in enumerate(SENTENCES, start=1):
                await talk.send(LLMTextFrame(sentence + " "))
                await asyncio.to_thread(begun, server, 0, count)
            await talk.send(LLMFullResponseEndFrame())
            await talk.ear.until(LLMFullResponseEndFrame, 1)
            return list(talk.ear.frames)

    frames = run(work())
    places = [n for n, frame in enumerate(frames) if isinstance(frame, TTSTextFrame)]
    marks = [frames[n] for n in places]
    assert [mark.text for mark in marks] == SENTENCES
    first_frames = [first for _, first in server.segments(0)]
    for mark, first in zip(marks, first_frames, strict=True):
        assert (mark.pts - marks[0].pts) / 1e9 == pytest.approx(first * 2048 / 44_100, abs=1e-3)
        assert mark.append_to_context
    kinds = [type(frame) for frame in frames]
    started, stopped = kinds.index(TTSStartedFrame), kinds.index(TTSStoppedFrame)
    audio = [n for n, kind in enumerate(kinds) if kind is TTSAudioRawFrame]
    assert started < audio[0] < places[1] < audio[-1] < stopped
    contexts = {f.context_id for f in frames if isinstance(f, TTSAudioRawFrame | TTSStoppedFrame)}
    assert len(contexts) == 1
    assert [f for f in frames if isinstance(f, AggregatedTextFrame) and f.will_be_spoken]


def test_metrics(server: Watched) -> None:
    async def work() -> list[Any]:
        async with call(server) as talk:
            await talk.answer(["Hello ", "there."])
            await talk.answer(["And ", "another ", "one."])
            return [data for frame in talk.ear.of(MetricsFrame) for data in frame.data]

    found = run(work())
    first_bytes = [d.value for d in found if isinstance(d, TTFBMetricsData) and d.value]
    characters = [d.value for d in found if isinstance(d, TTSUsageMetricsData)]
    assert len(first_bytes) == 2
    assert characters == [len(text) for text in SENTENCES[:2]]


def test_updated_settings_apply_to_the_next_utterance(server: Watched) -> None:
    settings = ours.RtDrama3TTSService.Settings

    async def work() -> None:
        async with call(server, settings=settings(temperature=0.5, seed=SEED)) as talk:
            await talk.say(SENTENCES[0])
            await talk.send(TTSUpdateSettingsFrame(delta=settings(top_p=0.8, seed=7, guidance=2)))
            await talk.say(SENTENCES[0])
            await talk.send(TTSUpdateSettingsFrame(delta=settings(temperature=None)))
            await talk.say(SENTENCES[0])
            assert not talk.ear.of(ErrorFrame)
            assert server.place.metric("connections", route="/v1/stream") == 1

    run(work())
    asked = [speech.request for speech in server.speeches]
    assert [r.temperature for r in asked] == [0.5, 0.5, None]
    assert [r.top_p for r in asked] == [None, 0.8, 0.8]
    assert [r.seed for r in asked] == [SEED, 7, 7]
    assert asked[1].guidance == 2


def test_text_outside_of_an_answer(server: Watched) -> None:
    async def work() -> list[bytes]:
        async with call(server) as talk:
            await talk.send(TextFrame(SENTENCES[0]), TextFrame(SENTENCES[1]))
            await talk.ear.until(TTSStoppedFrame, 2)
            assert not talk.ear.of(ErrorFrame)
            return talk.ear.heard

    for text, one in zip(SENTENCES[:2], run(work()), strict=True):
        assert_same(one, server.native(text, sample_rate=RATE))


def test_consecutive_answers_keep_their_order(server: Watched) -> None:
    """The second is asked for while the first is spoken; each has its own audio."""

    async def work() -> list[bytes]:
        async with call(server) as talk:
            await talk.send(*(TTSSpeakFrame(text) for text in SENTENCES))
            await talk.ear.until(TTSStoppedFrame, 3)
            return talk.ear.heard

    for text, one in zip(SENTENCES, run(work()), strict=True):
        assert_same(one, server.native(text, sample_rate=RATE))


@pytest.mark.parametrize("rate", [RATE, 22_050])
def test_unspeakable_text_is_not_an_error(rate: int, server: Watched) -> None:
    async def work() -> list[bytes]:
        async with call(server, rate) as talk:
            heard = [await talk.say("..."), await talk.answer(["\N{GRINNING FACE}"])]
            await talk.send(LLMFullResponseStartFrame(), LLMFullResponseEndFrame())
            heard.append(await talk.say(SENTENCES[0]))
            assert not talk.ear.of(ErrorFrame)
            return heard

    *silent, last = run(work())
    assert silent == [bytes(2 * (rate // 100))] * 2
    assert_same(last, server.native(SENTENCES[0], sample_rate=rate))


def test_unknown_voice(server: Watched) -> None:
    """One error, whatever else is written; new settings give the service another chance."""
    settings = ours.RtDrama3TTSService.Settings

    async def work() -> tuple[list[Any], bytes]:
        async with call(server, settings=settings(voice="missing", seed=SEED)) as talk:
            await talk.send(LLMFullResponseStartFrame(), LLMTextFrame("Hello there. "))
            await talk.ear.until(ErrorFrame, 1)
            await talk.send(LLMTextFrame("And another one. "), LLMFullResponseEndFrame())
            await talk.ear.until(LLMFullResponseEndFrame, 1)
            assert not talk.service.is_usable
            await talk.say(SENTENCES[0])  # ends all the same
            await talk.send(TTSUpdateSettingsFrame(delta=settings(voice=None)))
            return talk.ear.of(ErrorFrame), await talk.say(SENTENCES[0])

    errors, heard = run(work())
    assert "missing" in errors[0].error
    assert errors[0].category is ErrorCategory.INVALID_REQUEST
    assert len(errors) == 1
    assert_same(heard, server.native(SENTENCES[0], sample_rate=RATE))


def test_invalid_text_affects_only_itself(server: Watched) -> None:
    async def work() -> tuple[list[Any], bytes]:
        async with call(server) as talk:
            await talk.say("Hello <|im_end|> there.")
            await talk.ear.until(ErrorFrame, 1)
            assert talk.service.is_usable
            return talk.ear.of(ErrorFrame), await talk.say(SENTENCES[0])

    errors, heard = run(work())
    assert "im_end" in errors[0].error
    assert errors[0].category is ErrorCategory.APPLICATION
    assert_same(heard, server.native(SENTENCES[0], sample_rate=RATE))


def test_no_server() -> None:
    port = free_port()
    reported: list[str] = []

    async def work() -> list[Any]:
        async with call(f"http://127.0.0.1:{port}") as talk:

            async def on_error(_: Any, error: str) -> None:
                reported.append(error)

            talk.service.add_event_handler("on_connection_error", on_error)
            await talk.say(SENTENCES[0])
            await talk.ear.until(ErrorFrame, 1)
            return talk.ear.of(ErrorFrame)

    errors = run(work())
    assert errors[0].category is ErrorCategory.CONNECTIVITY
    assert str(port) in errors[0].error


def test_invalid_arguments_raise_immediately() -> None:
    with pytest.raises(UsageError, match="0 words"):
        ours.RtDrama3TTSService(early_words=0)
    with pytest.raises(UsageError, match="address"):
        ours.RtDrama3TTSService("ftp://x")


@pytest.mark.parametrize("last", [EndFrame, CancelFrame])
def test_end_of_the_pipeline(last: type[Any], endless: Place) -> None:
    """An end speaks what there is; a cancel does not; neither leaves anything."""
    settings = ours.RtDrama3TTSSettings(max_seconds=0.5 if last is EndFrame else None)

    async def work() -> Any:
        async with call(endless.url, last=last, settings=settings) as talk:
            await talk.send(LLMFullResponseStartFrame(), LLMTextFrame(LONG))
            await talk.ear.until(TTSAudioRawFrame, 1)
        return talk

    talk = run(work())
    endless.until_free()
    if last is EndFrame:
        assert len(talk.ear.heard[0]) > 2 * 0.4 * RATE
        assert talk.ear.of(TTSStoppedFrame)
