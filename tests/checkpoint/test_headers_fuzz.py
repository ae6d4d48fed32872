"""Headers of any kind: recognised, or refused with a name; never another exception."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rt_drama3.checkpoint.adapt import Origin, adapt
from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.conformance import compare
from rt_drama3.checkpoint.experts import settle_experts, with_fp8
from rt_drama3.checkpoint.inventory import inventory
from rt_drama3.checkpoint.tensors import Entry, TensorReader
from rt_drama3.checkpoint.tiny_config import tiny_config
from rt_drama3.checkpoint.tiny_forms import SETTINGS
from rt_drama3.config import ModelConfig
from rt_drama3.errors import CheckpointError

ATTENTION = "model.language_model.layers.1.self_attn.o_proj"
MLP = "model.language_model.layers.0.mlp"
BASES = (
    *(ATTENTION, f"{MLP}.experts.0.gate_proj", f"{MLP}.experts.3.down_proj", f"{MLP}.gate"),
    *(
        f"{MLP}.experts.gate_up_proj",
        f"{MLP}.switch_mlp.up_proj",
        f"{MLP}.shared_expert.gate_up_proj",
    ),
    *("lm_head", "blk.0.attn_qkv", "blk.0.ffn_down_exps", "blk.1.ssm_a", "x", "a.gen.code.head"),
    "audio_decoder_mtp.layers.0.transformer_layer.attention.wqkv",
    "audio_decoder_mtp.layers.0.transformer_layer.attention.k_proj",
    "audio_decoder_mtp.layers.0.transformer_layer.feed_forward.w13",
)
TAILS = (
    *("weight", "qweight", "scales", "qzeros", "g_idx", "biases", "weight_packed", "weight_shape"),
    *("weight_scale", "weight_scale_2", "weight_global_scale", "weight_scale_inv", "input_scale"),
    *("weight_zero_point", "weight_g_idx", "scale", "scale_weight", "bias"),
)
DTYPES = ("F32", "BF16", "F16", "F8_E4M3", "U8", "I32", "U32", "I64", "Q4_K", "Q8_0", "NVFP4", "X")
SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512])


@cache
def config() -> ModelConfig:
    return parse_model_config(tiny_config(SETTINGS, 300)[0])


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Entry]:
    base = st.sampled_from(BASES)
    found = {}
    for one in draw(st.lists(base, min_size=1, max_size=3)):
        for tail in draw(st.lists(st.sampled_from(TAILS), min_size=1, max_size=5)):
            space = draw(st.sampled_from(["", "", "weights/"]))
            shape = tuple(draw(st.lists(SIZES, max_size=4)))
            dtype = draw(st.sampled_from(DTYPES))
            name = f"{space}{one}.{tail}"
            found[name] = Entry(name, "file", dtype, shape, 0, 0)
    return found


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    found=entries(),
    origin=st.sampled_from(Origin),
    settings=st.sampled_from(
        [
            *(
                None,
                {},
                {"bits": 8},
                {"experts": 3},
                {"config_groups": {"a": 1}},
                {"group_size": 0},
            ),
            *({"group_size": "x"}, {"bits": "x"}, {"sym": False, "desc_act": True}, {"dense": {}}),
            {"config_groups": {"a": {"weights": {"num_bits": 8}}}},
            {
                "group_size": [32],
                "bits": [4],
                "config_groups": {"a": {"weights": {"num_bits": []}}},
            },
            {ATTENTION: {"group_size": 32}},
            7,
        ]
    ),
)
def test_any_header(found: dict[str, Entry], origin: Origin, settings: object) -> None:
    with TensorReader(Path("none")) as reader, contextlib.suppress(CheckpointError):
        views = adapt(found, config(), origin, reader, quantization=settings).views
        settled, views = with_fp8(*settle_experts(config(), views, {}))
        differences = compare(views, inventory(settled))
        assert differences.missing
        for view in views.values():
            assert view.nbytes >= 0
            assert view.place[0] == "file"
