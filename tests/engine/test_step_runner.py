"""StepRunner: warm-up, and what it learns about the cost of steps and prefill chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.scheduling import Costs, Estimate
from rt_drama3.engine.step_runner import StepRunner, make_step
from tests.small import running, shared_drama


def make_runner(costs: Costs, **settings: Any) -> StepRunner:
    config = EngineConfig(step_mode="eager", **settings)
    return StepRunner(make_step(shared_drama().model, config), config, costs)


def test_warming_up_leaves_every_slot_clean_and_knows_every_cost() -> None:
    costs = Costs()
    runner = make_runner(costs, context=128, max_streams=3, prefill_block=200)
    runner.warm_up()
    for tensor in runner.step.state.tensors():
        assert not tensor.any() or bool((tensor == -1).all())
    assert not any(runner.step.is_active(slot) for slot in range(3))
    assert costs.step_seconds(1) > 0
    assert costs.step_seconds(3) > costs.step_seconds(1)
    assert costs.chunk.or_else(0) > 0


def test_an_engine_knows_the_cost_of_decoding_before_the_first_request() -> None:
    with running(shared_drama()) as engine:
        assert set(engine.core.costs.decode) == {1, 2, 4}


def test_a_short_chunk_does_not_make_a_whole_one_look_cheap() -> None:
    costs = Costs()
    runner = make_runner(costs, prefill_block=64)
    rows = torch.zeros(64, 1 + shared_drama().config.num_codebooks, dtype=torch.int64)
    costs.chunk.seconds = known = 1000.0
    for _ in range(20):
        runner.prefill(runner.begin(0, None), rows[:3], 0)
    assert costs.chunk.seconds == known
    runner.prefill(0, rows, runner.begin(0, None))
    assert costs.chunk.seconds < known


def test_a_frame_that_waited_for_a_chunk_does_not_make_steps_look_expensive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On CUDA results come one frame late: the chunk is read between a frame and its result."""
    costs, now = Costs(), [100.0]
    config = EngineConfig(step_mode="eager")
    step: Any = make_step(shared_drama().model, config)

    def takes(seconds: float) -> Any:
        def work(*_: object) -> None:
            now[0] += seconds

        return work

    class Model:
        config, device = shared_drama().config, torch.device("cuda")
        prefill = staticmethod(takes(1.0))

    class Done:
        def synchronize(self) -> None:
            """Everything was done while time passed."""

        record = synchronize

    step.model, step.run = Model(), takes(0.01)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **more: empty(*a, **more))
    monkeypatch.setattr(torch, "Event", lambda *_: Done())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Done())
    runner = StepRunner(step, config, costs, lambda: now[0])
    stream: Any = object()
    costs.step[1] = Estimate(0.01)
    rows = torch.zeros(4, 1 + shared_drama().config.num_codebooks, dtype=torch.int64)
    assert runner.frame([(stream, 0, 0, 1)]) == []
    runner.prefill(1, rows, 0)
    (first,) = runner.frame([(stream, 0, 0, 2)])  # the chunk came in between
    (second,) = runner.frame([(stream, 0, 0, 3)])
    assert costs.step[1].seconds == pytest.approx(0.01)
    assert costs.chunk.seconds == pytest.approx(1.0)
    assert [first.seconds, second.seconds] == pytest.approx([0.01, 0.01])
