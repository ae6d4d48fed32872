"""Settings of a tiny random checkpoint: every key of the official config, and what follows them.

A caller changes single keys; the keys that must agree with them (docs/model.md, 1) follow,
unless the caller set those too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rt_drama3.checkpoint.config_files import parse_codec_config, parse_model_config
from rt_drama3.errors import CheckpointError, ConfigError

Settings = Sequence[tuple[str, Any]] | Mapping[str, Any]
JsonObject = dict[str, Any]

_CODEC = "codec"
_PADDING = 128  # the official vocabulary is padded to a multiple of it


def default_config() -> JsonObject:
    """``config.json`` of the default tiny checkpoint, before anything is derived."""
    return {
        "architectures": ["FishOmniModel"],
        "model_type": "fish_omni",
        "fish_schema_version": 1,
        "speech_template_version": "reference-bracket-v1",
        "semantic_start_token_id": None,
        "semantic_end_token_id": None,
        "eos_token_id": None,
        "audio_encoder_config": None,
        "extra_samplable_token_ids": [],
        "dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "bsgemm-moe",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        },
        "text_config": {
            "model_type": "fish_omni_text",
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "layer_types": None,
            "mlp_layer_types": None,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "partial_rotary_factor": 0.25,
            },
            "rotary_interleaved": False,
            "use_qk_norm": True,
            "attn_output_gate": True,
            "layernorm_zero_centered_gamma": True,
            "shared_expert_gate": True,
            "tie_word_embeddings": False,
            "vocab_size": None,
            "max_position_embeddings": 16384,
            "attention_bias": False,
        },
        "audio_decoder_config": {
            "model_type": "fish_qwen3_audio_decoder",
            "decoder_type": "codebook_mtp_shared",
            "dim": None,
            "text_dim": None,
            "n_head": None,
            "n_local_heads": None,
            "head_dim": None,
            "n_layer": None,
            "shared_enrichment_layers": 2,
            "num_codebooks": 4,
            "max_seq_len": None,
            "vocab_size": 64,
            "intermediate_size": 256,
            "norm_eps": 1e-6,
            "rope_base": 1e7,
            "rotary_percent": 0.25,
            # As the official exporter writes them; neither describes the model.
            "rotary_interleaved": True,
            "attention_qk_norm": False,
            "attention_output_gate": True,
            "attention_qkv_bias": False,
            "attention_o_bias": False,
            "layernorm_zero_centered_gamma": True,
            "use_moe": False,
            "mtp_use_swa": False,
            "dropout": 0.0,
            "window_size": None,
            "window_attn_skip_freq": None,
            "window_rotary_base": None,
            "vq_feature_scope": "all_vq",
            "vq_feature_placement": None,
            "vq_backbone_codebooks": 1,
            "mtp_spec": None,
        },
    }


def default_codec() -> JsonObject:
    """``codec_config.json`` of the default tiny checkpoint, before anything is derived."""
    window = {"n_layer": 1, "n_head": 2, "head_dim": 32, "ffn": 128, "window": 16}
    return {
        "sr": 44_100,
        "latent": 64,
        "n_codebooks": None,
        "codebook_size": None,
        "semantic_codebook_size": None,
        "residual_codebook_size": None,
        "codebook_dim": 8,
        "post": {**window, "n_layer": 2},
        "up": [2, 2],
        "decoder_dim": 64,
        "rates": [8, 8, 4, 2],
        "encoder_dim": 4,
        "encoder_rates": [2, 4, 8, 8],
        "encoder_transformer": {**window, "window": 32},
        "pre": window,
        "rope_base": 10_000.0,
        "rope_table_dtype": "bfloat16",
    }


def tiny_config(settings: Settings, base_tokens: int) -> tuple[JsonObject, JsonObject]:
    """The two configs of a tiny checkpoint.

    Args:
        settings: dotted keys of ``config.json`` and their values, as pairs or a mapping; keys of
            ``codec_config.json`` start with ``codec.``.
        base_tokens: tokens of the tokenizer before the semantic ones. Without a setting the last of
            them but one is eos, so that it is not next to the semantic band.

    Returns:
        ``config.json`` and ``codec_config.json``.

    Raises:
        ConfigError: a key does not exist, or a value cannot work.
    """
    config, codec = default_config(), default_codec()
    whole = {**config, _CODEC: codec}
    for key, value in settings.items() if isinstance(settings, Mapping) else settings:
        _set(whole, key, value)
    config = {key: value for key, value in whole.items() if key != _CODEC}
    codec = whole[_CODEC]
    try:
        _derive(config, codec, base_tokens)
        parse_model_config(config)
        parse_codec_config(codec)
    except CheckpointError as error:
        raise ConfigError(f"These settings give no valid checkpoint: {error}") from error
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"These settings give no valid checkpoint: a value has the wrong type ({error})."
        ) from error
    return config, codec


def known_keys() -> list[str]:
    """Every dotted key that can be set."""
    return list(_dotted({**default_config(), _CODEC: default_codec()}))


def _dotted(values: JsonObject, prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")


def _set(values: JsonObject, dotted: str, value: Any) -> None:
    if dotted not in known_keys() or dotted == _CODEC:
        near = [key for key in known_keys() if key.endswith(dotted.rpartition(".")[2])]
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(
            f"unknown key {dotted!r}: it is neither in config.json nor, with the prefix 'codec.', "
            f"in codec_config.json{hint}"
        )
    *path, last = dotted.split(".")
    for number, part in enumerate(path):
        values = values[part]
        if not isinstance(values, dict):
            raise ConfigError(
                f"{dotted!r} cannot be set: {'.'.join(path[: number + 1])} was set to {values!r}."
            )
    before = values[last]
    if isinstance(before, bool) != isinstance(value, bool) and before is not None:
        raise ConfigError(f"{dotted} is {value!r}; a {type(before).__name__} is needed.")
    values[last] = value


def _derive(config: JsonObject, codec: JsonObject, base_tokens: int) -> None:
    """Fills the keys that are None with what the others ask for."""
    text, audio = config["text_config"], config["audio_decoder_config"]
    layers, codes = text["num_hidden_layers"], audio["vocab_size"]
    every = "linear_attention", "linear_attention", "linear_attention", "full_attention"
    _default(text, "layer_types", [every[i % 4] for i in range(layers)])
    _default(text, "mlp_layer_types", ["moe"] * layers)
    _default(audio, "dim", text["hidden_size"])
    _default(audio, "text_dim", text["hidden_size"])
    _default(audio, "n_head", text["num_attention_heads"])
    _default(audio, "n_local_heads", text["num_key_value_heads"])
    _default(audio, "head_dim", text["head_dim"])
    _default(audio, "n_layer", audio["shared_enrichment_layers"])
    _default(audio, "max_seq_len", audio["num_codebooks"] + 1)
    placed = audio["vq_backbone_codebooks"]
    placement = "backbone_partial" if placed else "mtp_shared_pre"
    _default(audio, "vq_feature_placement", placement)
    _default(config, "semantic_start_token_id", base_tokens)
    start = config["semantic_start_token_id"]
    _default(config, "semantic_end_token_id", start + codes - 1)
    _default(config, "eos_token_id", min(start, base_tokens) - 2)
    tokens = max(base_tokens, config["semantic_end_token_id"] + 1, config["eos_token_id"] + 1)
    _default(text, "vocab_size", -(-tokens // _PADDING) * _PADDING)
    if codec["codebook_size"] is None:
        del codec["codebook_size"]
        # Smaller than the tower's heads, as the official ones are: the codec has to clamp.
        _default(codec, "residual_codebook_size", max(2, codes // 4))
    else:
        _default(codec, "residual_codebook_size", codec["codebook_size"])
    _default(codec, "n_codebooks", audio["num_codebooks"])
    _default(codec, "semantic_codebook_size", codes)


def _default(values: JsonObject, key: str, value: Any) -> None:
    if values[key] is None:
        values[key] = value
