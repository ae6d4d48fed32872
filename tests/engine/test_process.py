"""The engine and the process around it: dropped, forked, at exit, and its thread count."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import rt_drama3
from rt_drama3.drama3 import Drama3
from rt_drama3.engine import thread as engine_thread
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.speech import SpeechRequest, check_process
from rt_drama3.errors import ConfigError, DeviceError
from rt_drama3.system.threads import compute_threads, use_device
from tests.small import WAIT, codes_of, expected_codes, new_drama, say, small_directory, until

CONFIG = EngineConfig(step_mode="eager", context=512)


def own_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("rt-drama3")}


# Dropped.


@pytest.mark.parametrize("speaking", [False, True])
def test_a_drama_that_is_dropped_gives_threads_and_memory_back(speaking: bool) -> None:
    gc.collect()
    before = own_threads()
    drama = rt_drama3.load(small_directory(), device="cpu", dtype="float32", engine=CONFIG)
    speech = say(drama.engine, "Hello there.", max_frames=3)
    assert codes_of(speech).shape[1] == 3
    if speaking:
        speech = say(drama.engine, "Hello there.", max_frames=None)
        next(iter(speech))
    model, engine = weakref.ref(drama.model), weakref.ref(drama.engine)
    assert own_threads() > before
    del drama
    gc.collect()
    assert engine() is not None  # who holds a stream may still take its audio
    speech.cancel()
    del speech

    def gone() -> bool:
        gc.collect()
        return engine() is None and model() is None and own_threads() == before

    until(gone, "releasing it")


def test_an_engine_that_was_closed_while_a_stream_spoke_gives_its_memory_back() -> None:
    drama = new_drama()
    engine = Engine(drama.loaded, CONFIG)
    speech = say(engine, "Hello there.", max_frames=None)
    next(iter(speech))
    engine.close()
    held = weakref.ref(engine)
    del engine, speech

    def gone() -> bool:
        gc.collect()
        return held() is None

    until(gone, "releasing it")


def test_a_stream_outlives_the_drama_that_it_came_from() -> None:
    drama = Drama3(new_drama().loaded, CONFIG)
    expected = expected_codes(drama, "Hello there.", 0, 12)
    speech = say(drama.engine, "Hello there.", max_frames=12)
    del drama
    gc.collect()
    assert np.array_equal(codes_of(speech), expected)


AT_EXIT = """
import sys, rt_drama3
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.engine.config import EngineConfig

config = EngineConfig(step_mode="eager", context=512)
drama = rt_drama3.load(sys.argv[1], device="cpu", dtype="float32", engine=config)
text = "A sentence that is long enough for a piece of its own, as far as that goes. " * 40
speech = drama.engine.open(SpeechRequest(text))
for chunk in speech:
    if chunk.segment >= int(sys.argv[2]):
        break
if sys.argv[3] == "drop":
    del drama, speech, chunk
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["drop", "keep"])
def test_a_program_that_just_ends_ends_quietly(how: str) -> None:
    command = [sys.executable, "-c", AT_EXIT, str(small_directory()), "0", how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


# Forked.


@pytest.fixture
def in_child() -> Callable[[Callable[[], object]], str]:
    """Runs something in a forked child; returns what it raised."""

    def run(work: Callable[[], object]) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                work()
                message = "nothing was raised"
            except BaseException as error:  # noqa: BLE001 - the child must not continue as a test run
                message = f"{type(error).__name__}: {error}"
            os.write(writing, message.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            message = pipe.read().decode()
        os.waitpid(child, 0)
        return message

    return run


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_with_advice(in_child: Callable[..., str]) -> None:
    with Drama3(new_drama().loaded, CONFIG) as drama:
        speech = say(drama.engine, "Hello there.", max_frames=None)
        next(iter(speech))
        grown = drama.engine.open(SpeechRequest(final=False))
        for work in (
            lambda: drama.generate("Hello."),
            lambda: list(drama.stream("Hello.")),
            lambda: list(speech),
            lambda: speech.result(),
            lambda: grown.push_text("Hello."),
            lambda: drama.engine.streams(),
            lambda: drama.engine.wait_until_warm(),
        ):
            message = in_child(work)
            assert message.startswith(f"DeviceError: this engine belongs to process {os.getpid()}")
            assert "Load the checkpoint in the child" in message
            assert '"spawn"' in message
        assert in_child(drama.close) == "nothing was raised"
        grown.cancel()
        speech.cancel()
        assert drama.generate("Hello.", seed=0, max_frames=3).codes.shape[1] == 3


def test_a_drama_that_is_loaded_here_is_not_a_concern_of_the_check() -> None:
    with pytest.raises(DeviceError, match="belongs to process 1,"):
        check_process(1)
    check_process(os.getpid())


# Threads of torch.


@pytest.fixture
def three_threads() -> Iterator[None]:
    with compute_threads(3):
        yield


def counts(drama: rt_drama3.Drama3) -> set[int]:
    """The thread counts of all threads that compute for a drama."""
    seen: set[int] = set()
    models = (drama.model, "prefill"), (drama.codec, "decode_step"), (drama.codec, "encode")
    for owner, name in models:
        real = getattr(owner, name)

        def count(*args, real=real, **more):  # type: ignore[no-untyped-def]
            seen.add(torch.get_num_threads())
            return real(*args, **more)

        setattr(owner, name, count)
    clip = np.zeros(4096, dtype=np.float32)
    drama.generate("Hello.", references=[("Words.", (clip, 44_100))], max_frames=2)
    drama.encode(clip, 44_100)
    return seen


def test_the_rest_of_the_process_keeps_its_thread_count(three_threads: None) -> None:
    with rt_drama3.load(small_directory(), device="cpu", engine=CONFIG) as drama:
        assert counts(drama) == {1}
        assert torch.get_num_threads() == 3
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join(WAIT)
        assert later == [3]
    assert torch.get_num_threads() == 3


def test_a_drama_computes_with_the_threads_it_was_given(three_threads: None) -> None:
    with rt_drama3.load(small_directory(), device="cpu", engine=CONFIG, threads=2) as drama:
        assert counts(drama) == {1, 2}  # small decodes during the step take one
        assert torch.get_num_threads() == 3


def test_no_thread_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="threads is 0"):
        rt_drama3.load(small_directory(), device="cpu", threads=0)


# The device of a thread.


def test_a_thread_means_the_models_device_where_it_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a model on the second GPU, an event of the first would measure nothing."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    use_device(torch.device("cpu"))
    use_device(torch.device("cuda:1"))
    assert chosen == [torch.device("cuda:1")]


def test_the_device_thread_uses_the_models_device(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[str, torch.device]] = []

    def use(device: torch.device) -> None:
        used.append((threading.current_thread().name, device))

    monkeypatch.setattr(engine_thread, "use_device", use)
    drama = new_drama()
    with Engine(drama.loaded, CONFIG) as engine:
        assert engine.wait_until_warm(WAIT)
        assert used == [("rt-drama3-engine", drama.model.device)]
