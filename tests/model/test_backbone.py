"""The backbone against transformers' Qwen3.5-MoE: one shot, in blocks, and row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rt_drama3.config import BackboneConfig, ModelConfig, TowerConfig
from rt_drama3.model.ops import rope_table
from rt_drama3.model.state import StreamState

pytest.importorskip("transformers")
from tests.oracles.hf_backbone import Pair, random_pair

PLAIN = BackboneConfig(
    hidden_size=64,
    layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention"),
    heads=4,
    kv_heads=2,
    head_dim=32,
    rotary_dim=8,
    rope_base=1e7,
    experts=(8, 8, 8, 8),
    experts_per_token=2,
    expert_ffn=32,
    shared_expert_ffn=48,
    linear_key_heads=2,
    linear_value_heads=4,
    linear_key_dim=16,
    linear_value_dim=16,
    conv_kernel=4,
    norm_eps=1e-6,
    vocab_size=97,
    max_positions=None,
)
CONFIGS = {
    "plain": PLAIN,
    "odd sizes": replace(
        PLAIN,
        hidden_size=72,
        heads=6,
        kv_heads=3,
        head_dim=24,
        rotary_dim=12,
        linear_key_heads=3,
        linear_value_heads=3,
        linear_key_dim=20,
        linear_value_dim=12,
        conv_kernel=3,
        expert_ffn=28,
    ),
    "few experts, full attention first": replace(
        PLAIN,
        layer_types=("full_attention", "linear_attention", "full_attention"),
        experts=(4, 4, 4),
        kv_heads=1,
        linear_value_heads=8,
        norm_eps=1e-5,
        rope_base=1e4,
    ),
    "one expert each": replace(PLAIN, experts=(12,) * 4, experts_per_token=1, rotary_dim=32),
}
ROWS = 150  # more than two delta-rule chunks


def _state(config: BackboneConfig, slots: int) -> StreamState:
    tower = TowerConfig(
        dim=config.hidden_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        rotary_dim=config.rotary_dim,
        rope_base=config.rope_base,
        shared_layers=1,
        num_codebooks=2,
        codebook_size=8,
        ffn=8,
        norm_eps=1e-6,
        backbone_codebooks=0,
    )
    model = ModelConfig(config, tower, 0, 7, 8, "float32", fp8_experts=False)
    state = StreamState.allocate(model, slots, ROWS + 10)
    state.active.fill_(True)
    return state


def _rope(config: BackboneConfig) -> Tensor:
    return rope_table(ROWS + 10, config.rotary_dim, config.rope_base, torch.device("cpu"))


def _blocks(pair: Pair, x: Tensor, state: StreamState, slot: int, sizes: list[int]) -> Tensor:
    rope, outputs, start = _rope(pair.config), [], 0
    for size in sizes:
        part = slice(start, start + size)
        outputs.append(pair.ours.block(x[part], rope[:, part], state, slot, start))
        start += size
    return torch.cat(outputs)


def _assert_close(actual: Tensor, expected: Tensor) -> None:
    error = (actual - expected).norm() / expected.norm()
    assert error < 1e-4, f"relative error {error:.2e}"
    worst = (actual - expected).abs().max() / expected.abs().max()
    assert worst < 1e-4, f"worst relative to the largest value {worst:.2e}"


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest) -> tuple[Pair, Tensor, Tensor, Tensor]:
    pair = random_pair(CONFIGS[request.param], seed=7)
    tokens = torch.randint(pair.config.vocab_size, (ROWS,))
    with torch.inference_mode():
        out = pair.oracle.model(tokens[None])
        hidden = out.last_hidden_state[0]
        return pair, pair.oracle.model.embed_tokens(tokens), hidden, pair.oracle.lm_head(hidden)


@pytest.mark.parametrize("sizes", [[ROWS], [1, 2, 64, 3, ROWS - 70], [64, 64, ROWS - 128]], ids=str)
@torch.inference_mode()
def test_blocks_equal_transformers(
    case: tuple[Pair, Tensor, Tensor, Tensor], sizes: list[int]
) -> None:
    pair, x, hidden, logits = case
    ours = _blocks(pair, x, _state(pair.config, 2), 1, sizes)
    _assert_close(ours, hidden)
    _assert_close(ours @ pair.oracle.lm_head.weight.t(), logits)


@torch.inference_mode()
def test_steps_equal_transformers(case: tuple[Pair, Tensor, Tensor, Tensor]) -> None:
    """Two streams at different positions step together and each equals its own history."""
    pair, x, hidden, _ = case
    state, rope, head_start = _state(pair.config, 2), _rope(pair.config), 37
    _blocks(pair, x, state, 1, [head_start])
    position = torch.tensor([0, head_start])
    column = torch.arange(ROWS + 10)
    for i in range(ROWS - head_start):
        mask = (column <= position[:, None])[:, None, None]
        rows = x[[i, i + head_start]]
        out = pair.ours.step(rows, rope[:, position], state, position, mask)
        _assert_close(out, hidden[[i, i + head_start]])
        position += 1


@torch.inference_mode()
def test_reading_fewer_cached_rows_changes_nothing(
    case: tuple[Pair, Tensor, Tensor, Tensor],
) -> None:
    """A step that reads a shorter part of the cache, as length buckets do, gives the same row."""
    pair, x, hidden, _ = case
    for length in (41, 64, ROWS + 10):
        state, rope = _state(pair.config, 1), _rope(pair.config)
        _blocks(pair, x, state, 0, [40])
        position = torch.tensor([40])
        mask = (torch.arange(length) <= 40)[None, None, None]
        out = pair.ours.step(x[40:41], rope[:, position], state, position, mask)
        _assert_close(out, hidden[40:41])
