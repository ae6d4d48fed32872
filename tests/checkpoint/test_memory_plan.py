"""The budget against counting on a real, tiny model: what is there, and what a frame touches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.memory import MemoryPlan, plan
from rt_drama3.checkpoint.tiny_config import tiny_config
from rt_drama3.config import ModelConfig
from rt_drama3.errors import ConfigError
from rt_drama3.graph_step import FrameStep
from rt_drama3.model import SpeechModel
from rt_drama3_bench.local.random_model import random_model
from rt_drama3_bench.local.sizes import official as official_config

CONTEXT, FRAMES = 64, 16


def config_of(settings: dict[str, Any] | None = None) -> ModelConfig:
    return parse_model_config(tiny_config(settings or {}, 200)[0])


CONFIGS = {
    "default": config_of(),
    "odd": config_of(
        {
            "text_config.num_hidden_layers": 5,
            "text_config.num_experts": [7, 8, 9, 10, 11],
            "text_config.num_experts_per_tok": 3,
            "text_config.num_key_value_heads": 1,
            "text_config.linear_conv_kernel_dim": 3,
            "text_config.moe_intermediate_size": 256,
            "audio_decoder_config.num_codebooks": 3,
            "audio_decoder_config.shared_enrichment_layers": 1,
        }
    ),
}


class WeightReads(TorchDispatchMode):
    """Adds up the bytes of weights that operations read; of a look-up, only the rows taken."""

    def __init__(self, model: SpeechModel) -> None:
        super().__init__()
        self.total = 0
        self._weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for argument in args:
            if not isinstance(argument, Tensor):
                continue
            place = argument.untyped_storage().data_ptr()
            if place not in self._weights:
                continue
            if isinstance(result, Tensor) and result.untyped_storage().data_ptr() == place:
                continue  # a view
            read = result if func is torch.ops.aten.index.Tensor else argument
            self.total += read.numel() * read.element_size()
        return result


def step_of(model: SpeechModel) -> FrameStep:
    step = FrameStep(model, 1, CONTEXT, FRAMES)
    rows = torch.zeros(9, 1 + model.config.num_codebooks, dtype=torch.int64)
    model.prefill(rows, step.state, 0)
    return step


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_that_are_there(name: str, dtype: str, fp8: bool) -> None:
    config = CONFIGS[name]
    budget = plan(config, dtype=dtype, fp8=fp8, context=CONTEXT, max_frames=FRAMES, streams=3)
    model = SpeechModel(config, "meta", getattr(torch, dtype), fp8)
    assert budget.weights == sum(p.numel() * p.element_size() for p in model.parameters())
    model = SpeechModel(config, "cpu", getattr(torch, dtype), fp8)
    step = FrameStep(model, 3, CONTEXT, FRAMES)
    held = step.state.nbytes() + sum(t.nbytes for t in step.sampling.tensors())
    assert 3 * budget.stream == held
    assert budget.resident == budget.weights + held


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_that_a_frame_reads(name: str, fp8: bool) -> None:
    config = CONFIGS[name]
    model = random_model(config, "cpu", torch.float32, fp8)
    step = step_of(model)
    budget = plan(config, dtype="float32", fp8=fp8, context=CONTEXT, position=9)
    step.state.active.fill_(True)
    with WeightReads(model) as reads:
        step.run(1, CONTEXT)
        assert reads.total == 0  # nothing is active for the step yet
        step.activate(0, True)
        step.run(1, CONTEXT)
    assert budget.dense + budget.experts == reads.total
    full = config.backbone.layer_types.count("full_attention")
    keys, tower_keys = step.state.keys, step.state.tower_keys
    assert len(keys) == full
    seen = sum(2 * t[:, :, :10].nbytes for t in keys) + sum(
        2 * t[:, :, :9].nbytes for t in tower_keys
    )
    assert budget.cached == seen
    recurrent = sum(t.nbytes for t in (*step.state.matrices, *step.state.tails))
    assert budget.recurrent == 2 * recurrent


def test_all_experts_of_a_small_model_are_read() -> None:
    config = config_of({"text_config.num_experts": 4})
    model = random_model(config, "cpu", torch.float32, fp8=False)
    step = step_of(model)
    step.activate(0, True)
    with WeightReads(model) as reads:
        step.run(1, CONTEXT)
    budget = plan(config, dtype="float32", context=CONTEXT, all_experts=True)
    assert budget.dense + budget.experts == reads.total


def official(streams: int) -> MemoryPlan:
    return plan(official_config(), fp8=True, context=4096, streams=streams, position=1024)


def test_the_official_model() -> None:
    budget = official(1)
    # 36.9 GiB of files; here with 4097 head rows and without the folded embedding halves.
    assert 35.5e9 < budget.weights < 39.6e9
    assert budget.experts == 40 * 8 * (3 * 512 * 2048 + 3 * 4 * 16 * 4)
    assert 5.5e9 < budget.frame < 6.5e9
    assert 1.2 < budget.floor_ms(4.3e12) < 1.5


def test_streams_share_weights_and_bring_their_own_state() -> None:
    one, eight = official(1), official(8)
    assert eight.cached == 8 * one.cached
    assert eight.recurrent == 8 * one.recurrent
    assert one.dense < eight.dense < 1.001 * one.dense
    assert 7 * one.experts < eight.experts < 8 * one.experts  # few are chosen twice
    many = plan(official_config(), fp8=True, streams=100_000)
    assert many.experts == pytest.approx(32 * one.experts)


def test_unknown_dtype() -> None:
    with pytest.raises(ConfigError, match="dtype is 'int3'"):
        plan(config_of(), dtype="int3")
