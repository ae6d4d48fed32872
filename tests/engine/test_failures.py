"""A stream that fails ends alone, with a clear error; the others finish with the right codes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from rt_drama3.engine.engine import Engine
from rt_drama3.engine.events import Audio
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.engine.step_runner import Entry, FrameResult, StepRunner
from rt_drama3.errors import CheckpointError, DeviceError, RequestError, RtDrama3Error
from tests.small import (
    WAIT,
    Frames,
    codes_of,
    ending_drama,
    expected_codes,
    new_drama,
    running,
    say,
    shared_drama,
    until,
)

TEXT, OTHER = "Hello there.", "Why not?"
FRAMES = 25


@contextmanager
def among_others(engine: Engine) -> Iterator[None]:
    """Two streams speak meanwhile, and one more afterwards; all must say what they should."""
    expected = [expected_codes(shared_drama(), OTHER, seed, FRAMES) for seed in (1, 2, 3)]
    speeches = [say(engine, OTHER, seed=seed, max_frames=FRAMES) for seed in (1, 2)]
    yield
    speeches.append(say(engine, OTHER, seed=3, max_frames=FRAMES))
    for speech, codes in zip(speeches, expected, strict=True):
        assert np.array_equal(codes_of(speech), codes)
        assert sum(chunk.frames for chunk in speech) == FRAMES
    until(lambda: not any(engine.streams().values()))
    assert not engine.core.slots.taken


def fails(speech: Speech, kind: type[RtDrama3Error], message: str) -> int:
    """Checks how a stream ends; returns the frames that were delivered before."""
    chunks: list[Audio] = []
    with pytest.raises(kind, match=message):
        chunks.extend(speech)
    frames = 0
    for chunk in chunks:
        assert chunk.first_frame == frames
        assert np.isfinite(chunk.pcm).all()
        frames += chunk.frames
    with pytest.raises(kind, match=message):
        speech.result(WAIT)
    return frames


# Bad requests that are only noticed on the way.


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"references": [("Hm.", np.zeros((2, 5), int))]}, RequestError, "reference 1.*shape"),
        ({"references": [("Hm.", np.full((3, 5), 64))]}, RequestError, "codebook 0, frame 0 is 64"),
        ({"references": [("", np.zeros((3, 5), int))]}, RequestError, "reference 1 is empty"),
        ({"references": [("Hm.", b"no audio")]}, RequestError, "audio"),
        ({"references": [("Hm.", "/nowhere.wav")]}, RequestError, "nowhere"),
        ({"references": [("Hm.", (np.full(9, np.nan), 44100))]}, RequestError, "NaN"),
        ({"references": [("Hm.", np.zeros((3, 2000), int))]}, RequestError, "the limit is 1023"),
        ({"history": [("Hm.", np.zeros((3, 0), int))]}, RequestError, "history 1.*empty"),
        ({"history": [("Hm.", [[1, 2], [3]])]}, RequestError, "history 1.*not an array"),
    ],
)
def test_a_bad_voice_ends_its_own_stream(
    settings: dict[str, Any], kind: type[RtDrama3Error], message: str
) -> None:
    with running(shared_drama()) as engine, among_others(engine):
        assert fails(say(engine, TEXT, **settings), kind, message) == 0


# Numbers.


def test_nan_of_one_prompt_ends_that_stream_and_is_not_kept_as_a_voice() -> None:
    drama = shared_drama()
    bad = np.full((3, 30), 7)
    with running(drama) as engine:
        read, poisoned = engine.core.runner.prefill, [True]

        def poison(slot: int, rows: torch.Tensor, start: int, *more: Any) -> int:
            done = read(slot, rows, start, *more)
            if poisoned[0] and bool((rows[:, 1] == 7).any()):
                engine.core.runner.step.state.hidden[slot] = float("nan")
                engine.core.runner.step.state.values[0][slot, :, : start + done] = float("nan")
            return done

        engine.core.runner.prefill = poison  # type: ignore[method-assign]
        voice = {"references": [("Hm.", bad)]}
        with among_others(engine):
            assert fails(say(engine, TEXT, **voice), DeviceError, "NaN or infinite.*frame 0") == 0
        poisoned[0] = False
        healed = say(engine, TEXT, **voice)
        assert healed.result(WAIT).codes.shape[1] == 8  # the bad state was in no cache


def test_nan_in_mid_speech_ends_the_stream_after_its_good_frames() -> None:
    with running(shared_drama()) as engine, among_others(engine):
        frames = Frames(engine)
        speech = say(engine, TEXT, max_frames=None)
        stream = engine.core.streams[speech]
        until(lambda: frames.made[speech] >= 5)
        engine.core.runner.step.state.hidden[stream.slot.index] = float("nan")
        delivered = fails(speech, DeviceError, r"NaN or infinite.*float32.*model info")
        assert delivered >= 4


def test_a_slot_whose_numbers_went_bad_is_clean_for_the_next() -> None:
    with running(shared_drama(), max_streams=1) as engine:
        frames = Frames(engine)
        for cancelled in (False, True):
            speech = say(engine, TEXT, max_frames=None)
            until(lambda speech=speech: frames.made[speech] >= 3)
            frames.hold()
            frames.wait_for_one()
            for tensor in engine.core.runner.step.state.tensors():
                if tensor.is_floating_point():
                    tensor[0] = float("nan")
            if cancelled:  # at the same moment
                speech.cancel()
            frames.free()
            if not cancelled:
                fails(speech, DeviceError, "NaN")
            expected = expected_codes(shared_drama(), OTHER, 5, 8)
            assert np.array_equal(codes_of(say(engine, OTHER, seed=5)), expected)


def test_a_prompt_given_up_half_read_leaves_no_bad_numbers() -> None:
    """No one has read them: the stream was cancelled before its first frame."""
    with running(shared_drama(), max_streams=1) as engine:
        engine.core.prefill = lambda: False  # type: ignore[method-assign]
        speech = say(engine, TEXT)
        until(lambda: engine.streams()["prefill"] == 1)
        for tensor in engine.core.runner.step.state.tensors():
            if tensor.is_floating_point():
                tensor[0] = float("nan")
        speech.cancel()
        speech.result(WAIT)
        del engine.core.prefill
        expected = expected_codes(shared_drama(), OTHER, 5, 8)
        assert np.array_equal(codes_of(say(engine, OTHER, seed=5)), expected)


def test_weights_that_went_bad_end_every_stream_but_not_the_engine() -> None:
    drama = new_drama()
    weight = drama.model.get_parameter("tower.layers.1.ffn_down")
    good = weight.clone()
    with running(drama) as engine:
        weight.fill_(float("inf"))
        for speech in [say(engine, TEXT, seed=seed) for seed in range(3)]:
            assert fails(speech, DeviceError, "NaN or infinite") == 0
        weight.copy_(good)
        expected = expected_codes(shared_drama(), TEXT, 1, 8)
        assert np.array_equal(codes_of(say(engine, TEXT, seed=1)), expected)


# Exceptions.


def raising(error: Exception, when: Callable[..., bool], real: Callable[..., Any]) -> Any:
    def wrapped(*args: Any) -> Any:
        if when(*args):
            raise error
        return real(*args)

    return wrapped


@pytest.mark.parametrize(
    "settings", [{"references": [("Hm.",)]}, {"references": ["a.wav"]}, {"history": [[1]]}]
)
def test_an_entry_that_is_not_a_pair_is_refused_immediately(settings: dict[str, Any]) -> None:
    with running(shared_drama()) as engine, pytest.raises(RequestError, match=r"pair \(text, "):
        say(engine, TEXT, **settings)


def test_memory_that_runs_out_in_prefill_ends_that_stream(caplog: pytest.LogCaptureFixture) -> None:
    with running(shared_drama()) as engine:
        out = torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")
        engine.core.runner.prefill = raising(  # type: ignore[method-assign]
            out, lambda slot, rows, start, *_: int(rows[0, 1]) == 9, engine.core.runner.prefill
        )
        with among_others(engine):
            speech = say(engine, TEXT, references=[("Hm.", np.full((3, 100), 9))])
            fails(
                speech,
                DeviceError,
                "the stream failed: out of memory.*not affected",
            )
    assert "a stream failed" in caplog.text


@pytest.mark.parametrize("overlapped", [True, False], ids=["async", "inline"])
def test_a_codec_that_fails_ends_that_stream_and_leaves_no_hole(
    overlapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is heard of what comes after the missing batch."""
    drama = shared_drama()
    states: list[object] = []
    failures: list[object] = []
    armed = threading.Event()
    new_state = drama.codec.new_state

    def noted(batch: int = 1) -> object:
        states.append(new_state(batch))
        return states[-1]

    def once(codes: object, state: object) -> bool:
        if not armed.is_set() or failures or state is not states[0]:
            return False
        failures.append(state)
        return True

    broken = raising(RuntimeError("cuDNN"), once, drama.codec.decode_step)
    with running(drama, codec_async=overlapped) as engine, among_others(engine):
        frames = Frames(engine)
        until(lambda: len(frames.made) == 2, "the other streams")
        monkeypatch.setattr(drama.codec, "new_state", noted)
        monkeypatch.setattr(drama.codec, "decode_step", broken)
        frames.hold()
        speech = say(engine, TEXT, max_frames=None)
        stream = engine.core.streams[speech]
        frames.allow_until(lambda: stream.playout.delivered >= 3)
        armed.set()
        frames.free()
        assert fails(speech, DeviceError, "the stream failed: cuDNN") >= 3
        monkeypatch.undo()


@pytest.mark.parametrize("overlapped", [True, False], ids=["async", "inline"])
def test_a_codec_that_fails_at_the_very_end_is_reported_as_well(
    overlapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is done with the stream by then, which still lacks its last group."""
    drama = shared_drama()
    leave = threading.Event()

    def fail(*_: object) -> None:
        assert not overlapped or leave.wait(WAIT)
        raise RuntimeError("cuDNN")

    with running(drama, codec_async=overlapped) as engine:
        monkeypatch.setattr(drama.codec, "decode_step", fail)
        speech = say(engine, TEXT, max_frames=1)
        until(lambda: not any(engine.streams().values()))
        leave.set()
        assert fails(speech, DeviceError, "the stream failed: cuDNN") == 0
        monkeypatch.undo()


def test_an_error_of_the_checkpoint_keeps_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    drama = shared_drama()
    with running(drama) as engine:
        monkeypatch.setattr(
            drama.references,
            "codes",
            raising(CheckpointError("no encoder."), lambda _: True, drama.voice),
        )
        fails(say(engine, TEXT), CheckpointError, "no encoder")
        monkeypatch.undo()
        assert codes_of(say(engine, TEXT)).shape[1] == 8


def test_the_first_failure_is_the_one_that_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    drama = shared_drama()
    with running(drama, codec_async=False) as engine:
        errors = iter(RuntimeError(f"number {n}") for n in range(99))

        def fail(*_: object) -> None:
            raise next(errors)

        monkeypatch.setattr(drama.codec, "decode_step", fail)
        fails(say(engine, TEXT), DeviceError, "number 0")


def test_an_engine_that_fails_ends_everything_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(shared_drama(), max_streams=2) as engine:
        frames = Frames(engine)
        frames.hold()
        speaking = [say(engine, TEXT, max_frames=None) for _ in range(2)]
        waiting, idle = say(engine, TEXT), engine.open(SpeechRequest(final=False))
        frames.wait_for_one()

        def broken(*_: object) -> None:
            raise RuntimeError("CUDA error: an illegal memory access")

        engine.core.runner.step.release = broken  # type: ignore[method-assign] # nothing works
        engine.core.runner.step.run = broken  # type: ignore[method-assign]
        frames.free()
        for speech in (*speaking, waiting, idle):
            with pytest.raises(DeviceError, match=r"the engine failed: CUDA error.*restart"):
                list(speech)
        assert not engine.wait_until_warm(0)
        with pytest.raises(DeviceError, match="the engine failed: CUDA error"):
            say(engine, TEXT)
    assert "the engine failed" in caplog.text


def test_a_device_that_fails_when_a_slot_is_freed_leaves_no_stream_waiting() -> None:
    """The stream whose slot it was gets it like the others."""
    with running(shared_drama(), max_streams=2) as engine:
        frames = Frames(engine)
        frames.hold()
        ending, other = say(engine, TEXT, max_frames=3), say(engine, TEXT, max_frames=None)
        frames.wait_for_one()

        def broken(*_: object) -> None:
            raise RuntimeError("CUDA error: an illegal memory access")

        engine.core.runner.step.release = broken  # type: ignore[method-assign]
        frames.free()
        for speech in (ending, other):
            with pytest.raises(DeviceError, match=r"the engine failed: CUDA error.*restart"):
                speech.result(WAIT)


def test_a_device_that_fails_while_a_prompt_is_read_ahead_leaves_no_stream_waiting() -> None:
    """What was read ahead cannot be cleared away either."""
    with running(shared_drama(), prefill_block=16, context=4096, max_streams=2) as engine:
        long = "A sentence that is a bit longer, so that few of them fill a piece. " * 12
        ahead, other = say(engine, long, max_frames=None), say(engine, TEXT, max_frames=None)
        stream = engine.core.streams[ahead]
        prefill = stream.prefill
        until(lambda: prefill.ahead is not None and prefill.ahead.read > 0, "reading ahead")

        def broken(*_: object) -> None:
            raise RuntimeError("CUDA error: an illegal memory access")

        engine.core.runner.step.state.scrub = broken  # type: ignore[method-assign]
        engine.core.runner.frame = broken  # type: ignore[method-assign,assignment]
        for speech in (ahead, other):
            with pytest.raises(DeviceError, match=r"the engine failed: CUDA error.*restart"):
                speech.result(WAIT)
        assert not engine.wait_until_warm(WAIT)


def test_a_failed_engine_keeps_nothing_of_whom_it_refuses() -> None:
    """An error that is raised again and again would hold every caller's frames and requests."""
    with running(shared_drama()) as engine:
        engine.core.runner.frame = raising(  # type: ignore[method-assign]
            RuntimeError("no device"), lambda *_: True, max
        )
        fails(say(engine, TEXT), DeviceError, "the engine failed")
        lengths = []
        for _ in range(3):
            with pytest.raises(DeviceError, match="the engine failed: no device") as refused:
                say(engine, TEXT)
            lengths.append(len(refused.traceback))
        assert lengths[0] == lengths[2]


def test_a_model_that_cannot_even_warm_up_says_so() -> None:
    engine = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            StepRunner, "warm_up", raising(RuntimeError("no kernel"), lambda *_: True, max)
        )
        with running_but_broken() as engine:
            assert not engine.wait_until_warm(WAIT)
            with pytest.raises(DeviceError, match="no kernel"):
                say(engine, TEXT)


@contextmanager
def running_but_broken() -> Iterator[Engine]:
    from rt_drama3.engine.config import EngineConfig

    engine = Engine(shared_drama().loaded, EngineConfig(step_mode="eager", context=256))
    yield engine
    engine.close()


# Results that come one frame late, as on CUDA.


@contextmanager
def one_frame_late(engine: Engine) -> Iterator[None]:
    """The engine sees the results of a frame only when the next one has been made."""
    real, held = engine.core.runner.frame, list[list[FrameResult]]()

    def late(entries: list[Entry]) -> list[FrameResult]:
        made = real(entries)
        due = held.pop() if held else []
        if entries:
            held.append(made)
        return due

    engine.core.runner.frame = late  # type: ignore[method-assign,assignment]
    yield
    engine.core.runner.frame = real  # type: ignore[method-assign]


def test_late_results_change_no_code() -> None:
    drama = ending_drama()
    with running(drama, max_streams=2) as engine, one_frame_late(engine):
        speeches = [say(engine, TEXT, seed=seed, max_frames=15) for seed in range(10)]
        for seed, speech in enumerate(speeches):
            expected = expected_codes(drama, TEXT, seed, 15)
            assert np.array_equal(codes_of(speech), expected)
            assert sum(chunk.frames for chunk in speech) == expected.shape[1]


def test_a_stream_may_fill_the_context_although_one_frame_more_is_made() -> None:
    drama = shared_drama()
    rows = len(drama.prompts.build(TEXT).rows)
    with running(drama, context=rows + 6) as engine, one_frame_late(engine):
        for _ in range(2):
            summary = say(engine, TEXT, max_frames=None).result(WAIT)
            assert summary.codes.shape[1] == 6
            assert not summary.complete


def test_a_stream_that_ends_while_it_is_paused_starts_its_next_piece_awake() -> None:
    """The last result comes after the pause: the next piece must not inherit it."""
    drama = ending_drama()
    with running(drama, lead_limit=0.2, lead_timeout=600.0) as engine, one_frame_late(engine):
        for seed in range(6):
            speech = engine.open(SpeechRequest("Hello there.", final=False, seed=seed))
            for sentence in (" Why not?", " One more sentence, please.", " And this. "):
                speech.push_text(sentence)
            speech.finish()
            frames = sum(chunk.frames for chunk in speech)
            summary = speech.result(WAIT)
            assert frames == summary.codes.shape[1]
            assert len(summary.segments) == 4
