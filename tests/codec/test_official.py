"""The official file: inventory, weight-norm spellings, nesting, halves, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rt_drama3 import checkpoint
from rt_drama3.codec import (
    Codec,
    codec_inventory,
    has_encode_half,
    load_codec,
    load_codec_state,
    random_codec_state,
)
from rt_drama3.config import CodecConfig
from rt_drama3.errors import CheckpointError
from tests.codec.conftest import ODD, TINY

CODES = torch.arange(24).view(1, 4, 6) % 16
FIRST = "decoder.model.0.conv"
NEW, OLD = "parametrizations.weight.original", "weight_"


@pytest.fixture
def state() -> dict[str, Tensor]:
    return random_codec_state(TINY, seed=1)


def decode_half(state: dict[str, Tensor]) -> dict[str, Tensor]:
    names = codec_inventory(TINY, encoder=False)
    return {name: value for name, value in state.items() if name in names}


def test_the_official_inventory() -> None:
    inventory = codec_inventory(CodecConfig())
    assert len(inventory) == 535
    assert sum(math.prod(shape) for shape in inventory.values()) == 391_430_530
    # A few of every family, as the notes list them.
    expected = {
        "encoder.block.0.conv.parametrizations.weight.original1": (64, 1, 7),
        "encoder.block.4.block.4.conv.parametrizations.weight.original1": (1024, 512, 16),
        "encoder.block.4.block.5.layers.3.attention.wqkv.weight": (3072, 1024),
        "encoder.block.5.alpha": (1, 1024, 1),
        "encoder.block.6.conv.bias": (1024,),
        "quantizer.downsample.1.0.conv.weight": (1024, 1024, 2),
        "quantizer.upsample.0.1.dwconv.conv.weight": (1024, 1, 7),
        "quantizer.upsample.1.1.gamma": (1024,),
        "quantizer.pre_module.layers.7.ffn_layer_scale.gamma": (1024,),
        "quantizer.post_module.norm.weight": (1024,),
        "quantizer.semantic_quantizer.quantizers.0.codebook.weight": (4096, 8),
        "quantizer.quantizer.quantizers.8.in_proj.weight_v": (8, 1024, 1),
        "quantizer.quantizer.quantizers.8.out_proj.weight_g": (1024, 1, 1),
        "decoder.model.1.block.1.conv.parametrizations.weight.original0": (1536, 1, 1),
        "decoder.model.1.block.1.conv.parametrizations.weight.original1": (1536, 768, 16),
        "decoder.model.4.block.4.block.1.conv.parametrizations.weight.original1": (96, 96, 7),
        "decoder.model.5.alpha": (1, 96, 1),
        "decoder.model.6.conv.parametrizations.weight.original1": (1, 96, 7),
    }
    assert {name: inventory[name] for name in expected} == expected


@pytest.mark.parametrize("config", [CodecConfig(), TINY, ODD], ids=["official", "tiny", "odd"])
@pytest.mark.parametrize("encoder", [True, False])
def test_every_parameter_has_its_slot(config: CodecConfig, encoder: bool) -> None:
    from rt_drama3.codec.layout import codec_slots

    codec = Codec(config, encoder=encoder, device="meta")
    slots = [s.target for s in codec_slots(config) if encoder or not s.encode_half]
    assert sorted(slots) == sorted(name for name, _ in codec.named_parameters())


def test_the_nano_file_has_both_halves() -> None:
    directory = checkpoint.resolve("nano")
    config = checkpoint.read_codec_config(directory)
    inventory = codec_inventory(config)
    stored = torch.load(directory / "codec.pth", weights_only=True)
    assert {name: tuple(value.shape) for name, value in stored.items()} == inventory
    assert len(codec_inventory(config, encoder=False)) == 180
    assert has_encode_half(config, stored)


def test_random_states_follow_the_inventory_and_the_seed(state: dict[str, Tensor]) -> None:
    assert {name: tuple(value.shape) for name, value in state.items()} == codec_inventory(TINY)
    again, other = random_codec_state(TINY, seed=1), random_codec_state(TINY, seed=2)
    assert all(torch.equal(value, again[name]) for name, value in state.items())
    assert not torch.equal(state["decoder.model.5.alpha"], other["decoder.model.5.alpha"])
    half = random_codec_state(TINY, encoder=False, seed=1)
    assert half.keys() == codec_inventory(TINY, encoder=False).keys()


@pytest.mark.parametrize("wrapped", ["state_dict", "generator", "both", "buffers", "spelling"])
def test_every_accepted_form_gives_the_same_codec(state: dict[str, Tensor], wrapped: str) -> None:
    expected = load_codec(TINY, state).decode(CODES)
    loaded: dict[str, object] = dict(state)
    if wrapped in ("generator", "both"):
        loaded = {f"generator.{name}": value for name, value in state.items()}
        loaded["discriminator.weight"] = torch.full((3,), torch.nan)
        loaded["step"] = 7
    if wrapped in ("state_dict", "both"):
        loaded = {"state_dict": loaded, "epoch": 3}
    if wrapped == "buffers":
        loaded["quantizer.post_module.causal_mask"] = torch.ones(4, 4, dtype=torch.bool)
        loaded["quantizer.post_module.freqs_cis"] = torch.full((4, 4, 2), torch.nan)
    if wrapped == "spelling":  # each pair under the other spelling
        loaded = {
            name.replace(f"{NEW}0", "weight_g").replace(f"{NEW}1", "weight_v")
            if NEW in name
            else name.replace(f"{OLD}g", f"{NEW}0").replace(f"{OLD}v", f"{NEW}1"): value
            for name, value in state.items()
        }
        assert loaded.keys() != state.keys()
    codec = load_codec(TINY, loaded)
    assert codec.has_encoder
    assert torch.equal(codec.decode(CODES), expected)


def test_a_file_without_encode_half(state: dict[str, Tensor]) -> None:
    expected = load_codec(TINY, state).decode(CODES)
    codec = load_codec(TINY, decode_half(state))
    assert not codec.has_encoder
    assert torch.equal(codec.decode(CODES), expected)
    decoder = Codec(TINY, encoder=False)
    load_codec_state(decoder, state)  # a full file, of which only one half is wanted
    assert torch.equal(decoder.decode(CODES), expected)


def test_weights_are_folded_in_float32_and_cast_once(state: dict[str, Tensor]) -> None:
    stored = {name: value.bfloat16() for name, value in state.items()}
    widened = {name: value.float() for name, value in stored.items()}
    assert torch.equal(
        load_codec(TINY, stored).decode(CODES), load_codec(TINY, widened).decode(CODES)
    )
    half = load_codec(TINY, state, dtype=torch.bfloat16)
    full = load_codec(TINY, state)
    for (name, cast), exact in zip(half.named_parameters(), full.parameters(), strict=True):
        assert torch.equal(cast, exact.to(cast.dtype)), name
    dtypes = {p.dtype for p in half.decoder.blocks.parameters()}
    assert dtypes == {torch.bfloat16, torch.float32}


def test_missing_tensors_are_named(state: dict[str, Tensor]) -> None:
    del state[f"{FIRST}.{NEW}1"]
    with pytest.raises(CheckpointError, match=rf"lacks tensor {FIRST}.{NEW}1\. Download"):
        load_codec(TINY, state)
    for name in [name for name in state if name.startswith("quantizer.post_module")]:
        del state[name]
    with pytest.raises(CheckpointError, match=r"lacks \d+ tensors \(.*post_module.* more\)"):
        load_codec(TINY, state)


def test_half_an_encode_half_is_refused(state: dict[str, Tensor]) -> None:
    half = decode_half(state)
    half["encoder.block.5.alpha"] = state["encoder.block.5.alpha"]
    with pytest.raises(CheckpointError, match="lacks"):
        load_codec(TINY, half)


def test_unexpected_tensors_are_named(state: dict[str, Tensor]) -> None:
    state["decoder.model.7.conv.bias"] = torch.zeros(3)
    with pytest.raises(CheckpointError, match=r"holds tensor decoder.model.7.conv.bias that"):
        load_codec(TINY, state)


def test_misshaped_tensors_are_named(state: dict[str, Tensor]) -> None:
    state[f"{FIRST}.{NEW}1"] = torch.zeros(32, 32, 5)
    with pytest.raises(
        CheckpointError, match=r"has shape \[32, 32, 5\], .* asks for \[32, 32, 7\]"
    ):
        load_codec(TINY, state)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_tensors_that_are_not_finite_are_named(state: dict[str, Tensor], value: float) -> None:
    state["decoder.model.5.alpha"][0, 1] = value
    with pytest.raises(CheckpointError, match=r"model\.5\.alpha holds NaN or infinite"):
        load_codec(TINY, state)


def test_a_weight_norm_direction_of_length_zero_is_named(state: dict[str, Tensor]) -> None:
    state[f"{FIRST}.{NEW}1"][3] = 0
    with pytest.raises(CheckpointError, match=rf"{FIRST} has a weight-norm direction of length 0"):
        load_codec(TINY, state)


def test_integer_weights_are_refused(state: dict[str, Tensor]) -> None:
    state[f"{FIRST}.bias"] = torch.zeros(32, dtype=torch.int64)
    with pytest.raises(CheckpointError, match="floating-point tensor is needed"):
        load_codec(TINY, state)


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        ({}, "an empty dict"),
        ([1, 2], "a list"),
        (None, "a NoneType"),
        ({"model": {"a": torch.zeros(1)}}, "under 'model'"),
        ({"state_dict": {}}, "an empty dict"),
        ({"weights": torch.zeros(1)}, "lacks"),
    ],
)
def test_other_files_are_refused(loaded: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_codec(TINY, loaded)
