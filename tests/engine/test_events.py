"""The event sequence of a stream, as the engine makes it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise

import numpy as np

from rt_drama3.engine.events import Audio, Done, Event, Idle, Queued, Segment
from rt_drama3.engine.speech import Speech, SpeechRequest
from tests.engine.simulation import Machine
from tests.small import TEXTS, codes_of, ending_drama, expected_codes, running, say, shared_drama

Make = Callable[..., Machine]


def names(events: list[Event]) -> list[str]:
    """Kinds of events, runs of one kind written once."""
    return [kind for kind, _ in groupby(type(event).__name__ for event in events)]


def until_idle(speech: Speech) -> list[Event]:
    taken: list[Event] = []
    for event in speech.events():
        taken.append(event)
        if isinstance(event, Idle):
            break
    return taken


def test_a_whole_text_gives_segments_audio_and_done() -> None:
    with running(ending_drama()) as engine:
        speech = engine.open(SpeechRequest("Hello there. " * 40, seed=4))
        events = list(speech.events())
    segments = [event for event in events if isinstance(event, Segment)]
    assert names(events) == ["Segment", "Audio"] * len(segments) + ["Done"]
    assert [segment.index for segment in segments] == list(range(len(segments)))
    assert {segment.known for segment in segments} == {len(segments)} != {1}
    done = events[-1]
    assert isinstance(done, Done)
    assert done.summary.segments == tuple((s.text, s.first_frame) for s in segments)
    for segment, follower in pairwise(events):
        if isinstance(segment, Segment):
            assert isinstance(follower, Audio)
            assert (follower.segment, follower.first_frame) == (segment.index, segment.first_frame)


def test_waiting_counts_the_text_that_was_not_begun() -> None:
    with running(ending_drama()) as engine:
        speech = engine.open(SpeechRequest("One two three. ", final=False, seed=4))
        speech.push_text("Four five. And")
        events = until_idle(speech)
        speech.cancel()
    segments = [event for event in events if isinstance(event, Segment)]
    assert [segment.waiting for segment in segments][-1] == len(" And")
    assert segments[0].waiting >= segments[-1].waiting


def test_a_stream_reports_each_time_it_becomes_idle() -> None:
    with running(ending_drama()) as engine:
        speech = engine.open(SpeechRequest(final=False, seed=4))
        for text in ("Hello there", "How are you"):
            speech.push_text(text)
            speech.flush()
            assert names(until_idle(speech)) == ["Segment", "Audio", "Idle"]
        speech.finish()
        assert names(list(speech.events())) == ["Done"]


def test_a_flush_without_speakable_text_reports_idle() -> None:
    with running(shared_drama()) as engine:
        speech = engine.open(SpeechRequest(final=False, seed=0, max_frames=4))
        for _ in range(2):
            speech.push_text(" ... ")
            speech.flush()
            assert until_idle(speech) == [Idle()]
        speech.finish()
        assert names(list(speech.events())) == ["Done"]


def test_a_stream_that_waits_reports_each_position(machine: Make) -> None:
    sim = machine(frames=20, max_streams=1)
    first, second, third = sim.open(), sim.open(), sim.open()
    sim.run(lambda: third.ended)
    assert sim.queued(first) == []
    assert sim.queued(second) == [Queued(0, "max_streams")]
    assert sim.queued(third) == [Queued(1, "max_streams"), Queued(0, "max_streams")]


def test_decode_batches_can_have_a_fixed_size() -> None:
    with running(shared_drama(), codec_batch_frames=3, codec_batch_min=3) as engine:
        speech = say(engine, TEXTS[0], max_frames=8)
        sizes = [chunk.frames for chunk in speech]
        assert sizes == [3, 3, 2]
        assert np.array_equal(codes_of(speech), expected_codes(shared_drama(), TEXTS[0], 0, 8))
