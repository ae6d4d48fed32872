"""FrameMaker: when it takes compiled packages over, and what happens when they are no good.

The packages themselves are stand-ins here; ``test_packages`` builds real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rt_drama3.engine import step_runner as module
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.scheduling import Costs, Estimate
from rt_drama3.engine.step_runner import FrameMaker
from rt_drama3.errors import ConfigError
from tests.small import running, say, shared_drama, until


class Builder:
    """What is built so far, as the test says."""

    built: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # steps, codecs
    died_of: str | None = None
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
        return self.died_of

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
        self.whole._eager(streams, length)

    def decode_step(self, codes: torch.Tensor, state: Any) -> Any:
        return self.whole.decode_step(codes, state)


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("built", "died_of", "obstacle", "waited_for"):
        monkeypatch.setattr(Builder, name, getattr(Builder, name))
    monkeypatch.setattr(module, "PackageBuilder", Builder)
    monkeypatch.setattr(module, "CompiledStep", Package)
    monkeypatch.setattr(module, "CompiledCodec", Package)


def maker(mode: str = "auto", **settings: Any) -> FrameMaker:
    drama = shared_drama()
    config = EngineConfig(step_mode=mode, context=256, **settings)
    return FrameMaker(drama.model, drama.codec, config, Costs())


ALL = ((1, 2, 4), (1, 2, 4))


def test_packages_that_are_there_are_used_at_once() -> None:
    Builder.built = ALL
    ready = maker()
    assert ready.mode == "compile"
    assert not ready.look_for_faster_step(idle=True)  # nothing more to come


def test_eager_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PackageBuilder", lambda *_: pytest.fail("asked"))
    assert maker("eager").mode == "eager"


def test_what_gets_ready_is_taken_over_between_takes_only() -> None:
    waiting = maker()
    assert waiting.mode == "eager"
    assert waiting._builder is not None
    assert waiting._builder.started == 1
    Builder.built = ALL
    assert not waiting.look_for_faster_step(idle=False)
    assert waiting.mode == "eager"
    assert waiting.look_for_faster_step(idle=True)
    assert waiting.mode == "compile"


def test_larger_sizes_join_while_takes_run() -> None:
    Builder.built = ((1,), (1,))
    growing = maker()
    assert growing.mode == "compile"
    for steps, codecs in (((1, 2), (1,)), ((1, 2), (1, 2)), ALL):
        Builder.built = (steps, codecs)
        assert not growing.look_for_faster_step(idle=False)
        assert growing._compiled is not None
        assert growing._compiled_codec is not None
        assert (growing._compiled.sizes, growing._compiled_codec.sizes) == Builder.built
    assert growing._builder is None


def test_an_engine_changes_its_step_only_when_no_take_is_under_way() -> None:
    from rt_drama3.engine.speech import SpeechRequest

    drama = shared_drama()
    with running(drama, step_mode="auto") as engine:
        looked: list[bool] = []
        look = engine._loop.maker.look_for_faster_step

        def noted(idle: bool) -> bool:
            looked.append(idle)
            return look(idle)

        talker = engine.open(SpeechRequest(final=False, seed=1))
        talker.push_text("Hello. ")
        chunks = iter(talker)
        next(chunks)
        Builder.built = ALL
        engine._loop.maker.look_for_faster_step = noted  # type: ignore[method-assign]
        until(lambda: len(looked) >= 2)
        assert not any(looked)
        assert engine.step_mode == "eager"
        talker.cancel()
        until(lambda: engine.step_mode == "compile")
        assert say(engine, "Hello.", max_frames=5).result(30).codes.shape[1] == 5
        assert set(engine.costs.step) >= {1, 4}  # all measured again


def test_a_failed_build_is_told_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    waiting = maker()
    Builder.died_of = "g++ has no room"
    assert not waiting.look_for_faster_step(idle=True)
    assert not waiting.look_for_faster_step(idle=True)
    assert waiting.mode == "eager"
    assert caplog.text.count("g++ has no room") == 1


def test_a_package_that_does_not_load_is_told_and_done_without(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("file not found in archive")

    monkeypatch.setattr(module, "CompiledStep", broken)
    Builder.built = ALL
    assert maker("auto").mode == "eager"
    assert "a package does not load: file not found in archive" in caplog.text
    with pytest.raises(ConfigError, match="does not load; use step mode eager"):
        maker("compile")


def test_compile_waits_and_tells_why_it_cannot() -> None:
    Builder.waited_for = "there is no C++ compiler; use step mode eager."
    with pytest.raises(ConfigError, match="no C"):
        maker("compile")


def test_an_obstacle_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    Builder.obstacle = "there is no C++ compiler"
    with caplog.at_level("INFO"):
        stays = maker("auto")
    assert stays.mode == "eager"
    assert stays._builder is None
    assert "stays eager: there is no C++ compiler" in caplog.text


def test_cudagraph_needs_a_device() -> None:
    with pytest.raises(ConfigError, match="cudagraph, but the model is on a CPU; use auto"):
        maker("cudagraph")


def test_warming_up_leaves_every_slot_clean_and_knows_every_cost() -> None:
    drama, costs = shared_drama(), Costs()
    config = EngineConfig(step_mode="eager", context=128, max_streams=3, prefill_block=200)
    made = FrameMaker(drama.model, drama.codec, config, costs)
    made.warm_up()
    for tensor in made._step.state.tensors():
        assert not tensor.any() or bool((tensor == -1).all())
    assert not any(made._step.is_active(slot) for slot in range(3))
    assert costs.step_seconds(1) > 0
    assert costs.step_seconds(3) > costs.step_seconds(1)
    assert costs.block.or_else(0) > 0
    assert set(costs.decode) == {1, 2, 4}


def test_a_short_block_does_not_make_a_whole_one_look_cheap() -> None:
    drama, costs = shared_drama(), Costs()
    config = EngineConfig(step_mode="eager", prefill_block=64)
    made = FrameMaker(drama.model, drama.codec, config, costs)
    rows = torch.zeros(64, 1 + drama.config.num_codebooks, dtype=torch.int64)
    costs.block.seconds = known = 1000.0
    for _ in range(20):
        made.read_block(made.begin(0, None), rows[:3], 0)
    assert costs.block.seconds == known
    made.read_block(0, rows, made.begin(0, None))
    assert costs.block.seconds < known


def test_a_frame_that_waited_for_a_prompt_block_does_not_make_steps_look_dear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Results come one frame late, as on CUDA: the block is read between a frame and its result."""
    drama, costs = shared_drama(), Costs()
    made = FrameMaker(drama.model, drama.codec, EngineConfig(step_mode="eager"), costs)
    now = [100.0]
    stream: Any = object()

    def passes(seconds: float) -> Any:
        def work(*_: object) -> None:
            now[0] += seconds

        return work

    class Clock:
        monotonic = staticmethod(lambda: now[0])

        def synchronize(self) -> None:
            """Everything was done while time passed."""

    monkeypatch.setattr(module, "time", Clock)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Clock())
    made._cuda = True
    costs.step[1] = Estimate(0.01)
    made._step.run = passes(0.01)  # type: ignore[method-assign]
    monkeypatch.setattr(drama.model, "prefill", passes(1.0))
    rows = torch.zeros(4, 1 + drama.config.num_codebooks, dtype=torch.int64)
    assert made.frame([(stream, 0, 0, 1)]) == []
    made.read_block(1, rows, 0)
    (first,) = made.frame([(stream, 0, 0, 2)])  # the block came in between
    (second,) = made.frame([(stream, 0, 0, 3)])
    assert costs.step[1].seconds == pytest.approx(0.01)
    assert costs.block.seconds == pytest.approx(1.0)
    assert [first.seconds, second.seconds] == pytest.approx([0.01, 0.01])
