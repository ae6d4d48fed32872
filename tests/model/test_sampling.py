"""Draws: noise by coordinates, which candidates stay, the redraw of repetitions, guidance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rt_drama3.config import SamplingConfig
from rt_drama3.model.ops import linear
from rt_drama3.model.sampling import (
    FIRST_HEAD_DRAW,
    HEAD_CANDIDATES,
    MAIN_DRAW,
    RAS_DRAW,
    SlotSampling,
    draw_head,
    draw_main,
    draws_per_frame,
    kept_prefix,
    pick,
    uniform_noise,
)
from rt_drama3.model.state import RAS_WINDOW
from tests.small import GREEDY, SAMPLED, Slots, prompt_rows, shared_drama

START = 1000  # token id of semantic code 0
NO_RECENT = torch.full((1, RAS_WINDOW), -1)


# Noise.


@settings(deadline=None)
@given(seed=st.integers(-(2**70), 2**70), offset=st.integers(0, 5000), draws=st.integers(1, 12))
def test_noise_depends_on_its_coordinates_alone(seed: int, offset: int, draws: int) -> None:
    whole = uniform_noise(seed, 8, 12, offset)
    assert whole.dtype == np.float32
    assert np.array_equal(whole[:5, :draws], uniform_noise(seed, 5, draws, offset))
    assert np.array_equal(whole[3:], uniform_noise(seed, 5, 12, offset + 3))


def test_noise_continues_where_the_last_segment_ended() -> None:
    whole = uniform_noise(7, 100, 11)
    parts = [uniform_noise(7, n, 11, first) for first, n in ((0, 1), (1, 49), (50, 50))]
    assert np.array_equal(np.concatenate(parts), whole)


def test_noise_is_uniform_and_its_coordinates_do_not_show() -> None:
    noise = uniform_noise(0, 4000, 11).astype(np.float64)
    assert noise.max() < 1.0
    counts = np.histogram(noise, 20, (0, 1))[0]
    expected = noise.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi^2, 19 degrees: p < 0.001
    centred = noise - 0.5
    for neighbour in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1]):
        assert abs(neighbour.mean()) < 5 * (1 / 12) / np.sqrt(neighbour.size)
    columns = centred.mean(0)
    assert np.abs(columns).max() < 5 * np.sqrt(1 / 12 / 4000)


def test_seeds_give_unrelated_noise() -> None:
    tables = [uniform_noise(seed, 50, 11) for seed in (0, 1, -1, 2**32, 2**63)]
    for i, one in enumerate(tables):
        for other in tables[i + 1 :]:
            assert (one == other).mean() < 0.01
    assert np.array_equal(uniform_noise(-1, 5, 3), uniform_noise(2**64 - 1, 5, 3))


def test_neighbouring_seeds_and_frames_are_not_shifted_copies() -> None:
    """Adding seed and frame number up would make frame 1 of seed 0 frame 0 of seed 1."""
    assert not np.array_equal(uniform_noise(0, 5, 3, 1), uniform_noise(1, 5, 3, 0))


# Which candidates stay.


def kept(values: list[float], top_p: float, top_k: int, crossing: bool) -> int:
    count, total = kept_prefix(
        torch.tensor([values]), torch.tensor([[top_p]]), torch.tensor([[top_k]]), crossing
    )
    assert total.tolist()[0] == pytest.approx(np.cumsum(values).tolist(), abs=1e-6)
    return int(count)


FOUR = [0.5, 0.25, 0.15, 0.1]


@pytest.mark.parametrize(
    ("top_p", "top_k", "crossing", "count"),
    [
        (0.6, 4, True, 2),  # the second crosses: kept
        (0.6, 4, False, 1),  # or dropped
        (0.5, 4, True, 2),  # exactly reached is not crossed
        (0.5, 4, False, 1),
        (0.75, 4, True, 3),
        (0.75, 4, False, 2),
        (0.01, 4, True, 1),
        (0.01, 4, False, 1),  # the most probable always stays
        (float("inf"), 4, True, 4),
        (float("inf"), 4, False, 4),
        (0.9, 2, True, 2),  # top_k binds
        (float("inf"), 1, True, 1),
    ],
)
def test_kept_prefix(top_p: float, top_k: int, crossing: bool, count: int) -> None:
    assert kept(FOUR, top_p, top_k, crossing) == count


def test_a_sum_that_rounds_above_one_drops_no_candidate() -> None:
    sampling = configured(SamplingConfig(top_p=1.0))
    assert torch.isinf(sampling.top_p).all()
    assert kept([0.4, 0.4, 0.2000001], float("inf"), 3, False) == 3


@settings(deadline=None)
@given(
    st.lists(st.floats(0.001, 1), min_size=1, max_size=30),
    st.floats(0.01, 1),
    st.integers(1, 30),
    st.floats(0, 0.9999),
)
def test_a_pick_is_the_inverse_of_the_cumulative_distribution(
    weights: list[float], top_p: float, top_k: int, uniform: float
) -> None:
    values = sorted((w / sum(weights) for w in weights), reverse=True)
    for crossing in (True, False):
        probabilities = torch.tensor([values])
        limits = torch.tensor([[top_p]]), torch.tensor([[top_k]])
        rank = int(pick(probabilities, *limits, torch.tensor([[uniform]]), crossing))
        count = kept(values, top_p, top_k, crossing)
        sums = np.cumsum(np.array(values, dtype=np.float64))[:count]
        threshold = uniform * sums[-1]
        assert 0 <= rank < count
        assert rank == 0 or sums[rank - 1] <= threshold + 1e-5
        assert rank == count - 1 or sums[rank] > threshold - 1e-5


# Draws.


def configured(
    config: SamplingConfig, slots: int = 1, candidates: int = 65, frames: int = 4
) -> SlotSampling:
    sampling = SlotSampling.allocate(slots, frames, 3, "cpu")
    for slot in range(slots):
        sampling.configure(slot, config, slot, candidates)
    return sampling


def main_draw(
    logits: Tensor,
    config: SamplingConfig,
    main: float = 0.0,
    redraw: float = 0.0,
    recent: Tensor = NO_RECENT,
) -> int:
    noise = torch.zeros(1, draws_per_frame(3))
    noise[0, MAIN_DRAW], noise[0, RAS_DRAW] = main, redraw
    sampling = configured(config, candidates=logits.shape[-1])
    return int(draw_main(logits[None], sampling, noise, recent, START))


@settings(deadline=None)
@given(st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40))
def test_no_noise_is_the_most_probable(values: list[float]) -> None:
    logits = torch.tensor(values)
    assert logits[main_draw(logits, GREEDY)] == logits.max()
    assert logits[main_draw(logits, SAMPLED)] == logits.max()
    code = draw_head(logits[None], configured(GREEDY), torch.zeros(1))
    assert logits[int(code)] == logits.max()


def test_temperature_zero_takes_no_noise() -> None:
    sampling = configured(GREEDY)
    assert not sampling.noise.any()
    half = configured(SamplingConfig(temperature=0, head_temperature=1))
    assert not half.noise[..., :FIRST_HEAD_DRAW].any()
    assert half.noise[..., FIRST_HEAD_DRAW:].all()


def test_equal_logits_draw_the_first() -> None:
    assert main_draw(torch.zeros(9), GREEDY) == 0


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.5, 2.0, 1.0, -1.0]).log_softmax(-1)
    unrestricted = SamplingConfig(top_p=1.0, repetition_aware=False)
    uniform = (torch.arange(1000) + 0.5) / 1000
    sampling = configured(unrestricted, slots=1000, candidates=4, frames=1)
    noise = torch.zeros(1000, draws_per_frame(3))
    noise[:, MAIN_DRAW] = uniform
    many = logits.expand(1000, -1)
    for drawn in (
        draw_main(many, sampling, noise, NO_RECENT.expand(1000, -1), START),
        draw_head(many, sampling, uniform),
    ):
        shares = drawn.bincount(minlength=4) / 1000
        assert torch.allclose(shares, logits.exp(), atol=2e-3)


def test_temperature_sharpens_and_flattens() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, 0.0]])
    uniform = torch.tensor([0.7])
    codes = [
        int(draw_head(logits, configured(SamplingConfig(head_temperature=t, top_p=1)), uniform))
        for t in (0.1, 1.0, 10.0)
    ]
    assert codes[0] == 0
    assert codes[0] < codes[1] < codes[2]


def test_heads_draw_from_thirty_candidates_at_most() -> None:
    logits = -torch.arange(64.0)[None] * 1e-3
    last = torch.tensor([1 - 2**-24])
    for config, highest in (
        (SamplingConfig(top_p=1), HEAD_CANDIDATES - 1),
        (SamplingConfig(top_p=1, top_k=50), HEAD_CANDIDATES - 1),
        (SamplingConfig(top_p=1, top_k=5), 4),
        (SamplingConfig(top_p=1, head_top_k=7), 6),
    ):
        assert int(draw_head(logits, configured(config), last)) == highest
    few = draw_head(logits[:, :8], configured(SamplingConfig(top_p=1)), last)
    assert int(few) == 7


def test_the_main_draw_reaches_every_candidate_unless_top_k_caps_it() -> None:
    logits = -torch.arange(64.0) * 1e-3
    last = 1 - 2**-24
    assert main_draw(logits, SamplingConfig(top_p=1), last) == 63
    assert main_draw(logits, SamplingConfig(top_p=1, top_k=9), last) == 8


# Repetition-aware sampling.

PEAKED = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, -20.0])  # the last candidate is eos
REDRAWING = SamplingConfig(top_p=1.0)


def recently(*codes: int) -> Tensor:
    recent = NO_RECENT.clone()
    for place, code in enumerate(codes):
        recent[0, place] = START + code
    return recent


def test_a_repeated_code_is_drawn_again_from_its_own_noise() -> None:
    assert main_draw(PEAKED, REDRAWING, 0.0, 0.9, recently(0)) > 0
    assert main_draw(PEAKED, REDRAWING, 0.0, 0.9, recently(1)) == 0
    assert main_draw(PEAKED, REDRAWING, 0.0, 0.0, recently(0)) == 0  # the redraw may repeat it


@pytest.mark.parametrize("place", [0, RAS_WINDOW - 1])
def test_the_whole_window_counts(place: int) -> None:
    recent = NO_RECENT.clone()
    recent[0, place] = START
    assert main_draw(PEAKED, REDRAWING, 0.0, 0.9, recent) > 0


def test_without_repetition_awareness_codes_repeat() -> None:
    plain = SamplingConfig(top_p=1.0, repetition_aware=False)
    assert main_draw(PEAKED, plain, 0.0, 0.9, recently(0)) == 0


def test_eos_is_never_drawn_again() -> None:
    ending = torch.tensor([0.0, 1.0, 9.0])
    inside = NO_RECENT.clone()
    inside[0, 0] = START + 2  # where eos would be if it were a code
    assert main_draw(ending, REDRAWING, 0.0, 0.99, inside) == 2


def test_the_redraw_has_settings_of_its_own() -> None:
    narrow = SamplingConfig(top_p=1.0, ras_top_k=1)
    assert main_draw(PEAKED, narrow, 0.0, 0.999, recently(0)) == 0
    cold = SamplingConfig(top_p=1.0, ras_temperature=0)
    assert main_draw(PEAKED, cold, 0.0, 0.999, recently(0)) == 0
    hot = SamplingConfig(top_p=1.0, ras_temperature=10.0, ras_top_p=1.0)
    assert main_draw(PEAKED, hot, 0.0, 0.999, recently(0)) >= 4


# Slots.


def test_slots_are_configured_apart_and_move() -> None:
    sampling = configured(SAMPLED, slots=3)
    before = [t.clone() for t in sampling.tensors()]
    sampling.configure(1, SamplingConfig(temperature=0.5, top_k=7), 99, 65, first_frame=20)
    for tensor, old in zip(sampling.tensors(), before, strict=True):
        assert torch.equal(tensor[0], old[0])
        assert torch.equal(tensor[2], old[2])
    assert float(sampling.temperature[1]) == 0.5
    assert int(sampling.top_k[1]) == 7
    assert np.array_equal(sampling.noise[1].numpy(), uniform_noise(99, 4, 4, 20))
    sampling.move(1, 2)
    for tensor in sampling.tensors():
        assert torch.equal(tensor[1], tensor[2])


def test_a_slot_forgets_the_guidance_it_had() -> None:
    sampling = configured(SAMPLED, slots=2)
    sampling.guide(0, 2.0)
    assert sampling.conditional.tolist() == [0, -1]
    assert sampling.unconditional.tolist() == [1, 0]
    for slot in range(2):
        sampling.configure(slot, SAMPLED, 0, 65)
    assert not sampling.conditional.any()
    assert not sampling.unconditional.any()
    assert not sampling.guidance.any()


# Guidance, through the whole step.

DIRECTED, PLAIN = "<|speaker:0|> [angry] Leave the house now.", "<|speaker:0|> Leave the house now."
FRAMES = 24


def guided(
    strength: float, config: SamplingConfig, seed: int, crowded: bool = False
) -> list[list[int]]:
    """Codes of a guided stream; with ``crowded`` others speak before and behind."""
    drama = shared_drama()
    first = 1 if crowded else 0
    slots = Slots(drama.model, 4 if crowded else 2)
    slots.prefill(first, prompt_rows(drama, DIRECTED))
    slots.prefill(first + 1, prompt_rows(drama, PLAIN))
    slots.step.configure(first, config, seed, guidance=strength)
    if crowded:
        slots.begin(0, prompt_rows(drama, "Someone else."), SAMPLED, 5)
        slots.begin(3, prompt_rows(drama, "And another."), SAMPLED, 6)
    frames = []
    for _ in range(FRAMES):
        both = slots.frame()
        assert both[first] == both[first + 1]  # the twins say the same
        frames.append(both[first])
    return frames


@torch.inference_mode()
def guided_by_the_formula(strength: float, config: SamplingConfig, seed: int) -> list[list[int]]:
    """``directed + g * (directed - undirected)`` on two forward passes, drawn once for both."""
    drama = shared_drama()
    model, main_config = drama.model, drama.config
    slots = Slots(model, 2)
    for slot, text in enumerate((DIRECTED, PLAIN)):
        slots.prefill(slot, prompt_rows(drama, text))
    state, sampling = slots.step.state, SlotSampling.allocate(1, FRAMES, 3, "cpu")
    state.active[:] = True
    sampling.configure(0, config, seed, main_config.candidates)
    noise = torch.from_numpy(uniform_noise(seed, FRAMES, draws_per_frame(3)))
    if config.temperature == 0:
        noise.zero_()
    back, tower = model.ropes(state.context)
    column = torch.arange(state.context)

    def combined(logits: Tensor) -> Tensor:
        both = logits.float()
        return (both[0] + strength * (both[0] - both[1]))[None]

    frames = []
    for frame in range(FRAMES):
        now = noise[frame][None]

        def draw(codebook: int, logits: Tensor, now: Tensor = now) -> Tensor:
            uniform = now[:, FIRST_HEAD_DRAW + codebook - 1]
            return draw_head(combined(logits), sampling, uniform).expand(2)

        logits = combined(linear(state.hidden, model.head))
        start = main_config.semantic_start
        choice = int(draw_main(logits, sampling, now, state.recent[:1], start))
        last = main_config.tower.codebook_size - 1
        main = start + choice if choice <= last else main_config.eos
        position = state.position.clone()
        codes = model.tower.step(
            state.hidden,
            state.extra,
            torch.tensor([min(choice, last)] * 2),
            draw,
            tower[:, position - 1],
            state,
            position - 1,
            (column <= (position - 1)[:, None])[:, None, None],
        )
        x, state.extra = model.embed_rows(torch.tensor([main] * 2), codes)
        seen = (column <= position[:, None])[:, None, None]
        state.hidden = model.backbone.step(x, back[:, position], state, position, seen)
        state.position += 1
        state.recent = torch.cat((state.recent[:, 1:], torch.tensor([[main]] * 2)), 1)
        frames.append([main, *codes[0].tolist()])
    return frames


@pytest.mark.parametrize("strength", [0.7, 3.0])
@pytest.mark.parametrize("config", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_guidance_is_the_formula(strength: float, config: SamplingConfig) -> None:
    expected = guided_by_the_formula(strength, config, 11)
    assert guided(strength, config, 11) == expected
    assert guided(0.0, config, 11) != expected  # it has an effect at all


@pytest.mark.parametrize("config", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_no_guidance_is_the_directed_prompt_alone(config: SamplingConfig) -> None:
    drama = shared_drama()
    slots = Slots(drama.model, 1)
    slots.begin(0, prompt_rows(drama, DIRECTED), config, 3)
    assert guided(0.0, config, 3) == slots.frames(0, FRAMES)


def test_a_guided_stream_does_not_mind_its_neighbours() -> None:
    assert guided(2.0, SAMPLED, 4, crowded=True) == guided(2.0, SAMPLED, 4)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), first=st.integers(0, 3000))
def test_a_slots_noise_is_that_of_the_take(seed: int, first: int) -> None:
    sampling = SlotSampling.allocate(1, 16, 3, "cpu")
    sampling.configure(0, SAMPLED, seed, 65, first)
    assert np.array_equal(sampling.noise[0].numpy(), uniform_noise(seed, first + 16, 4)[first:])
