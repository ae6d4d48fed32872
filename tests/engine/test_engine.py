"""The engine: what a stream says, alone and among others, and how it is delivered."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import rt_drama3
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.events import Audio
from rt_drama3.engine.speech import Speech, SpeechRequest
from tests.small import (
    TEXTS,
    WAIT,
    Frames,
    codes_of,
    ending_drama,
    expected_codes,
    heard,
    needs_exact_groups,
    running,
    say,
    shared_drama,
)

# What is said.


def test_a_nano_stream_says_what_generate_says() -> None:
    drama = rt_drama3.load("nano", device="cpu", engine=EngineConfig(step_mode="eager"))
    take = drama.generate("Hello, how are you?", seed=3)
    chunks = list(drama.stream("Hello, how are you?", seed=3))
    drama.close()
    assert take.complete
    assert take.codes.shape[1] > 10
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    assert np.abs(pcm - take.audio).max() <= 1e-5
    assert np.abs(drama.decode(take.codes) - take.audio).max() <= 1e-5
    assert [chunk.frames for chunk in chunks[:2]] == [1, 1] or chunks[1].frames == 2
    assert max(chunk.frames for chunk in chunks) <= 4


@pytest.mark.parametrize("seed", range(4))
def test_codes_are_those_of_the_bare_step(engine: Engine, seed: int) -> None:
    codes = codes_of(say(engine, TEXTS[0], seed=seed, max_frames=20))
    assert np.array_equal(codes, expected_codes(shared_drama(), TEXTS[0], seed, 20))


def test_takes_that_end_by_themselves_are_those_of_the_bare_step() -> None:
    drama = ending_drama()
    ends = 0
    with running(drama) as engine:
        for seed in range(12):
            text = TEXTS[seed % 2]
            summary = say(engine, text, seed=seed, max_frames=15).result(WAIT)
            assert np.array_equal(summary.codes, expected_codes(drama, text, seed, 15))
            assert summary.complete == (summary.codes.shape[1] < 15)
            ends += summary.complete
    assert 6 < ends < 12 or ends == 12  # both kinds, or all of the kind that matters here


def test_streams_side_by_side_say_what_each_says_alone(engine: Engine) -> None:
    def takes(immediately: bool) -> list[np.ndarray]:
        speeches = []
        for number, text in enumerate(TEXTS):
            speeches.append(say(engine, text, seed=number, max_frames=12 + 3 * number))
            if not immediately:
                speeches[-1].result(WAIT)
        return [codes_of(speech) for speech in speeches]

    for alone, overlapped in zip(takes(False), takes(True), strict=True):
        assert np.array_equal(alone, overlapped)


def test_a_stream_does_not_mind_who_comes_and_goes(engine: Engine) -> None:
    expected = codes_of(say(engine, TEXTS[0], seed=7, max_frames=200))
    frames = Frames(engine)
    frames.hold()
    speech = say(engine, TEXTS[0], seed=7, max_frames=200)
    frames.allow_until(lambda: frames.made[speech] >= 3)
    others = []
    for number in range(6):
        others.append(say(engine, TEXTS[1], seed=number, max_frames=3 + number))
        if number % 2:
            others[-2].cancel()
    frames.allow_until(lambda: max(frames.batches) > 1, "company")
    frames.free()
    assert np.array_equal(codes_of(speech), expected)
    for other in others:
        other.result(WAIT)


def test_the_seed_is_reported_and_gives_the_take_again(engine: Engine) -> None:
    first = engine.open(SpeechRequest(TEXTS[0], max_frames=6)).result(WAIT)
    second = engine.open(SpeechRequest(TEXTS[0], max_frames=6)).result(WAIT)
    assert first.seed != second.seed
    again = say(engine, TEXTS[0], seed=first.seed, max_frames=6).result(WAIT)
    assert np.array_equal(first.codes, again.codes)
    assert again.seed == first.seed


@pytest.mark.parametrize("seed", [-1, 0, 2**63, 2**80, np.int64(-1)])
def test_any_whole_number_is_a_seed(engine: Engine, seed: int) -> None:
    assert say(engine, TEXTS[0], seed=seed, max_frames=2).result(WAIT).codes.shape[1] == 2


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_max_frames_is_exact(engine: Engine, count: int) -> None:
    pcm, summary = heard(say(engine, TEXTS[0], max_frames=count))
    samples = shared_drama().codec.config.frame_samples
    assert summary.codes.shape[1] == summary.delivered == count
    assert len(pcm) == count * samples
    assert not summary.complete
    assert not summary.cancelled


def test_greedy_takes_do_not_depend_on_the_seed(engine: Engine) -> None:
    one, other = (codes_of(say(engine, TEXTS[0], seed=s, temperature=0.0)) for s in (1, 2))
    assert np.array_equal(one, other)


# How it is delivered.


def chunks_of(speech: Speech) -> list[Audio]:
    return list(speech)


def test_chunks_join_without_a_gap(engine: Engine) -> None:
    drama = shared_drama()
    speech = say(engine, TEXTS[0], max_frames=23)
    chunks = chunks_of(speech)
    first = 0
    for chunk in chunks:
        assert chunk.first_frame == first
        assert chunk.sample_rate == drama.sample_rate
        assert len(chunk.pcm) == chunk.frames * drama.codec.config.frame_samples
        assert chunk.pcm.dtype == np.float32
        first += chunk.frames
    assert first == 23
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    assert np.abs(pcm - drama.decode(codes_of(speech))).max() <= 1e-5


@pytest.mark.parametrize("ceiling", [1, 3, 4, 16])
@pytest.mark.parametrize("overlapped", [True, False], ids=["async", "inline"])
def test_groups_change_nothing_but_their_size(ceiling: int, overlapped: bool) -> None:
    with running(shared_drama(), codec_batch_frames=ceiling, codec_async=overlapped) as engine:
        speech = say(engine, TEXTS[0], max_frames=37)
        chunks = chunks_of(speech)
        codes = codes_of(speech)
    sizes = [chunk.frames for chunk in chunks]
    assert sum(sizes) == 37
    assert sizes[0] == 1
    assert max(sizes) <= ceiling
    for before, size in pairwise(sizes):
        assert size <= 2 * before
    assert np.array_equal(codes, expected_codes(shared_drama(), TEXTS[0], 0, 37))
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    assert np.abs(pcm - shared_drama().decode(codes)).max() <= 1e-5


@needs_exact_groups
def test_a_request_gives_the_same_bytes_whatever_its_groups(nano: Drama3) -> None:
    text, sizes = "Hello.", []
    audio = {nano.generate(text, seed=3).audio.tobytes()}
    nano.close()  # its threads would look like those that an engine left behind
    for smallest, largest in ((1, 1), (4, 4), (1, 16)):
        with running(nano, codec_batch_min=smallest, codec_batch_frames=largest) as engine:
            chunks = chunks_of(say(engine, text, seed=3, max_frames=None))
        sizes.append({chunk.frames for chunk in chunks[:-1]})  # the last one is what remains
        audio.add(b"".join(chunk.pcm.tobytes() for chunk in chunks))
    assert sizes[:2] == [{1}, {4}]
    assert len(audio) == 1


def test_stamps_go_forward(engine: Engine) -> None:
    opened = time.monotonic()
    speeches = [say(engine, text, max_frames=20) for text in TEXTS[:3]]
    for speech in speeches:
        previous = 0.0
        for chunk in speech:
            stamps = chunk.stamps
            times = [opened, stamps.accepted, stamps.prefilled, *stamps.sampled, stamps.decoded]
            assert times == sorted(times)
            assert stamps.decoded >= previous
            previous = stamps.decoded
            assert stamps.decoded <= time.monotonic()


def test_every_sample_comes_before_the_end(engine: Engine) -> None:
    """``ended`` is only seen once everything is there to be taken."""
    for count in (1, 3, 6):
        speech = say(engine, TEXTS[0], max_frames=count)
        summary = speech.result(WAIT)
        assert speech.ended
        assert sum(chunk.frames for chunk in speech) == summary.delivered == count


def test_the_summary_shows_where_the_time_went(engine: Engine) -> None:
    durations = say(engine, TEXTS[0]).result(WAIT).durations
    assert min(durations.prefill, durations.frames, durations.codec) > 0


# The voice cache.


def test_a_warm_voice_says_what_a_cold_one_says() -> None:
    drama = shared_drama()
    codes = np.random.default_rng(1).integers(60, size=(3, 150))
    voice = {"references": [("Some words.", codes)]}
    with running(drama) as engine:
        blocks: list[int] = []
        read = engine.core.runner.prefill

        def note(slot: int, rows: torch.Tensor, start: int, *more: Any) -> int:
            blocks.append(start)
            return read(slot, rows, start, *more)

        engine.core.runner.prefill = note  # type: ignore[method-assign]
        cold = say(engine, TEXTS[0], seed=1, max_frames=20, **voice).result(WAIT)
        assert blocks[0] == 0
        blocks.clear()
        warm = say(engine, TEXTS[0], seed=1, max_frames=20, **voice).result(WAIT)
        assert (engine.core.voices.hits, engine.core.voices.misses) == (1, 1)
        assert blocks[0] == drama.prompts.build(TEXTS[0], **voice).system_rows
        plain = say(engine, TEXTS[0], seed=1, max_frames=20).result(WAIT)
    assert np.array_equal(cold.codes, warm.codes)
    assert not np.array_equal(cold.codes, plain.codes)


def test_without_memory_for_voices_everything_still_works() -> None:
    with running(shared_drama(), voice_cache_mb=0) as engine:
        takes = [codes_of(say(engine, TEXTS[0], seed=1)) for _ in range(2)]
        assert len(engine.core.voices) == 0
    assert np.array_equal(takes[0], takes[1])


# asyncio.


def test_streams_in_asyncio(engine: Engine) -> None:
    async def take(number: int) -> int:
        speech = say(engine, TEXTS[number], seed=number, max_frames=10)
        count = 0
        async for chunk in speech:
            count += chunk.frames
            await asyncio.sleep(0)
        return count

    async def scenario() -> list[int]:
        return await asyncio.gather(*(take(n) for n in range(4)))

    assert asyncio.run(scenario(), debug=True) == [10] * 4


def test_a_task_that_is_cancelled_can_cancel_its_stream(engine: Engine) -> None:
    async def consume(speech: Speech, started: asyncio.Event) -> None:
        try:
            async for _ in speech:
                started.set()
        finally:
            speech.cancel()

    async def scenario() -> bool:
        speech, started = say(engine, TEXTS[0], max_frames=None), asyncio.Event()
        task = asyncio.create_task(consume(speech, started))
        await asyncio.wait_for(started.wait(), WAIT)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return (await asyncio.to_thread(speech.result, WAIT)).cancelled

    assert asyncio.run(scenario(), debug=True)


@pytest.mark.parametrize("name", ["final", "audio", "sed"])
def test_unknown_settings_are_refused(name: str) -> None:
    drama, settings = shared_drama(), dict[str, Any]({name: False})
    for speak in (drama.generate, lambda text, **more: next(drama.stream(text, **more))):
        with pytest.raises(TypeError, match=f"no setting '{name}'; there are references, "):
            speak("Hello.", **settings)
