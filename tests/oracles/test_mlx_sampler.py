"""The candidates that each draw keeps, against mlx-audio's sampler: top-p, top-k and their corners.

Our side is what ``draw_main`` and ``draw_head`` really do: the counts are read off ``kept_prefix``
while they draw.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from rt_drama3.config import SamplingConfig
from rt_drama3.model import sampling
from rt_drama3.model.sampling import SlotSampling, draw_head, draw_main

pytest.importorskip("mlx.core", reason="mlx has no build for this machine")
pytest.importorskip("mlx_audio", reason="mlx-audio is not installed")
from tests.oracles.mlx_drama3 import kept_logits

DRAWS = ("main", "redraw", "head")


def random_logits(size: int, spread: float, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


def from_probabilities(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).log().float()


def our_kept(draw: str, logits: Tensor, config: SamplingConfig) -> int:
    """How many candidates our draw keeps."""
    slots = SlotSampling.allocate(1, 1, 2, "cpu")
    slots.configure(0, config, 0, candidates=len(logits))
    counts: list[int] = []
    plain = sampling.kept_prefix

    def record(*args: Any) -> tuple[Tensor, Tensor]:
        count, total = plain(*args)
        counts.append(int(count))
        return count, total

    with mock.patch.object(sampling, "kept_prefix", record):
        if draw == "head":
            draw_head(logits[None], slots, torch.zeros(1))
            assert len(counts) == 1
        else:
            draw_main(logits[None], slots, torch.zeros(1, 3), torch.full((1, 16), -1), 0)
            assert len(counts) == 2
    return counts[1] if draw == "redraw" else counts[0]


def oracle_kept(draw: str, logits: Tensor, config: SamplingConfig) -> Tensor:
    """Scaled logits of the candidates that mlx-audio keeps, with its own settings."""
    if draw == "main":
        return kept_logits(logits, config.temperature, config.top_k, config.top_p, True)
    if draw == "redraw":
        return kept_logits(logits, config.ras_temperature, config.ras_top_k, config.ras_top_p, True)
    top_k = min(config.top_k or config.head_top_k, config.head_top_k)
    return kept_logits(logits, config.head_temperature, top_k, config.top_p, False)


def check(draw: str, logits: Tensor, config: SamplingConfig) -> int:
    """Both keep the same candidates; returns how many."""
    kept = oracle_kept(draw, logits, config)
    count = our_kept(draw, logits, config)
    assert count == len(kept)
    temperature = {
        "main": config.temperature,
        "redraw": config.ras_temperature,
        "head": config.head_temperature,
    }[draw]
    ours = logits.sort(descending=True).values[:count] / max(temperature, 1e-5)
    torch.testing.assert_close(kept, ours - ours[0], rtol=1e-5, atol=1e-4)
    return count


def settings(
    temperature: float = 1.0, top_p: float = 0.9, top_k: int | None = None
) -> SamplingConfig:
    return SamplingConfig(temperature, temperature, top_p, top_k)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.7, 0.9, 0.999])
@pytest.mark.parametrize("top_k", [None, 1, 2, 29, 30, 31, 5000])
def test_same_candidates_are_kept(draw: str, top_p: float, top_k: int | None) -> None:
    for seed, (size, spread, temperature) in enumerate(
        ((4097, 1.0, 1.0), (4097, 6.0, 0.7), (513, 3.0, 0.3), (9, 1.0, 2.0), (31, 0.01, 1.0))
    ):
        check(draw, random_logits(size, spread, seed), settings(temperature, top_p, top_k))


CROSSING = from_probabilities(0.5, 0.3, 0.15, 0.04, 0.01)


@pytest.mark.parametrize(
    ("top_p", "main", "head"),
    [(0.45, 1, 1), (0.55, 2, 1), (0.81, 3, 2), (0.94, 3, 2), (0.96, 4, 3), (0.995, 5, 4)],
)
def test_crossing_token_stays_on_main_and_is_dropped_on_heads(
    top_p: float, main: int, head: int
) -> None:
    assert check("main", CROSSING, settings(top_p=top_p)) == main
    assert check("head", CROSSING, settings(top_p=top_p)) == head


def test_rank_0_stays_even_when_it_alone_crosses() -> None:
    peaked = from_probabilities(0.02, 0.96, 0.02)
    for draw in ("main", "head"):
        assert check(draw, peaked, settings(top_p=0.5)) == 1
        assert check(draw, peaked, settings(top_p=1e-9)) == 1


@pytest.mark.parametrize("draw", DRAWS)
def test_ties(draw: str) -> None:
    """Equal logits at the cut: as many stay, whichever they are."""
    for top_p in (0.3, 0.6, 0.9, 0.99):
        for top_k in (None, 3):
            check(draw, torch.zeros(8), settings(top_p=top_p, top_k=top_k))
            tied = torch.tensor([2.0, 1.0, 1.0, 1.0, 1.0, 0.0, -1.0])
            check(draw, tied, settings(top_p=top_p, top_k=top_k))


@pytest.mark.parametrize("draw", DRAWS)
def test_top_p_1_keeps_everyone(draw: str) -> None:
    """Also where mlx-audio loses a tail because its float32 sum rounds above 1."""
    same = 0
    for size in (5, 29, 400):
        most = size if draw == "main" else min(size, 30)
        config = SamplingConfig(top_p=1.0, ras_top_p=1.0)
        logits = random_logits(size, 2.0, size)
        assert our_kept(draw, logits, config) == most
        theirs = len(oracle_kept(draw, logits, config))
        assert theirs <= most
        same += theirs == most
    assert same


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 0.01, 5.0])
def test_temperatures(temperature: float) -> None:
    """Huge offsets between scaled logits, and nearly flat distributions."""
    for draw in ("main", "head"):
        for offset in (0.0, 80.0, -80.0):
            check(draw, random_logits(600, 2.0, 5) + offset, settings(temperature))
