"""What is refused, and that the message names it."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rt_drama3.checkpoint import (
    load_codec,
    load_model,
    read_config,
    read_voice_config,
)
from rt_drama3.checkpoint.conformance import check_numbers
from rt_drama3.checkpoint.tensors import TensorReader, scan
from rt_drama3.errors import CheckpointError
from tests.checkpoint.conftest import INDEX, Tensors, edit_json, read_tensors, rewrite

LAYER = "model.language_model.layers.1"
EXPERT = f"{LAYER}.mlp.experts.3.down_proj.weight"
SCALE = f"{EXPERT}_scale_inv"
NORM = "audio_decoder_mtp.layers.2.transformer_layer.ffn_norm.weight"
KINDS = (NORM, EXPERT, SCALE, "lm_head.weight", f"{LAYER}.mlp.gate.weight")
FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"


def load(directory: Path, dtype: torch.dtype = torch.float32) -> None:
    load_model(directory, read_config(directory), "cpu", dtype)


def refuses(directory: Path, *parts: str, dtype: torch.dtype = torch.float32) -> None:
    """Loading fails with a message that holds every part."""
    with pytest.raises(CheckpointError) as caught:
        load(directory, dtype)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "name", [NORM, EXPERT, SCALE, "lm_head.weight", f"{LAYER}.mlp.gate.weight"]
)
def test_missing(tiny: Path, name: str) -> None:
    rewrite(tiny, lambda tensors: tensors.pop(name))
    refuses(tiny, "lacks the tensor", name)


@pytest.mark.parametrize(
    "name",
    [
        "model.visual.patch_embed.weight",
        "mtp.layers.0.weight",
        "model.language_model.layers.4.input_layernorm.weight",
        "audio_decoder_mtp.heads.3.weight",
        f"{LAYER}.mlp.experts.8.gate_proj.weight",
        f"{LAYER}.self_attn.q_proj.weight",
    ],
)
def test_unexpected(tiny: Path, name: str) -> None:
    rewrite(tiny, lambda tensors: tensors.update({name: torch.zeros(2, 2)}))
    refuses(tiny, "unexpected tensor", name)


@pytest.mark.parametrize(
    "name",
    [NORM, EXPERT, SCALE, "lm_head.weight", f"{LAYER}.mlp.shared_expert_gate.weight"],
)
def test_wrong_shape(tiny: Path, name: str) -> None:
    rewrite(tiny, _one_row_more(name))
    refuses(tiny, name, "has shape", "instead of")


def test_router_with_a_row_too_many(tiny: Path) -> None:
    name = f"{LAYER}.mlp.gate.weight"
    rewrite(tiny, _one_row_more(name))
    refuses(tiny, f"{name} has 9 rows, but layer 1 has 8 experts", "drama_experts")


def _one_row_more(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        value = tensors[name]
        tensors[name] = torch.cat((value, value))[: value.shape[0] + 1].clone()

    return change


def test_transposed_matrix(tiny: Path) -> None:
    name = "audio_decoder_mtp.layers.0.eh_proj.weight"
    rewrite(tiny, lambda t: t.update({name: t[name].T.contiguous()}))
    refuses(tiny, name, "[256, 128] instead of [128, 256]")


@pytest.mark.parametrize(
    ("name", "dtype", "part"),
    [
        (NORM, torch.float64, "F64 instead of BF16 or F16 or F32"),
        ("lm_head.weight", torch.int8, "I8 instead of"),
        (EXPERT, torch.float8_e5m2, "F8_E5M2 instead of BF16 or F16 or F32"),
        (SCALE, torch.float16, "F16 instead of F32 or BF16"),
        (f"{LAYER}.mlp.shared_expert.up_proj.weight", torch.float8_e4m3fn, "F8_E4M3 instead"),
    ],
)
def test_wrong_dtype(tiny: Path, name: str, dtype: torch.dtype, part: str) -> None:
    rewrite(tiny, lambda t: t.update({name: t[name].float().to(dtype)}))
    refuses(tiny, f"{name} is", part)


def test_scales_of_a_matrix_that_is_not_quantised(tiny: Path) -> None:
    rewrite(tiny, lambda t: t.update({EXPERT: t[EXPERT].bfloat16()}))
    refuses(tiny, f"has the unexpected tensor {SCALE}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name",
    [
        NORM,
        SCALE,
        "audio_decoder_mtp.layers.1.codebook_embedding.weight",
        f"{LAYER}.linear_attn.A_log",
        "model.language_model.embed_tokens.weight",
        "audio_decoder_mtp_shared.layers.1.eh_proj.weight",
    ],
)
def test_not_finite(tiny: Path, name: str, value: float) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[name].view(-1)[-1] = value

    rewrite(tiny, spoil)
    refuses(tiny, f"{name} holds {value}")


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_nan_in_fp8(tiny: Path, code: int) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[EXPERT].view(torch.uint8)[100, 7] = code

    rewrite(tiny, spoil)
    refuses(tiny, f"{EXPERT} holds nan at [100, 7]")


def test_every_other_fp8_code_is_a_number() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    finite = codes[(codes & 0x7F) != 0x7F].view(torch.float8_e4m3fn)
    assert finite.float().isfinite().all()
    check_numbers("all", finite, "expert")


def test_scales(tiny: Path) -> None:
    rewrite(tiny, lambda tensors: tensors[SCALE].zero_())
    load(tiny)  # an all-zero block may be stored so
    rewrite(tiny, lambda tensors: tensors[SCALE].fill_(-0.5))
    refuses(tiny, f"{SCALE} holds -0.5", "scale of at least 0")


def test_rows_of_the_head_that_are_never_sampled_are_not_read(tiny: Path) -> None:
    rewrite(tiny, lambda tensors: tensors["lm_head.weight"][0].fill_(float("nan")))
    load(tiny)


def test_numbers_beyond_float16(tiny: Path) -> None:
    name = "audio_decoder_mtp.heads.1.weight"
    rewrite(tiny, lambda tensors: tensors[name][0].fill_(1e6))
    load(tiny, torch.bfloat16)
    refuses(tiny, name, "bfloat16", dtype=torch.float16)


def test_tensor_in_two_shards(tiny: Path) -> None:
    first = load_file(tiny / FIRST)
    second = load_file(tiny / SECOND)
    name = next(iter(first))
    save_file({**second, name: first[name]}, tiny / SECOND)
    refuses(tiny, f"{name} is in {FIRST} and again in {SECOND}")


def test_index_naming_a_missing_shard(tiny: Path) -> None:
    (tiny / SECOND).unlink()
    refuses(tiny, SECOND, "is missing")


def test_index_naming_a_tensor_that_its_shard_lacks(tiny: Path) -> None:
    second = load_file(tiny / SECOND)
    name = next(iter(second))
    del second[name]
    save_file(second, tiny / SECOND)
    refuses(tiny, f"puts {name} into {SECOND}, but it is not there")


def test_tensor_that_the_index_does_not_list(tiny: Path) -> None:
    edit_json(tiny / INDEX, lambda index: index["weight_map"].pop(NORM))
    refuses(tiny, NORM, "does not list it")


def test_index_and_shard_disagreeing(tiny: Path) -> None:
    name = next(iter(load_file(tiny / FIRST)))
    edit_json(tiny / INDEX, lambda index: index["weight_map"].update({name: SECOND}))
    refuses(tiny, f"{name} is in {FIRST}, but {INDEX} puts it into {SECOND}")


@pytest.mark.parametrize(
    "shard", ["../model.safetensors", "/etc/passwd", "a/b", "a\\b", "C:x", ".", "..", 7, ""]
)
def test_index_pointing_out_of_the_folder(tiny: Path, shard: object) -> None:
    edit_json(tiny / INDEX, lambda index: index["weight_map"].update({NORM: shard}))
    refuses(tiny, NORM, repr(shard), "not a file name in the same folder")


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"weight_map": {}}', '{"weight_map": [1]}', "{", "\xff"]
)
def test_unusable_index(tiny: Path, text: str) -> None:
    (tiny / INDEX).write_bytes(text.encode("latin-1"))
    refuses(tiny, INDEX)


@pytest.mark.parametrize("keep", [0, 5, 100, 10_000, -1])
def test_truncated_shard(tiny: Path, keep: int) -> None:
    data = (tiny / SECOND).read_bytes()
    (tiny / SECOND).write_bytes(data[:keep])
    refuses(tiny, SECOND, "truncated")


def test_shard_with_a_tail(tiny: Path) -> None:
    with (tiny / SECOND).open("ab") as file:
        file.write(b"more")
    refuses(tiny, SECOND, "too long")


def _header(**entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"\x02\0\0\0\0\0\0\0[]",
        _header(a=1),
        _header(a={"dtype": "F32", "shape": [1]}),
        _header(a={"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}) + b"1234",
        _header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}) + b"1234",
        _header(a={"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}) + b"12345678",
        _header(a={"dtype": "X", "shape": [1], "data_offsets": [0, -4]}),
        _header(a={"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}) + b"1234",
        (8).to_bytes(8, "little") + b"not json",
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        b"\xff" * 64,
    ],
)
def test_damaged_header(tiny: Path, data: bytes) -> None:
    (tiny / SECOND).write_bytes(data)
    refuses(tiny, SECOND, "Download")


def test_file_that_shrinks_while_it_is_read(tiny: Path) -> None:
    entries = scan(tiny).entries
    with TensorReader(tiny) as reader:
        (tiny / SECOND).write_bytes((tiny / SECOND).read_bytes()[:-10])
        last = max((e for e in entries.values() if e.shard == SECOND), key=lambda e: e.start)
        with pytest.raises(CheckpointError, match="ends early"):
            reader.read(last)
        (tiny / SECOND).unlink()
        reader.close()
        with pytest.raises(CheckpointError, match=f"cannot be read at {re.escape(last.name)}"):
            reader.read(last)


@pytest.mark.parametrize("name", [SECOND, "codec.pth", "config.json"])
def test_git_lfs_pointer(tiny: Path, name: str) -> None:
    (tiny / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    read = (
        (lambda folder: load_codec(folder, "cpu", torch.float32)) if name == "codec.pth" else load
    )
    with pytest.raises(CheckpointError, match=r"Git LFS pointer.*git lfs pull"):
        read(tiny)


def test_no_weights(tiny: Path) -> None:
    for file in [*tiny.glob("*.safetensors"), tiny / INDEX]:
        file.unlink()
    refuses(tiny, INDEX, "model.safetensors")


def test_shards_without_their_index(tiny: Path) -> None:
    (tiny / INDEX).unlink()
    refuses(tiny, INDEX, "needed")


def test_no_config(tiny: Path) -> None:
    (tiny / "config.json").unlink()
    refuses(tiny, "config.json is missing", str(tiny))


def test_config_value_that_is_not_supported(tiny: Path) -> None:
    edit_json(tiny / "config.json", lambda c: c["text_config"].update(hidden_act="gelu"))
    refuses(tiny, "config.json", "hidden_act", "gelu")


def test_config_of_another_checkpoint(tiny: Path) -> None:
    def fewer(config: dict[str, dict[str, object]]) -> None:
        text = config["text_config"]
        text.update(num_hidden_layers=3, layer_types=["linear_attention"] * 3)
        text["mlp_layer_types"] = ["moe"] * 3

    edit_json(tiny / "config.json", fewer)
    refuses(tiny, "unexpected tensor model.language_model.layers.3.", "more)", "config.json")


def test_experts_that_disagree_with_their_router(tiny: Path) -> None:
    def drop(tensors: Tensors) -> None:
        for name in list(tensors):
            if name.startswith(f"{LAYER}.mlp.experts.7."):
                del tensors[name]

    rewrite(tiny, drop)
    refuses(tiny, "has 8 rows, but layer 1 has 7 experts (up to number 6)", "drama_experts")


@pytest.mark.parametrize(
    "value",
    [
        5,
        [[0, 1]],
        "x",
        [[0], [1], [2], []],
        [[0, 0]] * 4,
        [[0, "1"]] * 4,
        [[-1, 0]] * 4,
        {"0": [1]},
    ],
)
def test_malformed_list_of_kept_experts(tiny: Path, value: object) -> None:
    edit_json(tiny / INDEX, lambda index: index["metadata"].update(drama_experts=value))
    refuses(tiny, "drama_experts", "4 layers")


def test_codec_that_is_missing(tiny: Path) -> None:
    (tiny / "codec.pth").unlink()
    with pytest.raises(CheckpointError, match=r"codec\.pth is missing"):
        load_codec(tiny, "cpu", torch.float32)


class _Trap:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return print, ("this must not run",)


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\x03\x04junk", b"junk" * 50, pickle.dumps(_Trap(), protocol=2)],
    ids=["empty", "no archive", "junk", "code"],
)
def test_codec_that_is_not_a_dict_of_tensors(
    tiny: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tiny / "codec.pth").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"codec\.pth"):
        load_codec(tiny, "cpu", torch.float32)
    assert capsys.readouterr().out == ""


def test_truncated_codec(tiny: Path) -> None:
    data = (tiny / "codec.pth").read_bytes()
    (tiny / "codec.pth").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r"codec\.pth cannot be read"):
        load_codec(tiny, "cpu", torch.float32)


def test_codec_tensor_that_is_not_finite(tiny: Path) -> None:
    state = torch.load(tiny / "codec.pth", weights_only=True)
    name = "quantizer.post_module.layers.1.feed_forward.w2.weight"
    state[name][0, 0] = float("nan")
    torch.save(state, tiny / "codec.pth")
    with pytest.raises(CheckpointError, match=re.escape(name)):
        load_codec(tiny, "cpu", torch.float32)


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [("n_codebooks", 5, "4 codebooks"), ("semantic_codebook_size", 32, "64 codes")],
)
def test_codec_of_another_model(tiny: Path, key: str, value: int, part: str) -> None:
    edit_json(tiny / "codec_config.json", lambda codec: codec.update({key: value}))
    with pytest.raises(CheckpointError, match=part):
        load_codec(tiny, "cpu", torch.float32)


@pytest.mark.parametrize("section", ["", "post"])
def test_a_key_of_the_codec_that_does_not_exist(tiny: Path, section: str) -> None:
    """A misspelt one would quietly leave the official value in force."""

    def misspell(codec: dict[str, object]) -> None:
        part = codec[section] if section else codec
        assert isinstance(part, dict)
        part["sample_rat"] = 16_000

    edit_json(tiny / "codec_config.json", misspell)
    known = "n_layer, n_head" if section else "sr, latent"
    with pytest.raises(
        CheckpointError, match=rf"codec_config.*: unknown key 'sample_rat'.*{known}"
    ):
        load_codec(tiny, "cpu", torch.float32)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_dtype_that_does_not_exist(tiny: Path, key: str) -> None:
    def change(config: dict[str, object]) -> None:
        config.pop("dtype", None)
        config[key] = "int3"

    edit_json(tiny / "config.json", change)
    with pytest.raises(
        CheckpointError, match=rf"config\.json: {key} is 'int3'.*'bfloat16', 'float16', 'float32'"
    ):
        read_config(tiny)


def test_codec_config_that_is_missing(tiny: Path) -> None:
    (tiny / "codec_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"codec_config\.json"):
        load_codec(tiny, "cpu", torch.float32)


def test_whether_its_text_is_normalised(tiny: Path) -> None:
    assert not read_voice_config(tiny).normalizes
    (tiny / "generation_config.json").write_text('{"normalize_text": true}')
    assert read_voice_config(tiny).normalizes


def test_whether_it_reads_directions(tiny: Path) -> None:
    assert read_voice_config(tiny).reads_directions
    (tiny / "generation_config.json").write_text('{"reads_directions": false}')
    assert not read_voice_config(tiny).reads_directions
    (tiny / "generation_config.json").write_text('{"reads_directions": 0}')
    with pytest.raises(CheckpointError, match="reads_directions is 0"):
        read_voice_config(tiny)


def test_fixed_voice_that_is_not_a_boolean(tiny: Path) -> None:
    (tiny / "generation_config.json").write_text('{"fixed_voice": "yes"}')
    with pytest.raises(CheckpointError, match="fixed_voice is 'yes'"):
        read_voice_config(tiny)


def test_config_argument_of_another_folder(tiny: Path) -> None:
    config = read_config(tiny)
    other = replace(config, backbone=replace(config.backbone, hidden_size=256))
    with pytest.raises(CheckpointError, match="has shape"):
        load_model(tiny, other, "cpu", torch.float32)


def test_a_damaged_checkpoint_leaves_its_files_closed(tiny: Path) -> None:
    rewrite(tiny, lambda tensors: tensors[NORM].fill_(float("nan")))
    refuses(tiny, NORM)
    assert read_tensors(tiny)
    (tiny / "model.safetensors").unlink()  # fails on Windows while a handle is open
