"""CompiledForms: when compiled packages are taken over, and what happens if they do not load.

The packages themselves are stand-ins here; ``test_packages`` builds real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rt_drama3.engine import compiled as module
from rt_drama3.engine.compiled import CompiledForms
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.step_runner import make_step
from rt_drama3.errors import ConfigError
from tests.small import running, say, shared_drama, until


class Builder:
    """What is built so far, as the test says."""

    built: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # steps, codecs
    cause: str | None = None
    obstacle: str | None = None
    waited_for: str | None = None

    def __init__(self, model: Any, codec: Any, batches: Sequence[int], groups: Sequence[int]):
        self.wanted = (tuple(batches), tuple(groups))
        self.started = 0

    def steps(self) -> tuple[int, ...]:
        return self.built[0]

    def codecs(self) -> tuple[int, ...]:
        return self.built[1]

    def ready(self) -> bool:
        return self.built == self.wanted

    def failure(self) -> str | None:
        return self.cause

    def start(self) -> None:
        self.started += 1

    def wait(self) -> None:
        if self.waited_for:
            raise ConfigError(self.waited_for)


class Package:
    """A compiled step or codec that loads, and does what the eager one does."""

    def __init__(self, whole: Any, sizes: Sequence[int]) -> None:
        self.whole, self.loaded = whole, list(sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.loaded))

    def add(self, size: int) -> None:
        self.loaded.append(size)

    def __call__(self, streams: int, length: int) -> None:
        self.whole.use(None)
        self.whole.run(streams, length)
        self.whole.use(self)

    def decode_step(self, codes: torch.Tensor, state: Any) -> Any:
        return self.whole.decode_step(codes, state)


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("built", "cause", "obstacle", "waited_for"):
        monkeypatch.setattr(Builder, name, getattr(Builder, name))
    monkeypatch.setattr(module, "PackageBuilder", Builder)
    monkeypatch.setattr(module, "CompiledStep", Package)
    monkeypatch.setattr(module, "CompiledCodec", Package)


def forms(mode: str = "auto", **settings: Any) -> CompiledForms:
    drama = shared_drama()
    config = EngineConfig(step_mode=mode, context=256, **settings)
    return CompiledForms(make_step(drama.model, config), drama.codec, config)


ALL = ((1, 2, 4), (1, 2, 4))


def test_packages_that_are_there_are_used_immediately() -> None:
    Builder.built = ALL
    ready = forms()
    assert ready.mode == "compile"
    assert not ready.update(idle=True)  # nothing more to come


def test_eager_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PackageBuilder", lambda *_: pytest.fail("asked"))
    assert forms("eager").mode == "eager"


def test_what_gets_ready_is_taken_over_between_takes_only() -> None:
    waiting = forms()
    assert waiting.mode == "eager"
    assert waiting.builder is not None
    assert waiting.builder.started == 1
    Builder.built = ALL
    assert not waiting.update(idle=False)
    assert waiting.mode == "eager"
    assert waiting.update(idle=True)
    assert waiting.mode == "compile"


def test_larger_sizes_join_while_takes_run() -> None:
    Builder.built = ((1,), (1,))
    growing = forms()
    assert growing.mode == "compile"
    for steps, codecs in (((1, 2), (1,)), ((1, 2), (1, 2)), ALL):
        Builder.built = (steps, codecs)
        assert not growing.update(idle=False)
        assert growing.step_form is not None
        assert growing.codec is not None
        assert (growing.step_form.sizes, growing.codec.sizes) == Builder.built
    assert growing.builder is None


def test_an_engine_changes_its_step_only_when_no_take_is_under_way() -> None:
    from rt_drama3.engine.speech import SpeechRequest

    drama = shared_drama()
    with running(drama, step_mode="auto") as engine:
        looked: list[bool] = []
        look = engine.core.forms.update

        def noted(idle: bool) -> bool:
            looked.append(idle)
            return look(idle)

        talker = engine.open(SpeechRequest(final=False, seed=1))
        talker.push_text("Hello. ")
        chunks = iter(talker)
        next(chunks)
        Builder.built = ALL
        engine.core.forms.update = noted  # type: ignore[method-assign]
        until(lambda: len(looked) >= 2)
        assert not any(looked)
        assert engine.step_mode == "eager"
        talker.cancel()
        until(lambda: engine.step_mode == "compile")
        assert say(engine, "Hello.", max_frames=5).result(30).codes.shape[1] == 5
        assert set(engine.core.costs.step) >= {1, 4}  # all measured again


def test_a_failed_build_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    waiting = forms()
    Builder.cause = "g++ has no room"
    assert not waiting.update(idle=True)
    assert not waiting.update(idle=True)
    assert waiting.mode == "eager"
    assert caplog.text.count("g++ has no room") == 1


def test_a_package_that_does_not_load_is_logged_and_done_without(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("file not found in archive")

    monkeypatch.setattr(module, "CompiledStep", broken)
    Builder.built = ALL
    assert forms("auto").mode == "eager"
    assert "a package does not load: file not found in archive" in caplog.text
    with pytest.raises(ConfigError, match="does not load; use step mode eager"):
        forms("compile")


def test_compile_waits_and_says_why_it_cannot() -> None:
    Builder.waited_for = "there is no C++ compiler; use step mode eager."
    with pytest.raises(ConfigError, match="no C"):
        forms("compile")


def test_an_obstacle_is_not_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    Builder.obstacle = "there is no C++ compiler"
    with caplog.at_level("INFO"):
        stays = forms("auto")
    assert stays.mode == "eager"
    assert stays.builder is None
    assert "continuing in eager mode: there is no C++ compiler" in caplog.text


def test_cudagraph_needs_a_device() -> None:
    with pytest.raises(ConfigError, match="cudagraph, but the model is on a CPU; use auto"):
        forms("cudagraph")
