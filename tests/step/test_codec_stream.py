"""CodecStream and CodecWorker: batching never changes the PCM; the order of decoding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch

from rt_drama3 import checkpoint
from rt_drama3.codec import Codec
from rt_drama3.codec_stream import CodecStream, CodecWorker
from rt_drama3.errors import RequestError

TOLERANCE = 1e-5  # of PCM in -1..1
WAIT = 20.0  # seconds after which a thread counts as stuck
CPU = torch.device("cpu")

Codes = npt.NDArray[np.int64]


@pytest.fixture(scope="module")
def codec() -> Codec:
    return checkpoint.load_codec(checkpoint.resolve("nano"), "cpu", torch.float32)


@pytest.fixture(scope="module")
def codes(codec: Codec) -> Codes:
    """A take ``[num_codebooks, 40]``."""
    size = codec.config.residual_codebook_size
    return np.random.default_rng(0).integers(size, size=(codec.config.num_codebooks, 40))


def add(stream: CodecStream, codes: Codes, first: int, count: int) -> None:
    for frame in range(first, first + count):
        stream.add(codes[:, frame], segment=frame // 10, prefilled=0.5, sampled=float(frame))


# CodecStream.


@pytest.mark.parametrize(
    "batches",
    [[1] * 40, [1, 2, 4, *[4] * 8, 1], [40], [3, 5, 7, 11, 13, 1], [16, 16, 8]],
    ids=["ones", "growing", "whole", "odd", "large"],
)
def test_any_batching_gives_the_pcm_of_decoding_in_one_call(
    codec: Codec, codes: Codes, batches: list[int]
) -> None:
    with torch.inference_mode():
        expected = codec.decode(torch.from_numpy(codes)[None])[0].numpy()
    stream, parts, first = CodecStream(codec), [], 0
    for size in batches:
        add(stream, codes, first, size)
        group = stream.take()
        assert (group.first_frame, group.frames) == (first, size)
        parts.append(stream.decode(group))
        assert parts[-1].dtype == np.float32
        assert len(parts[-1]) == size * codec.frame_samples
        first += size
    assert np.abs(np.concatenate(parts) - expected).max() <= TOLERANCE


def test_a_batch_carries_the_data_of_its_frames(codec: Codec, codes: Codes) -> None:
    stream = CodecStream(codec)
    assert (stream.gathered, stream.submitted, stream.last_size) == (0, 0, 0)
    add(stream, codes, 9, 3)  # frames 9, 10 and 11: two segments
    assert (stream.gathered, stream.submitted) == (3, 0)
    group = stream.take()
    assert np.array_equal(group.codes, codes[:, 9:12])
    assert (group.segment, group.prefilled, group.sampled) == (0, 0.5, (9.0, 11.0))
    assert (stream.gathered, stream.submitted, stream.last_size) == (0, 3, 3)
    add(stream, codes, 12, 1)
    second = stream.take()
    assert (second.first_frame, second.segment, second.sampled) == (3, 1, (12.0, 12.0))


def test_streams_do_not_share_their_past(codec: Codec, codes: Codes) -> None:
    alone, mixed, other = (CodecStream(codec) for _ in range(3))
    pcm: dict[CodecStream, list[npt.NDArray[np.float32]]] = {alone: [], mixed: [], other: []}

    def decode(stream: CodecStream, first: int) -> None:
        add(stream, codes, first, 4)
        pcm[stream].append(stream.decode(stream.take()))

    for first in range(0, 20, 4):
        decode(alone, first)
    for first in range(0, 20, 4):
        decode(other, first + 20)
        decode(mixed, first)
    assert np.array_equal(np.concatenate(pcm[alone]), np.concatenate(pcm[mixed]))


def test_decoded_pcm_is_not_overwritten(codec: Codec, codes: Codes) -> None:
    """PCM that a listener holds is not a view of memory that decoding writes again."""
    stream = CodecStream(codec)
    add(stream, codes, 0, 2)
    first = stream.decode(stream.take())
    before = first.copy()
    add(stream, codes, 2, 2)
    stream.decode(stream.take())
    assert np.array_equal(first, before)


def test_a_failed_decode_marks_the_stream_as_broken(
    codec: Codec, codes: Codes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codec's memory may be half written: nothing that follows can be trusted."""
    stream = CodecStream(codec)
    add(stream, codes, 0, 1)
    stream.decode(stream.take())
    assert not stream.broken

    def fail(*_: object) -> None:
        raise RequestError("no.")

    monkeypatch.setattr(codec, "decode_step", fail)
    add(stream, codes, 1, 1)
    with pytest.raises(RequestError):
        stream.decode(stream.take())
    assert stream.broken


# CodecWorker.


class Gate:
    """A job that keeps the worker busy until it is opened."""

    def __init__(self) -> None:
        self.entered, self._open = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self._open.wait(WAIT)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def worker() -> Iterator[CodecWorker]:
    worker = CodecWorker(CPU, threaded=True)
    yield worker
    worker.close()


def occupied(worker: CodecWorker) -> Gate:
    gate = Gate()
    worker.submit(0.0, gate)
    assert gate.entered.wait(WAIT)
    return gate


def noter(notes: list[str]) -> Callable[[str], Callable[[], None]]:
    return lambda note: lambda: notes.append(note)


def test_the_most_urgent_batch_is_decoded_first(worker: CodecWorker) -> None:
    notes: list[str] = []
    job, gate = noter(notes), occupied(worker)
    for deadline, name in ((3.0, "late"), (1.0, "soon"), (0.0, "now"), (2.0, "then")):
        worker.submit(deadline, job(name))
    gate.open()
    worker.close()
    assert notes == ["now", "soon", "then", "late"]


def test_batches_of_equal_urgency_keep_their_order(worker: CodecWorker) -> None:
    notes: list[str] = []
    job, gate = noter(notes), occupied(worker)
    for number in range(20):
        worker.submit(5.0, job(str(number)))
    gate.open()
    worker.close()
    assert notes == [str(n) for n in range(20)]


def test_a_stream_keeps_its_order_between_others(worker: CodecWorker) -> None:
    """Deadlines of a stream never go back, so a more urgent one changes nothing."""
    notes: list[str] = []
    job, gate = noter(notes), occupied(worker)
    for number, deadline in enumerate((0.0, 0.0, 0.1, 0.2, 0.2, 0.6)):
        worker.submit(deadline, job(f"a{number}"))
        worker.submit(deadline / 2, job(f"b{number}"))
    gate.open()
    worker.close()
    assert [n for n in notes if n[0] == "a"] == [f"a{n}" for n in range(6)]
    assert [n for n in notes if n[0] == "b"] == [f"b{n}" for n in range(6)]


def test_jobs_run_in_a_thread_of_their_own(worker: CodecWorker) -> None:
    names: list[str] = []
    worker.submit(0.0, lambda: names.append(threading.current_thread().name))
    worker.close()
    assert names == ["rt-drama3-codec"]


def test_inline_jobs_run_before_submit_returns() -> None:
    worker = CodecWorker(CPU, threaded=False)
    threads: list[threading.Thread] = []
    worker.submit(9.0, lambda: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]
    worker.close()


@pytest.mark.parametrize("threaded", [True, False])
def test_close_finishes_what_was_submitted_and_may_be_repeated(threaded: bool) -> None:
    worker = CodecWorker(CPU, threaded)
    notes: list[str] = []
    for number in range(5):
        worker.submit(float(number), noter(notes)(str(number)))
    worker.close()
    assert len(notes) == 5
    worker.close()


def test_a_job_after_close_is_run_not_lost() -> None:
    worker = CodecWorker(CPU, threaded=True)
    worker.close()
    notes: list[str] = []
    worker.submit(0.0, noter(notes)("late"))
    assert notes == ["late"]


def test_close_leaves_no_thread() -> None:
    before = threading.active_count()
    worker = CodecWorker(CPU, threaded=True)
    assert threading.active_count() == before + 1
    worker.close()
    assert threading.active_count() == before


def test_one_thread_for_decoding_leaves_torchs_own_count_alone() -> None:
    """torch keeps the count of a thread, but also applies the latest to every later thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    counts: list[int] = []
    try:
        worker = CodecWorker(CPU, threaded=True)
        worker.submit(0.0, lambda: counts.append(torch.get_num_threads()))
        worker.close()
        counts.append(torch.get_num_threads())
        later = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
        later.start()
        later.join()
    finally:
        torch.set_num_threads(before)
    assert counts == [1, 3, 3]
