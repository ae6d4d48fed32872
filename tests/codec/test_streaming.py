"""Decoding as a stream: any batching and length gives the PCM of decoding in one call."""

from __future__ import annotations

import random
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rt_drama3.codec import Codec, load_codec, random_codec_state
from rt_drama3.codec.codec import _CPU_CHUNK
from rt_drama3.errors import CheckpointError, RequestError
from tests.codec.conftest import ODD, TINY
from tests.oracles.plain_codec import PlainCodec
from tests.small import needs_exact_groups

TOLERANCE = 1e-5  # of PCM in -1..1, float32


def random_codes(codec: Codec, frames: int, batch: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = codec.config.residual_codebook_size
    return torch.randint(size, (batch, codec.config.num_codebooks, frames), generator=generator)


def stream(codec: Codec, codes: Tensor, groups: list[int]) -> Tensor:
    state = codec.new_state(codes.shape[0])
    return torch.cat([codec.decode_step(part, state) for part in codes.split(groups, 2)], dim=1)


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


@pytest.mark.parametrize("config", [TINY, ODD], ids=["tiny", "odd"])
def test_decode_equals_the_plain_codec(config) -> None:
    state = random_codec_state(config, seed=5)
    codec = load_codec(config, state)
    codes = random_codes(codec, 21, batch=2)
    expected = PlainCodec(config, state).decode(codes)
    assert 0.01 < float(expected.std()) < 0.9  # neither silence nor clipping
    assert worst(codec.decode(codes), expected.float()) < TOLERANCE


@given(groups=st.lists(st.integers(1, 9), min_size=1, max_size=8), seed=st.integers(0, 99))
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_grouping_gives_the_same_pcm(codec: Codec, groups: list[int], seed: int) -> None:
    codes = random_codes(codec, sum(groups), seed=seed)
    whole = codec.decode_step(codes, codec.new_state())
    assert worst(stream(codec, codes, groups), whole) < TOLERANCE
    assert worst(codec.decode(codes), whole) < TOLERANCE


def test_groups_of_one_far_beyond_the_window(tiny: Codec) -> None:
    codes = random_codes(tiny, 40)
    assert worst(stream(tiny, codes, [1] * 40), tiny.decode(codes)) < TOLERANCE


def test_any_grouping_of_the_nano_voice(nano_codec: Codec) -> None:
    codes = random_codes(nano_codec, 80)  # its window is 64 frames
    whole = nano_codec.decode_step(codes, nano_codec.new_state())
    assert worst(nano_codec.decode(codes), whole) < TOLERANCE
    assert worst(stream(nano_codec, codes, [1, 2] + [4] * 19 + [1]), whole) < TOLERANCE
    rng = random.Random(0)
    groups: list[int] = []
    while sum(groups) < 80:
        groups.append(min(rng.choice([1, 1, 2, 3, 7, 16]), 80 - sum(groups)))
    assert worst(stream(nano_codec, codes, groups), whole) < TOLERANCE


@needs_exact_groups
@pytest.mark.parametrize(
    "groups",
    [[4] * 19, [1, 2, *[4] * 18, 1], [3, 5, 7, 11, 13, 16, 21], [2] * 38, [8] * 9 + [4], [76]],
    ids=["fours", "growing", "odd", "twos", "eights", "whole"],
)
def test_the_grouping_of_frames_does_not_show_in_the_samples(
    nano_codec: Codec, groups: list[int]
) -> None:
    codes = random_codes(nano_codec, 76)  # its window is 64 frames
    alone = stream(nano_codec, codes, [1] * 76)
    assert torch.equal(stream(nano_codec, codes, groups), alone)


@needs_exact_groups
def test_streams_of_a_batch_do_not_show_in_the_samples(nano_codec: Codec) -> None:
    codes = random_codes(nano_codec, 12, batch=3)
    together = stream(nano_codec, codes, [1, 2, 4, 5])
    for i in range(3):
        assert torch.equal(stream(nano_codec, codes[i : i + 1], [4] * 3), together[i : i + 1])


def test_a_frame_changes_nothing_before_its_first_sample(codec: Codec) -> None:
    codes = random_codes(codec, 20)
    other = codes.clone()
    other[:, :, 12] = (other[:, :, 12] + 1) % codec.config.residual_codebook_size
    before = 12 * codec.frame_samples
    pcm, changed = codec.decode(codes), codec.decode(other)
    assert torch.equal(pcm[:, :before], changed[:, :before])
    assert not torch.equal(
        pcm[:, before : before + codec.frame_samples], changed[:, before:][:, : codec.frame_samples]
    )
    prefix = codec.decode(codes[:, :, :12])
    assert worst(prefix, pcm[:, :before]) < TOLERANCE


def test_streams_of_a_batch_do_not_touch_each_other(codec: Codec) -> None:
    codes = random_codes(codec, 9, batch=3)
    together = codec.decode(codes)
    for i in range(3):
        assert worst(codec.decode(codes[i : i + 1]), together[i : i + 1]) < TOLERANCE


def test_streams_of_a_batch_may_begin_and_move_at_any_time(tiny: Codec) -> None:
    first, second = random_codes(tiny, 16, seed=1), random_codes(tiny, 16, seed=2)
    state = tiny.new_state(2)
    samples = tiny.frame_samples
    tiny.decode_step(torch.cat((first[:, :, :7], second[:, :, :7])), state)
    state.reset(1)  # the second slot starts over, seven frames later than the first
    pcm = tiny.decode_step(torch.cat((first[:, :, 7:12], second[:, :, :5])), state)
    assert worst(pcm[:1], tiny.decode(first)[:, 7 * samples : 12 * samples]) < TOLERANCE
    assert worst(pcm[1:], tiny.decode(second[:, :, :5])) < TOLERANCE
    for tensor in state.tensors.values():
        tensor[0] = tensor[1]
    pcm = tiny.decode_step(second[:, :, 5:9].expand(2, -1, -1), state)
    assert torch.equal(pcm[0], pcm[1])
    assert worst(pcm[:1], tiny.decode(second)[:, 5 * samples : 9 * samples]) < TOLERANCE


def test_a_state_is_reset_and_cloned_in_place(codec: Codec) -> None:
    codes = random_codes(codec, 6)
    state = codec.new_state()
    addresses = {key: tensor.data_ptr() for key, tensor in state.tensors.items()}
    first = codec.decode_step(codes[:, :, :3], state)
    copy = state.clone()
    rest = codec.decode_step(codes[:, :, 3:], state)
    assert torch.equal(codec.decode_step(codes[:, :, 3:], copy), rest)
    state.reset()
    assert torch.equal(codec.decode_step(codes[:, :, :3], state), first)
    assert {key: tensor.data_ptr() for key, tensor in state.tensors.items()} == addresses
    assert state.bytes() == sum(t.nbytes for t in copy.tensors.values())


def test_a_state_made_in_inference_mode_can_be_reset_outside(tiny: Codec) -> None:
    codes = random_codes(tiny, 2)
    with torch.inference_mode():
        state = tiny.new_state()
        first = tiny.decode_step(codes, state)
    state.reset()
    assert torch.equal(tiny.decode_step(codes, state), first)


def test_a_stream_of_many_hours_sounds_like_its_beginning(tiny: Codec) -> None:
    codes = random_codes(tiny, 30)
    state = tiny.new_state()
    for key, memory in state.tensors.items():
        if not memory.is_floating_point():
            memory.fill_(10**8)  # frames heard so far: 53 days
        else:
            assert not memory.any(), key
    late = tiny.decode_step(codes, state)
    assert torch.isfinite(late).all()
    # Before the window is full the late stream also sees silent frames; then only the bf16
    # rounding of the rotary table differs.
    heard = 20 * tiny.frame_samples
    early = tiny.decode(codes)
    assert float((late - early)[:, heard:].std() / early[:, heard:].std()) < 0.02


def test_a_long_take_is_decoded_in_chunks(tiny: Codec) -> None:
    codes = random_codes(tiny, 3 * _CPU_CHUNK + 1)
    with mock.patch.object(tiny, "decode_step", wraps=tiny.decode_step) as step:
        pcm = tiny.decode(codes)
    assert [call.args[0].shape[2] for call in step.call_args_list] == [_CPU_CHUNK] * 3 + [1]
    assert pcm.shape == (1, codes.shape[2] * tiny.frame_samples)


def test_no_frames_give_no_samples(codec: Codec) -> None:
    assert codec.decode(random_codes(codec, 0)).shape == (1, 0)


def test_codes_beyond_a_codebook_are_clamped(tiny: Codec) -> None:
    wild = torch.tensor([[63, 15, 15, 15], [0, 0, 0, 0]]).T[None]
    clamped = tiny.decode(wild)
    wild = torch.tensor([[4000, 1023, 16, 99], [-1, -5, 0, -1]]).T[None]
    assert torch.equal(tiny.decode(wild), clamped)


def test_nothing_in_a_step_depends_on_data_on_the_host() -> None:
    """Meta tensors have no data: reading any on the host would raise."""
    codec = Codec(TINY, encoder=False, device="meta")
    state = codec.new_state(2)
    codes = torch.empty(2, TINY.num_codebooks, 3, dtype=torch.int64, device="meta")
    assert codec.decode_step(codes, state).shape == (2, 3 * TINY.frame_samples)


@pytest.mark.parametrize("frames", [1, 4])
def test_a_step_can_be_exported(tiny: Codec, frames: int) -> None:
    codes = random_codes(tiny, 3 * frames)
    program = torch.export.export(tiny, (codes[:, :, :frames], tiny.new_state().tensors))
    state = tiny.new_state()
    step = program.module()
    parts = [step(part, state.tensors) for part in codes.split(frames, 2)]
    assert worst(torch.cat(parts, 1), stream(tiny, codes, [frames] * 3)) < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close(dtype: torch.dtype) -> None:
    state = random_codec_state(TINY, seed=1)
    exact, half = load_codec(TINY, state), load_codec(TINY, state, dtype=dtype)
    codes = random_codes(exact, 12)
    pcm, expected = half.decode(codes), exact.decode(codes)
    assert pcm.dtype == torch.float32
    assert float((pcm - expected).std() / expected.std()) < (
        0.05 if dtype is torch.bfloat16 else 0.01
    )
    parts = stream(half, codes, [1, 2, 4, 5])
    assert float((parts - pcm).std() / pcm.std()) < 0.05


def test_wrong_codes_are_refused(tiny: Codec) -> None:
    with pytest.raises(RequestError, match=r"\[batch, 4, frames\], not \[1, 3, 5\]"):
        tiny.decode(torch.zeros(1, 3, 5, dtype=torch.int64))
    with pytest.raises(RequestError, match="integer codes"):
        tiny.decode(torch.zeros(1, 4, 5))
    with pytest.raises(RequestError, match="state of 2 streams"):
        tiny.decode_step(random_codes(tiny, 3), tiny.new_state(2))
    with pytest.raises(RequestError, match="at least one frame"):
        tiny.decode_step(random_codes(tiny, 0), tiny.new_state())


def test_sizes_that_do_not_fit_together_are_refused() -> None:
    from dataclasses import replace

    with pytest.raises(CheckpointError, match="multiple of 16"):
        Codec(replace(TINY, decoder_dim=40), encoder=False)
    with pytest.raises(CheckpointError, match="same product"):
        Codec(replace(TINY, encoder_rates=(2, 2)), encoder=True)
    Codec(replace(TINY, encoder_rates=(2, 2)), encoder=False)
    odd_heads = replace(TINY.post, head_dim=7)
    with pytest.raises(CheckpointError, match="head_dim is 7"):
        Codec(replace(TINY, post=odd_heads), encoder=False)
