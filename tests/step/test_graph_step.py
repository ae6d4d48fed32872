"""FrameStep in eager mode: a stream does not depend on the other slots."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rt_drama3.config import SamplingConfig
from rt_drama3.drama3 import Drama3
from rt_drama3.model import SpeechModel
from tests.small import GREEDY, SAMPLED, Slots, new_drama, prompt_rows, shared_drama, solo

FRAMES = 40
TEXT = "The quick brown fox jumps."
SAMPLINGS = pytest.mark.parametrize("config", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


@pytest.fixture(scope="module")
def drama() -> Drama3:
    return shared_drama()


@pytest.fixture(scope="module")
def model(drama: Drama3) -> SpeechModel:
    return drama.model


@pytest.fixture(scope="module")
def rows(drama: Drama3) -> Tensor:
    return prompt_rows(drama, TEXT)


def copied(slots: Slots, slot: int) -> list[Tensor]:
    """Everything that a slot holds."""
    step = slots.step
    return [t[slot].clone() for t in (*step.state.tensors(), *step.sampling.tensors())]


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def same_rows(slots: Slots, one: list[Tensor], other: list[Tensor], rows: int) -> bool:
    """Like ``same``, of caches only the rows in use; the tower has one fewer."""
    state = slots.step.state
    backbone = len(state.keys) + len(state.values)
    cached = backbone + len(state.tower_keys) + len(state.tower_values)
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        used = rows if i < backbone else max(0, rows - 1)
        if not (torch.equal(a[:, :used], b[:, :used]) if i < cached else torch.equal(a, b)):
            return False
    return True


# Other streams.


def disturbance(slots: Slots, drama: Drama3, home: int) -> Iterator[None]:
    """Frame by frame, everything that can happen in the slots other than ``home``."""
    others = [slot for slot in range(4) if slot != home]
    texts = ["Empty house.", "A much longer text than the others have, with a comma.", "Hm."]
    prompts = [prompt_rows(drama, text) for text in texts]
    step = slots.step
    yield
    slots.begin(others[0], prompts[0], SAMPLED, 1)
    yield
    slots.begin(others[1], prompts[1], GREEDY, 2)
    slots.prefill(others[2], prompts[2][:5])
    yield
    with torch.inference_mode():  # the next chunk of a prompt
        drama.model.prefill(prompts[2][5:], step.state, others[2], 5)
    yield
    step.configure(others[2], SAMPLED, 3)
    slots.rows[others[2]] = len(prompts[2])
    yield
    step.activate(others[0], False)  # paused
    yield
    yield
    step.activate(others[0], True)
    yield
    step.release(others[1])
    yield
    step.state.scrub(others[1])
    slots.rows[others[1]] = 0
    yield
    saved = step.state.snapshot(others[0], slots.rows[others[0]])
    step.state.restore(others[1], saved)
    slots.rows[others[1]] = slots.rows[others[0]]
    step.configure(others[1], SAMPLED, 9)
    yield
    for slot in others:
        step.release(slot)
        step.state.reset(slot)
        slots.rows[slot] = 0


@SAMPLINGS
@pytest.mark.parametrize("home", [0, 2, 3])
def test_codes_do_not_depend_on_the_other_slots(
    drama: Drama3, rows: Tensor, config: SamplingConfig, home: int
) -> None:
    alone = solo(drama.model, rows, config, 42, FRAMES)
    assert len({tuple(frame) for frame in alone}) > FRAMES // 2  # it does not just hum
    slots = Slots(drama.model, 4)
    slots.begin(home, rows, config, 42)
    others = disturbance(slots, drama, home)
    frames = []
    for _ in range(FRAMES):
        next(others, None)
        frames.append(slots.frame()[home])
    assert frames == alone


def test_numbers_do_not_depend_on_the_other_slots(drama: Drama3, rows: Tensor) -> None:
    """Not only the codes: every bit of the state."""
    alone, busy = Slots(drama.model, 1), Slots(drama.model, 3)
    alone.begin(0, rows, SAMPLED, 7)
    busy.begin(0, prompt_rows(drama, "A neighbour."), SAMPLED, 8)
    busy.begin(1, rows, SAMPLED, 7)
    for _ in range(10):
        alone.frame()
        busy.frame()
    assert same_rows(alone, copied(alone, 0), copied(busy, 1), alone.rows[0])


def test_seeds_and_texts_make_a_difference(drama: Drama3, rows: Tensor) -> None:
    takes = [
        solo(drama.model, prompt, SAMPLED, seed, 10)
        for prompt, seed in ((rows, 1), (rows, 2), (prompt_rows(drama, "Other words."), 1))
    ]
    assert takes[0] != takes[1] != takes[2] != takes[0]


# Slots that do not move.


def test_idle_slots_keep_their_state_bit_for_bit(drama: Drama3, rows: Tensor) -> None:
    slots = Slots(drama.model, 4)
    slots.begin(0, rows, SAMPLED, 1)  # speaks on
    slots.begin(1, rows, SAMPLED, 2)  # pauses
    slots.frame()
    slots.step.activate(1, False)
    slots.prefill(2, rows[:9])  # is being read
    before = {slot: copied(slots, slot) for slot in (1, 2, 3)}
    for _ in range(8):
        slots.frame()
    for slot, held in before.items():
        assert same(held, copied(slots, slot)), f"slot {slot}"


def test_idle_slots_keep_what_counts_when_they_are_computed_along(
    drama: Drama3, rows: Tensor
) -> None:
    """As a compiled or captured batch does: all rows together, the idle ones among them."""
    from rt_drama3.graph_step import frame_step

    slots = Slots(drama.model, 4)
    slots.begin(0, rows, SAMPLED, 1)
    slots.begin(1, rows, SAMPLED, 2)
    slots.frame()
    slots.step.activate(1, False)
    slots.prefill(2, rows[:9])
    before = {slot: copied(slots, slot) for slot in (1, 2, 3)}
    with torch.inference_mode():
        for _ in range(8):
            frame_step(drama.model, slots.step.tensors(0, 4, 256))
    for slot, held in before.items():
        # The row that comes next is scratch: it is written before it is ever read.
        assert same_rows(slots, held, copied(slots, slot), slots.rows[slot]), f"slot {slot}"


@SAMPLINGS
def test_a_pause_changes_nothing(model: SpeechModel, rows: Tensor, config: SamplingConfig) -> None:
    slots = Slots(model, 2)
    slots.begin(0, rows, config, 5)
    slots.begin(1, rows, config, 6)
    frames = slots.frames(0, 10)
    slots.step.activate(0, False)
    slots.frames(1, 5)
    slots.step.activate(0, True)
    assert frames + slots.frames(0, 10) == solo(model, rows, config, 5, 20)


# Snapshots and moves.


@SAMPLINGS
def test_a_snapshot_continues_in_any_slot(
    model: SpeechModel, rows: Tensor, config: SamplingConfig
) -> None:
    expected = solo(model, rows, config, 3, 20)
    slots = Slots(model, 3)
    slots.begin(2, prompt_rows(shared_drama(), "Something else was here."), SAMPLED, 1)
    slots.frames(2, 9)  # leaves rows behind
    slots.step.release(2)
    slots.prefill(0, rows)
    saved = slots.step.state.snapshot(0, len(rows))
    for slot in (2, 1):
        slots.step.state.restore(slot, saved)
        slots.rows[slot] = len(rows)
        slots.step.configure(slot, config, 3)
        assert slots.frames(slot, 20) == expected
        slots.step.release(slot)


def test_a_snapshot_is_a_copy(model: SpeechModel, rows: Tensor) -> None:
    slots = Slots(model, 1)
    slots.prefill(0, rows)
    saved = slots.step.state.snapshot(0, len(rows))
    kept = [t.clone() for t in (*saved.cached, *saved.whole)]
    slots.step.configure(0, SAMPLED, 0)
    slots.frames(0, 5)
    assert same(kept, [*saved.cached, *saved.whole])
    assert saved.nbytes == sum(t.numel() * t.element_size() for t in kept)


@SAMPLINGS
def test_a_stream_moves_in_mid_speech(
    model: SpeechModel, rows: Tensor, config: SamplingConfig
) -> None:
    slots = Slots(model, 3)
    slots.begin(2, rows, config, 8)
    frames = slots.frames(2, 10)
    slots.step.move(2, 0, slots.rows[2])
    slots.rows = [slots.rows[2], 0, 0]
    assert not slots.step.state.active[2]
    assert frames + slots.frames(0, 10) == solo(model, rows, config, 8, 20)


@SAMPLINGS
def test_a_slot_used_again_remembers_nothing(
    model: SpeechModel, rows: Tensor, config: SamplingConfig
) -> None:
    slots = Slots(model, 1)
    slots.begin(0, prompt_rows(shared_drama(), "A longer text that was here before."), SAMPLED, 1)
    slots.frames(0, 30)
    slots.step.release(0)
    slots.begin(0, rows, config, 4)
    assert slots.frames(0, 20) == solo(model, rows, config, 4, 20)


# Attention lengths.


@pytest.mark.parametrize("length", [128, 200, 256])
@SAMPLINGS
def test_the_attention_length_does_not_change_the_codes(
    model: SpeechModel, rows: Tensor, config: SamplingConfig, length: int
) -> None:
    shortest, longer = Slots(model, 1), Slots(model, 1)
    for slots in (shortest, longer):
        slots.begin(0, rows, config, 2)
    for _ in range(30):
        assert shortest.rows[0] + 1 <= length
        assert shortest.frame(length=shortest.rows[0] + 1) == longer.frame(length=length)


def test_lengths_end_with_the_context(model: SpeechModel) -> None:
    step = Slots(model, 1, context=100, lengths=(32, 64, 128)).step
    assert step.lengths == (32, 64, 100)
    assert [step.length_for(n) for n in (1, 32, 33, 64, 65, 100)] == [32, 32, 64, 64, 100, 100]


def test_a_stream_may_fill_its_context_and_a_step_beyond_is_harmless(
    model: SpeechModel, rows: Tensor
) -> None:
    context = len(rows) + 10
    slots, roomy = Slots(model, 2, context=context), Slots(model, 1)
    slots.begin(0, rows, GREEDY, 0)
    slots.begin(1, rows[:20], SAMPLED, 1)
    roomy.begin(0, rows, GREEDY, 0)
    expected = roomy.frames(0, 10)
    assert [slots.frame(length=context)[0] for _ in range(10)] == expected
    expected = solo(model, rows[:20], SAMPLED, 1, 14)[10:]
    assert [slots.frame(length=context)[1] for _ in range(4)] == expected


# Prefill.


@pytest.mark.parametrize("cuts", [(1,), (7,), (1, 2, 3), (20, 21)])
@SAMPLINGS
def test_a_prompt_prefilled_in_chunks_equals_one_prefilled_whole(
    model: SpeechModel, rows: Tensor, config: SamplingConfig, cuts: tuple[int, ...]
) -> None:
    """The tower lags one row behind: it must not miss or repeat one at a seam."""
    whole, parts = Slots(model, 1), Slots(model, 1)
    whole.prefill(0, rows, block=len(rows))
    parts.step.state.reset(0)
    with torch.inference_mode():
        for start, end in zip((0, *cuts), (*cuts, len(rows)), strict=True):
            model.prefill(rows[start:end], parts.step.state, 0, start)
    parts.rows[0] = len(rows)
    for one, other in zip(copied(whole, 0), copied(parts, 0), strict=True):
        assert torch.allclose(one.float(), other.float(), atol=2e-5)
    for slots in (whole, parts):
        slots.step.configure(0, config, 6)
    assert whole.frames(0, 20) == parts.frames(0, 20)


def test_audio_rows_keep_the_window_of_recent_tokens(drama: Drama3) -> None:
    codes = [[n % 5] * 12 for n in range(drama.config.num_codebooks)]
    prompt = torch.from_numpy(drama.prompts.build("Hi.", references=[("Ho.", codes)]).rows)
    slots = Slots(drama.model, 1)
    slots.prefill(0, prompt, block=5)
    assert slots.step.state.recent[0].tolist() == prompt[-16:, 0].tolist()
    short = Slots(drama.model, 1)
    short.prefill(0, prompt[:3])
    assert short.step.state.recent[0].tolist() == [-1] * 13 + prompt[:3, 0].tolist()


# Numbers that went bad.


def poison(slots: Slots, slot: int) -> None:
    """What an overflow leaves behind: NaN in every part of a slot."""
    for tensor in slots.step.state.tensors():
        if tensor.is_floating_point():
            tensor[slot] = float("nan")


def test_bad_numbers_are_reported_and_do_not_spread(drama: Drama3, rows: Tensor) -> None:
    slots = Slots(drama.model, 3)
    for slot in range(3):
        slots.begin(slot, rows, SAMPLED, slot)
    slots.frame()
    poison(slots, 1)
    frames = []
    for _ in range(5):
        frames.append(slots.frame())
        assert slots.step.output.finite.tolist() == [True, False, True]
    for slot in (0, 2):
        expected = solo(drama.model, rows, SAMPLED, slot, 6)
        assert [frame[slot] for frame in frames] == expected[1:]


def test_a_scrubbed_slot_serves_the_next_stream(drama: Drama3, rows: Tensor) -> None:
    slots = Slots(drama.model, 2)
    poison(slots, 1)
    slots.step.state.scrub(1)
    slots.begin(1, rows, SAMPLED, 3)
    assert slots.frames(1, 10) == solo(drama.model, rows, SAMPLED, 3, 10)


def test_bad_numbers_of_an_idle_slot_do_not_reach_a_batch(drama: Drama3, rows: Tensor) -> None:
    from rt_drama3.graph_step import frame_step

    clean, bad = Slots(drama.model, 2), Slots(drama.model, 2)
    poison(bad, 1)
    for slots in (clean, bad):
        slots.begin(0, rows, SAMPLED, 3)
        with torch.inference_mode():
            for _ in range(5):
                frame_step(drama.model, slots.step.tensors(0, 2, 256))
    assert bool(bad.step.output.finite[0])
    assert torch.equal(clean.step.state.hidden[0], bad.step.state.hidden[0])
    assert torch.equal(clean.step.output.codes[0], bad.step.output.codes[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name",
    ["head", "tower.heads", "tower.layers.0.hidden_proj", "tower.layers.2.ffn_down", "embed"],
)
def test_no_bad_number_goes_unnoticed(name: str, value: float) -> None:
    """Also those of the tower, whose codes would be noise: valid, and loud."""
    drama = new_drama()
    rows = prompt_rows(drama, TEXT)
    slots = Slots(drama.model, 1)
    slots.begin(0, rows, SAMPLED, 1)
    weight = drama.model.get_parameter(name)
    start = drama.config.semantic_start if name == "embed" else 0
    weight[start:].view(-1)[:: 7 if value != value else 1] = value
    slots.frame()
    assert not slots.step.output.finite[0]
    assert int(slots.step.output.codes[0].max()) < drama.config.tower.codebook_size


def test_outputs_of_released_slots_stay_as_they_were(model: SpeechModel, rows: Tensor) -> None:
    slots = Slots(model, 2)
    slots.begin(0, rows, SAMPLED, 0)
    slots.begin(1, rows, SAMPLED, 1)
    last = slots.frame()[1]
    slots.step.release(1)
    for _ in range(3):
        assert slots.frame()[1] == last
