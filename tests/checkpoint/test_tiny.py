"""Tiny checkpoints: the official layout, any sizes, readable by others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rt_drama3.checkpoint import (
    inventory,
    load_codec,
    load_model,
    load_tokenizer,
    make_tiny,
    read_codec_config,
    read_config,
)
from rt_drama3.checkpoint.formats.fp8 import quantize_fp8
from rt_drama3.checkpoint.tiny_config import Settings, known_keys
from rt_drama3.codec import codec_inventory
from rt_drama3.config import CodecConfig
from rt_drama3.errors import ConfigError
from rt_drama3.model.weights import dequantize
from tests.checkpoint.conftest import INDEX, read_tensors


def test_files_of_the_official_layout(tiny_checkpoint: Path) -> None:
    assert sorted(p.name for p in tiny_checkpoint.iterdir()) == [
        "LICENSE",
        "README.md",
        "chat_template.jinja",
        "codec.pth",
        "codec_config.json",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    tensors = read_tensors(tiny_checkpoint)
    specs = inventory(read_config(tiny_checkpoint))
    assert {n: tuple(t.shape) for n, t in tensors.items()} == {n: s.shape for n, s in specs.items()}
    index = json.loads((tiny_checkpoint / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    assert index["weight_map"].keys() == tensors.keys()
    sizes = [p.stat().st_size for p in tiny_checkpoint.glob("model-*")]
    assert max(sizes) < 1.2 * min(sizes)


def test_the_padding_of_audio_has_a_token(tiny_checkpoint: Path) -> None:
    """The template has no use for it, but other readers refuse a checkpoint without it."""
    pad = json.loads((tiny_checkpoint / "config.json").read_text())["audio_pad_token_id"]
    tokenizer = load_tokenizer(tiny_checkpoint, read_config(tiny_checkpoint))
    assert tokenizer.encode("<|audio_pad|>").ids == [pad]


def test_config_has_every_official_key(tiny_checkpoint: Path, full_config: dict[str, Any]) -> None:
    def keys(values: dict[str, Any]) -> dict[str, Any]:
        return {k: keys(v) if isinstance(v, dict) else None for k, v in values.items()}

    config = json.loads((tiny_checkpoint / "config.json").read_text())
    assert keys(config) == keys(full_config)


def test_codec_file_is_the_official_one(tiny_checkpoint: Path) -> None:
    state = torch.load(tiny_checkpoint / "codec.pth", weights_only=True)
    extra = {name for name in state if name.endswith((".causal_mask", ".freqs_cis"))}
    assert len(extra) == 2
    config = read_codec_config(tiny_checkpoint)
    shapes = {name: tuple(t.shape) for name, t in state.items() if name not in extra}
    assert shapes == codec_inventory(config, encoder=True)
    assert any(name.endswith("weight_g") for name in shapes)
    assert any(name.endswith("parametrizations.weight.original1") for name in shapes)
    codec = load_codec(tiny_checkpoint, "cpu", torch.float32)
    assert codec.frame_samples == 2048
    pcm = codec.decode(torch.randint(0, 64, (1, 4, 6)))
    assert 0.01 < pcm.std() < 0.9
    assert codec.encode(pcm[0]).shape == (4, 6)


def test_decode_only_codec_and_none(tmp_path: Path) -> None:
    make_tiny(tmp_path / "decode", codec="decode")
    assert not load_codec(tmp_path / "decode", "cpu", torch.float32).has_encoder
    make_tiny(tmp_path / "none", codec="none")
    assert not (tmp_path / "none" / "codec.pth").exists()
    assert read_codec_config(tmp_path / "none") == CodecConfig()


@pytest.mark.parametrize("old_zip", [True, False])
def test_codec_as_other_tools_save_it(tiny: Path, old_zip: bool) -> None:
    state = torch.load(tiny / "codec.pth", weights_only=True)
    codes = torch.randint(0, 64, (1, 4, 3))
    pcm = load_codec(tiny, "cpu", torch.float32).decode(codes)
    nested = {"state_dict": {f"generator.{name}": t for name, t in state.items()}}
    nested["state_dict"]["discriminator.x"] = torch.zeros(1)
    torch.save(nested, tiny / "codec.pth", _use_new_zipfile_serialization=not old_zip)
    assert torch.equal(load_codec(tiny, "cpu", torch.float32).decode(codes), pcm)


def test_same_seed_same_checkpoint(tmp_path: Path, tiny_checkpoint: Path) -> None:
    make_tiny(tmp_path / "again", seed=0)
    for path in tiny_checkpoint.iterdir():
        if path.suffix != ".pth":  # an archive, which carries its own name
            assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name
    make_tiny(tmp_path / "other", seed=1)
    ours, theirs = read_tensors(tiny_checkpoint), read_tensors(tmp_path / "other")
    assert not any(torch.equal(ours[name], theirs[name]) for name in ("lm_head.weight", *ours))


def test_a_setting_changes_only_what_it_must(tmp_path: Path, tiny_checkpoint: Path) -> None:
    make_tiny(tmp_path / "more", settings=[("text_config.num_hidden_layers", 8)])
    few, many = read_tensors(tiny_checkpoint), read_tensors(tmp_path / "more")
    assert all(torch.equal(value.float(), many[name].float()) for name, value in few.items())
    assert read_config(tmp_path / "more").backbone.layer_types.count("full_attention") == 2


SETTINGS: dict[str, Settings] = {
    "codebooks": {"audio_decoder_config.num_codebooks": 10, "audio_decoder_config.vocab_size": 32},
    "pairs": [("audio_decoder_config.shared_enrichment_layers", 1), ("codec.latent", 32)],
    "no codebook for the backbone": {"audio_decoder_config.vq_backbone_codebooks": 0},
    "codes elsewhere": {"semantic_start_token_id": 500, "eos_token_id": 40},
    "eos behind the codes": {"eos_token_id": 400},
    "large vocabulary": {"text_config.vocab_size": 1000},
    "experts by layer": {"text_config.num_experts": [4, 2, 3, 8]},
    "layer types": {
        "text_config.num_hidden_layers": 2,
        "text_config.layer_types": ["full_attention", "linear_attention"],
    },
    "not quantised": {"quantization_config": None},
    "one codebook size": {"codec.codebook_size": 64},
    "codec rates": {"codec.rates": [4, 4, 4, 8], "codec.encoder_rates": [8, 8, 8]},
    "no encoder transformer": {"codec.encoder_transformer": None, "codec.pre": None},
    "window": {"codec.post.window": 5},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings(tmp_path: Path, settings: Settings) -> None:
    make_tiny(tmp_path / "tiny", settings=settings)
    config = read_config(tmp_path / "tiny")
    load_model(tmp_path / "tiny", config, "cpu", torch.float32)
    load_tokenizer(tmp_path / "tiny", config)
    load_codec(tmp_path / "tiny", "cpu", torch.float32)
    written = json.loads((tmp_path / "tiny" / "config.json").read_text())
    written["codec"] = json.loads((tmp_path / "tiny" / "codec_config.json").read_text())
    for key, value in dict(settings).items():
        found = written
        for part in key.split("."):
            found = found[part]
        assert found == value


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"num_hidden_layers": 8}, "did you mean text_config.num_hidden_layers"),
        (
            {"text_config.hidden": 8},
            "unknown key 'text_config.hidden': it is neither in",
        ),
        ({"codec": {}}, "unknown key 'codec'"),
        ({"codec.depth": 8}, "unknown key 'codec.depth'"),
        ({"text_config.hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"text_config.num_hidden_layers": "eight"}, "wrong type"),
        ({"text_config.num_attention_heads": 3}, "num_key_value_heads"),
        ({"text_config.use_qk_norm": 1}, "text_config.use_qk_norm is 1; a bool"),
        ({"text_config.vocab_size": 100}, "vocabulary has 100 tokens"),
        ({"semantic_start_token_id": 10}, "eos_token_id"),
        ({"semantic_start_token_id": 10, "eos_token_id": 9}, "at least 287"),
        ({"text_config.num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"codec.decoder_dim": 24}, "decoder_dim is 24"),
        ({"codec.n_codebooks": 3}, "codebooks"),
        ({"codec.post": None, "codec.post.window": 4}, "codec.post was set to None"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, settings: Settings, part: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(part)):
        make_tiny(tmp_path / "tiny", settings=settings)
    assert not list(tmp_path.glob("tiny/*"))


def test_every_key_is_known_by_its_dotted_name() -> None:
    keys = known_keys()
    assert {"eos_token_id", "text_config.rope_parameters.rope_theta", "codec.post.ffn"} <= set(keys)
    assert len(keys) == len(set(keys))


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    for path in (tmp_path, tmp_path / "mine"):
        with pytest.raises(ConfigError, match="not an empty folder"):
            make_tiny(path)
    with pytest.raises(ConfigError, match="shards is 0"):
        make_tiny(tmp_path / "new", shards=0)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("shape", [(256, 128), (100, 300)])
def test_quantisation_error_is_that_of_fp8(shape: tuple[int, int], exact: bool) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    matrix, scales = quantize_fp8(weight, exact=exact)
    back = dequantize(matrix, scales, torch.float32)
    # Three bits after the leading one; below the smallest normal number the step is absolute.
    step = (scales * 2**-9).repeat_interleave(128, 0).repeat_interleave(128, 1)
    bound = torch.maximum(weight.abs() / 16, step[: shape[0], : shape[1]])
    assert bool(((back - weight).abs() <= bound * 1.001).all())
    if exact:
        assert torch.equal(scales.log2(), scales.log2().round())


def test_logits_are_neither_flat_nor_certain(tiny_checkpoint: Path) -> None:
    """Draws of a random checkpoint depend on what was read, and greedy codes do not get stuck."""
    from rt_drama3.model import StreamState

    config = read_config(tiny_checkpoint)
    model = load_model(tiny_checkpoint, config, "cpu", torch.float32)
    state = StreamState.allocate(config, 1, 64)
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 64, (48, 4), generator=generator)
    rows = torch.cat((codes[:, :1] + config.semantic_start, codes), 1)
    best, hidden = [], []
    for i in range(len(rows)):
        model.prefill(rows[i : i + 1], state, 0, i)
        logits: Tensor = model.head @ state.hidden[0]
        hidden.append(state.hidden[0].clone())
        best.append(int(logits.argmax()))
        assert 1 < logits.std() < 6
        assert 0.02 < torch.softmax(logits, -1).max() < 0.999
    assert len(set(best)) > 16
    assert config.candidates - 1 not in best  # eos
    assert 0.5 < torch.stack(hidden).std() < 2


def test_mlx_audio_reads_it(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """An independent reader of the official layout finds the same numbers in the same places."""
    pytest.importorskip("mlx.core", reason="mlx has no build for this machine")
    pytest.importorskip("mlx_audio", reason="mlx-audio is not installed")
    from mlx_audio.tts.models.fish_drama3.convert import convert

    convert(tiny_checkpoint, tmp_path / "mlx", codec=False)
    theirs = read_tensors(tmp_path / "mlx")
    config = read_config(tiny_checkpoint)
    ours = load_model(tiny_checkpoint, config, "cpu", torch.bfloat16)
    for layer in range(config.backbone.layers):
        mlp = f"backbone.model.layers.{layer}.mlp"
        moe = ours.backbone.layers[layer].moe
        parts = [theirs[f"{mlp}.switch_mlp.{part}_proj.weight"] for part in ("gate", "up")]
        assert torch.equal(moe.gate_up, torch.cat(parts, 1))
        assert torch.equal(moe.down, theirs[f"{mlp}.switch_mlp.down_proj.weight"])
    assert torch.equal(ours.head, theirs["semantic_head.weight"])
    assert torch.equal(ours.codebook_embed, theirs["tower.codebook_embeddings.weight"])
    assert torch.equal(ours.backbone.norm, theirs["backbone.model.norm.weight"])
    assert torch.equal(ours.tower.layers[0].hnorm, theirs["tower.shared_layers.0.hnorm.weight"])
    heads = [theirs[f"tower.codebook_heads.{j}.weight"] for j in range(3)]
    assert torch.equal(ours.tower.heads, torch.stack(heads))
