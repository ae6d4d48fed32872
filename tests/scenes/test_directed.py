"""Directed speech through the engine: guidance, steering, earlier takes, best-of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rt_drama3.drama3 import Take
from rt_drama3.engine.best_of import Takes
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.errors import RequestError
from rt_drama3.scenes import takes
from rt_drama3.scenes.steering import Steering
from tests.small import (
    WAIT,
    Codes,
    Frames,
    Slots,
    admit_all,
    codes_of,
    ending_drama,
    heard,
    new_drama,
    position,
    running,
    say,
    shared_drama,
    until,
)

DIRECTED = "[angry] Leave the house now."
PLAIN = "Leave the house now."
TWO_SEGMENTS = (
    "[sad] " + "It was late, and the lights were off. " * 4 + "The house was empty. " * 12
)


def spoken(engine: Engine, text: str, **more: Any) -> Codes:
    """The codes of a short take."""
    return heard(say(engine, text, **more))[1].codes


def guided_step(strength: float, seed: int, count: int) -> list[list[int]]:
    """Runs the step with guidance; returns the codes of every frame."""
    drama = shared_drama()
    prompt = drama.prompts.build(DIRECTED)
    unconditional = drama.prompts.unconditional(prompt, DIRECTED)
    assert unconditional is not None
    slots = Slots(drama.model, 2)
    slots.prefill(0, torch.from_numpy(prompt.rows))
    slots.prefill(1, torch.from_numpy(unconditional.rows))
    slots.step.configure(0, drama.sampling, seed, guidance=strength)
    return [frame[1:] for frame in slots.frames(0, count)]


# Guidance.


def test_guidance_equals_the_step_on_both_prompts() -> None:
    with running(shared_drama()) as engine:
        for strength in (0.5, 4):
            codes = spoken(engine, DIRECTED, seed=5, guidance=strength, max_frames=12)
            assert codes.T.tolist() == guided_step(strength, 5, 12)
            assert engine.core.runner.last_batch == 2
        assert 2 in engine.core.costs.step  # which admission uses
        assert not np.array_equal(codes, spoken(engine, DIRECTED, seed=5, max_frames=12))


def test_guidance_0_is_off() -> None:
    with running(shared_drama()) as engine:
        plain = spoken(engine, DIRECTED)
        assert np.array_equal(spoken(engine, DIRECTED, guidance=0), plain)
        assert np.array_equal(spoken(engine, DIRECTED, guidance=0.0), plain)
        assert engine.core.runner.last_batch == 1


def test_guidance_has_no_effect_without_directions() -> None:
    with running(shared_drama()) as engine:
        scene = [
            (DIRECTED, np.ones((3, 9), dtype=np.int64))
        ]  # directions in earlier turns do not count
        for history in ([], scene):
            plain = spoken(engine, PLAIN, history=history)
            guided = spoken(engine, PLAIN, history=history, guidance=4)
            assert np.array_equal(plain, guided)
            assert engine.core.runner.last_batch == 1


def test_a_voice_without_directions_warns_once_that_guidance_has_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drama = new_drama()
    drama.prompts.reads_directions = False
    with running(drama, max_streams=1) as engine:  # no second row, and none is needed
        plain = spoken(engine, DIRECTED)
        assert not caplog.messages
        assert np.array_equal(spoken(engine, DIRECTED, guidance=4), plain)
        (message,) = caplog.messages
        assert "guidance is ignored" in message
        Takes(engine, SpeechRequest(DIRECTED, guidance=4, max_frames=4), 3, 2).run()
        assert len(caplog.messages) == 2
        with pytest.raises(RequestError, match="guidance is 99"):
            say(engine, DIRECTED, guidance=99)


@pytest.mark.parametrize("text", ["[laughs]", "[a [b] c] Hi.", "<w>Hi</w>", "[a] [b] Hi [c]"])
def test_any_direction_can_be_guided(text: str) -> None:
    with running(shared_drama()) as engine:
        codes = spoken(engine, text, guidance=2)
        assert codes.shape == (3, 8)
        assert engine.core.runner.last_batch == 2


def test_streams_with_and_without_guidance_share_a_batch() -> None:
    orders = [
        {"text": DIRECTED, "guidance": 3.0, "seed": 1},
        {"text": PLAIN, "seed": 2},
        {"text": DIRECTED, "guidance": 1.0, "seed": 3},
        {"text": "Something else is said here.", "seed": 4},
    ]
    with running(shared_drama(), guidance_rows=2) as engine:
        alone = [spoken(engine, **order, max_frames=150) for order in orders]  # type: ignore[arg-type]
        frames = Frames(engine)
        frames.hold()
        speeches = [say(engine, **order, max_frames=150) for order in orders]  # type: ignore[arg-type]
        until(lambda: frames.allow() or engine.streams()["speaking"] == 4, "all four speaking")
        assert engine.core.slots.taken == 6
        frames.free()
        assert all(
            np.array_equal(codes_of(speech), codes)
            for speech, codes in zip(speeches, alone, strict=True)
        )
        assert max(frames.batches) == 4
        assert engine.core.slots.taken == 0


def test_a_running_stream_is_moved_to_make_a_pair_of_slots() -> None:
    """Two slots are free but not adjacent: a running stream is moved."""
    with running(shared_drama()) as engine:
        expected = [spoken(engine, PLAIN, seed=n, max_frames=150) for n in range(4)]
        guided = spoken(engine, DIRECTED, seed=9, guidance=2, max_frames=150)
        frames = Frames(engine)
        frames.hold()
        speeches = []
        for seed in range(4):  # in this order, so that each has its slot
            speeches.append(say(engine, PLAIN, seed=seed, max_frames=150))
            until(
                lambda n=seed: frames.allow() or engine.streams()["speaking"] == n + 1,
                "one more speaking",
            )
        streams = [engine.core.streams[speech] for speech in speeches]
        assert [stream.slot.index for stream in streams] == [0, 1, 2, 3]
        for n in (1, 3):
            speeches[n].cancel()
        until(lambda: frames.allow() or engine.streams()["speaking"] == 2, "two speaking")
        newcomer = say(engine, DIRECTED, seed=9, guidance=2, max_frames=150)
        until(
            lambda: frames.allow() or engine.streams()["speaking"] == 3, "the guided one speaking"
        )
        assert sorted(streams[n].slot.index for n in (0, 2)) == [2, 3]
        assert engine.core.streams[newcomer].slot.index == 0
        frames.free()
        for speech, codes in (
            (speeches[0], expected[0]),
            (speeches[2], expected[2]),
            (newcomer, guided),
        ):
            assert np.array_equal(codes_of(speech), codes)


def test_a_stream_with_guidance_waits_for_two_slots() -> None:
    with running(shared_drama(), max_streams=2) as engine:
        expected = spoken(engine, DIRECTED, guidance=2, max_frames=12)
        frames = Frames(engine)
        frames.hold()
        first = say(engine, PLAIN, max_frames=12)
        until(lambda: frames.allow() or engine.streams()["speaking"] == 1)
        waiting = say(engine, DIRECTED, guidance=2, max_frames=12)
        behind = say(engine, PLAIN, max_frames=12)
        until(lambda: frames.allow() or position(engine, behind) == 1, "a queue")
        assert position(engine, waiting) == 0
        frames.free()
        assert np.array_equal(codes_of(waiting), expected)
        assert first.result(WAIT).codes.shape == behind.result(WAIT).codes.shape == (3, 12)


def test_without_a_second_row_guidance_is_refused_with_a_hint() -> None:
    with running(shared_drama(), max_streams=1) as engine:
        with pytest.raises(RequestError, match=r"set guidance_rows = 1 \(or max_streams = 2\)"):
            say(engine, DIRECTED, guidance=2)
        assert spoken(engine, DIRECTED, guidance=0).shape == (3, 8)
    with running(shared_drama(), max_streams=1, guidance_rows=1) as engine:
        assert spoken(engine, DIRECTED, guidance=2).shape == (3, 8)
        assert engine.core.runner.last_batch == 2


@pytest.mark.parametrize("guidance", [-1, 21, float("nan"), "4"])
def test_guidance_out_of_bounds_is_refused(guidance: Any) -> None:
    with running(shared_drama()) as engine, pytest.raises(RequestError, match="guidance is"):
        say(engine, DIRECTED, guidance=guidance)


def test_only_segments_with_directions_use_a_second_row() -> None:
    drama = ending_drama()
    with running(drama) as engine:
        whole = heard(say(engine, TWO_SEGMENTS, guidance=2, max_frames=None))[1]
        assert len(whole.segments) == 2
        assert "[sad]" not in whole.segments[1][0]
        second = whole.segments[1][1]
        count = whole.codes.shape[1] - second
        assert second > 0
        assert count > 0
        assert engine.core.runner.last_batch == 1
        first = spoken(engine, whole.segments[0][0], guidance=2, max_frames=None)
        assert np.array_equal(first, whole.codes[:, :second])
    # The second segment equals a stream without guidance that has the first in its history.
    past = [(whole.segments[0][0], whole.codes[:, :second])]
    step = Slots(drama.model, 1, context=1024)
    prompt = drama.prompts.build(whole.segments[1][0], history=past)
    step.prefill(0, torch.from_numpy(prompt.rows), block=128)
    step.step.configure(0, drama.sampling, 0, first_frame=second)
    assert whole.codes[:, second:].T.tolist() == [frame[1:] for frame in step.frames(0, count)]


def test_a_late_direction_gets_a_second_row() -> None:
    """The first segment has no directions, so the stream starts in one slot and moves to two."""
    with running(shared_drama(), max_streams=3) as engine:
        neighbour = say(engine, PLAIN, seed=7, max_frames=60)
        speech = engine.open(SpeechRequest("Hello there. ", False, seed=1, guidance=3.0))
        speech.push_text("[angry] Go away! ")
        speech.finish()
        _, summary = heard(speech)
        assert [text for text, _ in summary.segments] == ["Hello there.", "[angry] Go away!"]
        assert summary.text == "Hello there. [angry] Go away!"
        heard(neighbour)
        assert engine.core.slots.taken == 0


def test_cancel_frees_both_rows() -> None:
    with running(shared_drama()) as engine:
        frames = Frames(engine)
        frames.hold()
        speech = say(engine, DIRECTED, guidance=2, max_frames=None)
        frames.wait_for_one()
        speech.cancel()
        frames.free()
        assert speech.result(WAIT).cancelled
        until(lambda: not engine.core.slots.taken)
        state = engine.core.runner.step.state
        assert not state.active.any()
        assert spoken(engine, PLAIN).shape == (3, 8)


def test_nan_in_the_unconditional_row_ends_that_stream_and_is_cleared() -> None:
    with running(new_drama()) as engine:
        expected = spoken(engine, DIRECTED, guidance=2)
        frames = Frames(engine)
        frames.hold()
        speech = say(engine, DIRECTED, guidance=2)
        frames.wait_for_one()
        slot = engine.core.streams[speech].slot.index
        state = engine.core.runner.step.state
        for tensor in state.tensors():
            if tensor.is_floating_point():
                tensor[slot + 1] = float("nan")
        frames.free()
        with pytest.raises(Exception, match="NaN or infinite"):
            speech.result(WAIT)
        assert all(torch.isfinite(t).all() for t in state.tensors() if t.is_floating_point())
        assert np.array_equal(spoken(engine, DIRECTED, guidance=2), expected)


def test_the_voice_is_prefilled_once_for_all_rows() -> None:
    with running(shared_drama()) as engine:
        voice = {"references": [("Hm.", np.full((3, 40), 5))]}
        spoken(engine, PLAIN, **voice)
        assert (engine.core.voices.hits, engine.core.voices.misses) == (0, 1)
        cold = spoken(engine, DIRECTED, guidance=2, **voice)
        assert (engine.core.voices.hits, engine.core.voices.misses) == (1, 1)
        engine.core.voices.drop(next(iter(engine.core.voices)))
        assert np.array_equal(spoken(engine, DIRECTED, guidance=2, **voice), cold)


# Steering.


def vector(layer: int = 0, scale: float = 1.0) -> Steering:
    drama = shared_drama()
    size = drama.config.backbone.hidden_size
    numbers = scale * torch.randn(size, generator=torch.Generator().manual_seed(layer))
    return Steering(f"glad-{layer}", layer, numbers, drama.steering.fingerprint)


def test_steering_changes_the_codes_and_strength_0_does_not() -> None:
    voice = {"references": [("Hm.", np.full((3, 40), 5))]}
    with running(shared_drama()) as engine:
        plain = spoken(engine, PLAIN, **voice)
        off = spoken(engine, PLAIN, steering=[(vector(0), 0), (vector(1), 0.0)], **voice)
        assert np.array_equal(off, plain)
        steered = spoken(engine, PLAIN, steering=[(vector(0), 3), (vector(1), -1)], **voice)
        assert not np.array_equal(steered, plain)
        # The cached voice is unaffected.
        assert np.array_equal(spoken(engine, PLAIN, **voice), plain)
        again = spoken(engine, PLAIN, steering=[(vector(0), 3), (vector(1), -1)], **voice)
        assert np.array_equal(again, steered)


def test_steering_changes_only_the_rows_of_the_text() -> None:
    """The engine's prefill equals the model's with the hook on those rows."""
    drama = shared_drama()
    push = drama.steering.combine([(vector(), 2.0)])
    assert push is not None
    past = [("Before.", np.full((3, 20), 4))]
    prompt = drama.prompts.build(PLAIN, history=past)
    slots = Slots(drama.model, 1)
    slots.step.state.reset(0)
    with torch.inference_mode():
        rows, system = torch.from_numpy(prompt.rows), prompt.system_rows
        drama.model.prefill(rows[:system], slots.step.state, 0, chunk=128)
        hook = push.hook(prompt.text_rows)
        drama.model.prefill(rows[system:], slots.step.state, 0, system, 128, hook)
    slots.rows[0] = len(rows)
    slots.step.configure(0, drama.sampling, 3)
    expected = [frame[1:] for frame in slots.frames(0, 12)]
    with running(drama) as engine:
        steering = [(vector(), 2.0)]
        found = spoken(engine, PLAIN, seed=3, max_frames=12, history=past, steering=steering)
    assert found.T.tolist() == expected


def test_steering_and_guidance_work_together() -> None:
    with running(shared_drama()) as engine:
        takes = [
            spoken(engine, DIRECTED, guidance=guidance, steering=[(vector(), strength)])
            for guidance in (0, 2)
            for strength in (0, 3)
        ]
        assert len({take.tobytes() for take in takes}) == 4


@pytest.mark.parametrize("steering", [[("unknown", 1.0)], [("../x", 1.0)], "glad", [("a",)]])
def test_invalid_steering_is_refused_immediately(steering: Any) -> None:
    with running(shared_drama()) as engine, pytest.raises(RequestError, match="steering"):
        say(engine, PLAIN, steering=steering)


# Earlier takes.


def test_a_stored_take_continues_like_one_in_memory() -> None:
    drama = ending_drama()
    first = drama.generate("[calm] Who is there?", seed=3)
    assert first.complete
    expected = drama.generate(PLAIN, seed=4, history=[(first.text, first.codes)])
    (kept,) = takes.load_takes(first.artefact(), drama.config)
    for previous in (
        kept,
        first,
        (first.text, first.codes),
        {"text": kept.text, "codes": kept.codes},
    ):
        found = drama.generate(PLAIN, seed=4, previous_takes=[previous])
        assert np.array_equal(found.codes, expected.codes)
    alone = drama.generate(PLAIN, seed=4)
    assert not np.array_equal(alone.codes, expected.codes)
    # An edit is the same line again, with other words or another direction.
    edit = drama.generate("[angry] Who is there?", seed=4, previous_takes=[kept])
    again = drama.generate("[angry] Who is there?", seed=4, history=[(kept.text, kept.codes)])
    assert np.array_equal(edit.codes, again.codes)


def test_a_stream_returns_its_take() -> None:
    with running(shared_drama()) as engine:
        _, summary = heard(say(engine, DIRECTED, seed=3))
        (kept,) = takes.load_takes(summary.take(), shared_drama().config)
        assert kept.text == DIRECTED
        assert np.array_equal(kept.codes, summary.codes)


def test_history_comes_before_previous_takes() -> None:
    one, two = np.full((3, 5), 1), np.full((3, 6), 2)
    with running(shared_drama()) as engine:
        both = spoken(engine, PLAIN, history=[("One.", one), ("Two.", two)])
        mixed = spoken(engine, PLAIN, history=[("One.", one)], previous_takes=[("Two.", two)])
        assert np.array_equal(mixed, both)
        other = spoken(engine, PLAIN, previous_takes=[("Two.", two), ("One.", one)])
        assert not np.array_equal(other, both)


def test_a_take_of_text_alone_is_spoken_first() -> None:
    drama = ending_drama()
    first = drama.generate("Who is there?", seed=5)
    second = drama.generate("It is me.", seed=5, previous_takes=[first])
    expected = drama.generate(PLAIN, seed=5, previous_takes=[first, second])
    given: list[Any] = [("Who is there?", None), {"text": "It is me."}]
    assert np.array_equal(drama.generate(PLAIN, seed=5, previous_takes=given).codes, expected.codes)
    mixed = [first, ("It is me.", None)]
    assert np.array_equal(drama.generate(PLAIN, seed=5, previous_takes=mixed).codes, expected.codes)
    third = np.full((3, 4), 2)
    last = drama.generate(PLAIN, seed=5, previous_takes=[first, second, ("No.", third)])
    given.append(("No.", third))
    assert np.array_equal(drama.generate(PLAIN, seed=5, previous_takes=given).codes, last.codes)


def test_a_take_of_audio_is_encoded(nano: Any) -> None:
    drama = new_drama()
    audio = np.sin(np.arange(20_000, dtype=np.float32) / 20)
    if not drama.codec.has_encoder:
        with pytest.raises(RequestError, match="no encoder"):
            drama.generate(PLAIN, seed=1, previous_takes=[("Hm.", (audio, 44_100))])
        return
    codes = drama.encode(audio, 44_100)
    expected = drama.generate(PLAIN, seed=1, max_frames=6, history=[("Hm.", codes)])
    found = drama.generate(PLAIN, seed=1, max_frames=6, previous_takes=[("Hm.", (audio, 44_100))])
    assert np.array_equal(found.codes, expected.codes)


def test_a_take_without_speakable_text_fails_only_that_stream() -> None:
    with running(ending_drama()) as engine:
        other = say(engine, PLAIN)
        speech = say(engine, PLAIN, previous_takes=[("...", None)])
        with pytest.raises(RequestError, match=r"'\.\.\.' has no speakable text"):
            speech.result(WAIT)
        heard(other)
        until(lambda: not engine.core.open_streams())


def test_cancel_also_stops_the_take_spoken_first() -> None:
    with running(shared_drama()) as engine:
        frames = Frames(engine)
        frames.hold()
        speech = say(engine, PLAIN, previous_takes=[("Before.", None)], max_frames=None)
        frames.wait_for_one()
        speech.cancel()
        frames.free()
        assert speech.result(WAIT).cancelled
        until(lambda: not engine.core.open_streams(), "the end of both")
        until(lambda: not engine.core.slots.taken, "free slots")


def test_takes_spoken_first_do_not_count_as_clients() -> None:
    with running(shared_drama(), max_streams=2, max_queue=0) as engine:
        frames = Frames(engine)
        frames.hold()
        speech = say(engine, PLAIN, previous_takes=[("Before.", None), ("Then.", None)])
        frames.wait_for_one()
        assert len(engine.core.open_streams()) > 1
        other = say(engine, PLAIN)
        frames.free()
        heard(other)
        speech.cancel()


@pytest.mark.parametrize(
    "previous",
    [
        "take",
        [3],
        [("", None)],
        [("Hi.", np.zeros((2, 4), int))],
        [("Hi.", np.full((3, 4), 99_999))],
        [("a", None)] * 65,
    ],
)
def test_invalid_takes_are_refused(previous: Any) -> None:
    with running(shared_drama()) as engine, pytest.raises(RequestError):
        heard(say(engine, PLAIN, previous_takes=previous))


# References.


def test_references_name_their_speakers_in_order() -> None:
    one, two = np.full((3, 9), 1), np.full((3, 9), 2)
    with running(shared_drama()) as engine:
        tagged = [("<|speaker:0|> Hm.", one), ("<|speaker:7|> Ah.", two)]
        text = "<|speaker:7|> It is me. <|speaker:0|> Who?"
        expected = spoken(engine, text, references=tagged)
        maps = [
            {"text": "Hm.", "vq_codes": one.tolist(), "speaker": 0},
            {"text": "Ah.", "vq_codes": two, "speaker": 7},
        ]
        assert np.array_equal(spoken(engine, text, references=maps), expected)
        assert not np.array_equal(spoken(engine, text, references=maps[::-1]), expected)


# Codes alone, and the best of several.


def test_codes_alone_are_the_codes_of_the_audio() -> None:
    with running(shared_drama(), lead_limit=0.2) as engine:
        expected = spoken(engine, PLAIN, max_frames=60)
        speech = say(engine, PLAIN, max_frames=60, audio=False)
        assert np.array_equal(codes_of(speech), expected)  # unread, but not paused
        assert list(speech) == []
        assert speech.result(0).delivered == 0


def test_the_best_take_is_kept() -> None:
    drama = ending_drama()
    ranking = drama.best_of(PLAIN, 6, lambda take: take.codes.shape[1], seed=20)
    assert sorted(take.seed for take in ranking.takes) == list(range(20, 26))
    assert list(ranking.scores) == sorted(ranking.scores, reverse=True)
    lengths = {}
    for take in ranking.takes:
        expected = drama.generate(PLAIN, seed=take.seed)
        assert np.array_equal(take.codes, expected.codes)
        assert np.allclose(take.audio, expected.audio, atol=1e-4)
        assert take.complete == expected.complete
        figures = take.figures()  # decoding counts, though it came after the stream
        assert min(figures.values()) > 0
        assert 1e3 * take.seconds * figures["rtf"] > figures["codec_ms"]
        lengths[take.seed] = take.codes.shape[1]
    assert len(set(lengths.values())) > 1
    assert ranking.best.codes.shape[1] == max(lengths.values())


def test_takes_are_made_in_one_batch() -> None:
    drama = new_drama()
    admit_all(drama.engine)
    frames = Frames(drama.engine)
    ranking = drama.best_of(PLAIN, 3, seed=1, max_frames=30)
    assert len(ranking.takes) == 3
    assert max(frames.batches) > 1
    drama.close()


def test_a_failed_take_stops_the_others() -> None:
    drama = new_drama()
    with pytest.raises(RequestError, match="shape"):
        drama.best_of(PLAIN, 3, history=[("Hi.", np.zeros((2, 4), int))])
    until(lambda: not drama.engine.core.open_streams())
    for wrong in (0, 33, "2"):
        with pytest.raises(RequestError, match="best_of is"):
            drama.best_of(PLAIN, wrong)  # type: ignore[arg-type]
    drama.close()


def test_the_best_take_is_a_take() -> None:
    take = ending_drama().best_of(DIRECTED, 2, guidance=1.0, seed=3).best
    assert isinstance(take, Take)
    (kept,) = takes.load_takes(take.artefact(), ending_drama().config)
    assert kept.text == DIRECTED


def test_a_speech_without_a_frame_has_no_take() -> None:
    with running(shared_drama()) as engine:
        speech: Speech = say(engine, "...")
        _, summary = heard(speech)
        with pytest.raises(RequestError, match="the codes of a take"):
            summary.take()
