"""Text through the engine: as it arrives, long ones in pieces, and what has nothing to say."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from rt_drama3.engine import prompts as engine_prompts
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.engine.step_runner import FrameResult
from rt_drama3.errors import RequestError
from rt_drama3.text.prompt import PromptBuilder
from rt_drama3.text.rules import split_text
from tests.small import (
    WAIT,
    Frames,
    codes_of,
    ending_drama,
    heard,
    new_drama,
    running,
    say,
    shared_drama,
    until,
)

LONG = "It was the best of times, it was the worst of times, and it was long ago. " * 16


def growing(engine: Engine, **settings: object) -> Speech:
    """A stream whose text comes later."""
    return engine.open(SpeechRequest(final=False, seed=4, **settings))  # type: ignore[arg-type]


# Text that arrives.


def test_text_pushed_word_by_word_is_spoken_sentence_by_sentence() -> None:
    with running(ending_drama()) as engine:
        speech = growing(engine)
        for word in ("Hello", " there.", " How", " are", " you?", " Fine"):
            speech.push_text(word)
        speech.finish()
        pcm, summary = heard(speech)
        assert [text for text, _ in summary.segments] == ["Hello there.", "How are you?", "Fine"]
        assert summary.complete
        starts = [frame for _, frame in summary.segments]
        assert starts == sorted(starts)
        assert len(pcm) == summary.codes.shape[1] * ending_drama().codec.config.frame_samples


def test_the_first_sentence_is_heard_before_the_second_is_known() -> None:
    with running(ending_drama()) as engine:
        speech = growing(engine)
        speech.push_text("Hello there. And")
        first = next(iter(speech))
        assert (first.first_frame, first.segment) == (0, 0)
        assert not speech.ended
        until(lambda: engine.streams()["idle"] == 1)  # it waits for text, in no slot
        assert not engine.core.slots.taken
        speech.push_text(" so on.")
        speech.finish()
        list(speech)
        assert [text for text, _ in speech.result(WAIT).segments] == ["Hello there.", "And so on."]


def test_how_text_arrives_does_not_change_the_take() -> None:
    """The same pieces are the same take, whichever waited for the other."""
    with running(ending_drama()) as engine:
        takes = []
        for parts in (["One. Two. Three. "], list("One. Two. Three. ")):
            speech = growing(engine)
            for part in parts:
                speech.push_text(part)
                speech.flush() if part in ".!" else None
            speech.finish()
            takes.append(codes_of(speech))
        speech = growing(engine)
        for sentence in ("One.", "Two.", "Three."):
            speech.push_text(sentence)
            speech.flush()
            until(lambda: engine.streams()["idle"] == 1)  # a pause between them
        speech.finish()
        takes.append(codes_of(speech))
    assert takes[0].shape[1] > 0
    assert np.array_equal(takes[1], takes[2])


def test_flushing_nothing_makes_no_sound() -> None:
    with running(shared_drama()) as engine:
        frames, speech = Frames(engine), growing(engine)
        for _ in range(2):
            speech.flush()
            speech.push_text("")
            speech.push_text(" \n")
        speech.finish()
        pcm, summary = heard(speech)
        assert len(pcm) == 0
        assert summary.segments == ()
        assert summary.codes.shape == (shared_drama().config.num_codebooks, 0)
        assert summary.complete
        assert not frames.made


@pytest.mark.parametrize("text", ["...", "\U0001f600", "?!", "<|speaker:2|> -"])
def test_nothing_to_say_is_an_empty_take(text: str) -> None:
    with running(shared_drama()) as engine:
        pcm, summary = heard(say(engine, text))
        assert len(pcm) == summary.codes.shape[1] == 0
        assert summary.complete


def test_pushing_after_the_end_is_refused() -> None:
    with running(ending_drama()) as engine:
        speech = growing(engine)
        speech.push_text("Hello.")
        speech.finish()
        with pytest.raises(RequestError, match="finished"):
            speech.push_text("More.")
        speech.finish()
        speech.result(WAIT)
        with pytest.raises(RequestError, match="ended; open a new one"):
            speech.push_text("More.")
        whole = say(engine, "Hello.", max_frames=None)
        with pytest.raises(RequestError, match=r"finished|ended"):
            whole.push_text("More.")


def test_text_that_is_refused_does_not_end_the_stream() -> None:
    with running(ending_drama()) as engine:
        speech = growing(engine)
        with pytest.raises(RequestError, match="im_end"):
            speech.push_text("Hello <|im_end|>.")
        speech.push_text("Hello.")
        speech.finish()
        list(speech)
        assert [text for text, _ in speech.result(WAIT).segments] == ["Hello."]


def test_a_finish_that_is_refused_ends_the_stream_all_the_same() -> None:
    with running(ending_drama()) as engine:
        speech = growing(engine)
        speech.push_text("Hello. <|speaker:1")
        with pytest.raises(RequestError, match="not a speaker tag"):
            speech.finish()
        list(speech)
        assert [text for text, _ in speech.result(WAIT).segments] == ["Hello."]


def test_text_and_end_may_come_from_different_threads() -> None:
    with running(ending_drama(), max_queue=100) as engine:
        for number in range(20):
            speech, accepted = growing(engine), list[str]()

            def push(speech: Speech = speech, accepted: list[str] = accepted) -> None:
                for word in ("One. ", "Two. ", "Three. "):
                    try:
                        speech.push_text(word)
                    except RequestError:
                        return
                    accepted.append(word)

            client = threading.Thread(target=push)
            client.start()
            threading.Event().wait(1e-4 * number)
            speech.finish()
            client.join(WAIT)
            list(speech)
            said = " ".join(text for text, _ in speech.result(WAIT).segments)
            assert said.split() == "".join(accepted).split()


# Long text.


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """What every prompt was built of: the piece and the texts of its history."""
    built: list[tuple[str, list[str]]] = []
    real = PromptBuilder.build

    def build(self: PromptBuilder, text: str, references=(), history=(), **more):  # type: ignore[no-untyped-def]
        built.append((text, [said for said, _ in history]))
        return real(self, text, references, history, **more)

    monkeypatch.setattr(PromptBuilder, "build", build)
    # What is read ahead is not a prompt.
    monkeypatch.setattr(engine_prompts.PromptPreparer, "opening", lambda *args: args[-1].rows)
    return built


def test_a_long_text_is_spoken_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    drama, texts = ending_drama(), split_text(LONG)
    assert len(texts) >= 4
    built = recorded(monkeypatch)
    given = ("Earlier.", np.ones((3, 4), dtype=np.int64))
    with running(drama, context=4096) as engine:
        seen = Frames(engine)
        pcm, summary = heard(say(engine, LONG, max_frames=None, seed=2, history=[given]))
        assert max(seen.batches) == 1
    assert [text for text, _ in summary.segments] == texts
    lengths = np.diff([*(frame for _, frame in summary.segments), summary.codes.shape[1]])
    spoken = [text for text, length in zip(texts, lengths, strict=True) if length]
    for number, (text, history) in enumerate(built):
        assert text == texts[number]
        past = [t for t in texts[:number] if t in spoken]
        own = past[:1] + past[1:][-1:]
        assert history == ["Earlier.", *own]  # of its own the first and the latest piece
    assert np.abs(pcm - drama.decode(summary.codes)).max() <= 1e-5  # one codec memory throughout
    assert summary.complete


def test_segments_of_chunks_follow_the_pieces() -> None:
    with running(ending_drama(), context=4096) as engine:
        speech = say(engine, LONG, max_frames=None, seed=2)
        chunks = list(speech)
        starts = [frame for _, frame in speech.result(WAIT).segments]
    for chunk in chunks:
        assert starts[chunk.segment] <= chunk.first_frame
        later = [start for start in starts[chunk.segment + 1 :] if start > starts[chunk.segment]]
        assert not later or chunk.first_frame + chunk.frames <= later[0]


def test_a_piece_that_is_silent_leaves_the_others_alone() -> None:
    """The model may end a piece before its first frame."""
    drama = new_drama()
    start = drama.config.semantic_start
    with running(drama) as engine:
        real = engine.core.runner.frame

        def ends(result: FrameResult) -> FrameResult:
            stream = result.stream
            eos = len(stream.segments) == 2 or len(stream.codes) >= 5
            return replace(result, main=drama.config.eos if eos else start + int(result.codes[0]))

        engine.core.runner.frame = lambda entries: list(map(ends, real(entries)))  # type: ignore[method-assign]
        speech = growing(engine)
        for sentence in ("One. ", "Two. ", "Three. "):
            speech.push_text(sentence)
        speech.finish()
        pcm, summary = heard(speech)
        lengths = np.diff([*(frame for _, frame in summary.segments), summary.codes.shape[1]])
        assert len(lengths) == 3
        assert lengths[1] == 0
        assert lengths[0] >= 4 <= lengths[2]
        assert len(pcm) == summary.codes.shape[1] * drama.codec.config.frame_samples


def test_max_frames_holds_for_all_pieces_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_prompts, "frame_cap", lambda text, rate: 7)
    with running(shared_drama(), context=4096) as engine:
        frames, speech = Frames(engine), say(engine, LONG, max_frames=17)
        _, summary = heard(speech)
        assert summary.codes.shape[1] == 17
        assert [frame for _, frame in summary.segments] == [0, 7, 14]
        assert not summary.complete
        assert frames.made[speech] <= 17 + 1
        exact = say(engine, LONG, max_frames=14).result(WAIT)
        assert exact.codes.shape[1] == 14
        assert not exact.complete


def test_a_text_cut_by_its_own_limits_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_prompts, "frame_cap", lambda text, rate: 3)
    with running(shared_drama(), context=4096) as engine:
        summary = say(engine, LONG, max_frames=None).result(WAIT)
        assert summary.codes.shape[1] == 3 * len(split_text(LONG))
        assert not summary.complete


def test_the_noise_of_a_take_continues_over_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second piece draws with the noise of its frame in the take, not that of frame 0."""
    monkeypatch.setattr(engine_prompts, "frame_cap", lambda text, rate: 5)
    with running(shared_drama()) as engine:
        starts: list[tuple[int, int]] = []
        real = engine.core.runner.step.configure

        def start(slot, sampling, seed, first_frame, *more):  # type: ignore[no-untyped-def]
            starts.append((seed, first_frame))
            real(slot, sampling, seed, first_frame, *more)

        engine.core.runner.step.configure = start  # type: ignore[method-assign]
        say(engine, LONG, max_frames=12, seed=9).result(WAIT)
        assert starts == [(9, 0), (9, 5), (9, 10)]


def test_a_streams_own_past_gives_way_when_the_context_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third piece must not fail, nor be cut, because the first two are part of its prompt."""
    monkeypatch.setattr(engine_prompts, "frame_cap", lambda text, rate: 60)
    texts = split_text(LONG)
    rows = max(len(shared_drama().prompts.build(text).rows) for text in texts)
    built = recorded(monkeypatch)
    with running(shared_drama(), context=rows + 70) as engine:
        _, summary = heard(say(engine, LONG, max_frames=None))
    assert summary.codes.shape[1] == 60 * len(texts)  # each had all its room
    kept = {text: history for text, history in built}
    assert kept[texts[-1]] == []


def test_a_piece_that_does_not_fit_ends_the_stream_with_the_numbers() -> None:
    with running(shared_drama(), context=64) as engine:
        with pytest.raises(RequestError, match=r"prompt has .* the limit is 63.*`context`"):
            list(say(engine, LONG))
        assert say(engine, LONG).request.text == LONG  # the engine lives
