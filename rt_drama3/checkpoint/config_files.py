"""Reads a checkpoint's JSON files into the classes of ``config``, and checks every value.

A value that ``model/`` or ``codec/`` does not implement is refused here, by name, so that no
checkpoint loads and silently computes something else. No torch in this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rt_drama3.config import (
    BackboneConfig,
    CodecConfig,
    ModelConfig,
    SamplingConfig,
    SegmentConfig,
    TowerConfig,
    VoiceConfig,
    WindowTransformerConfig,
)
from rt_drama3.errors import CheckpointError

JsonDict = Mapping[str, Any]
SHORTEST_SEGMENT = 64  # bytes; a segment must hold a speaker tag and some words


def _fail(where: str, key: str, value: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: {key} is {value!r}, but {wanted}. "
        "The checkpoint is damaged or of a kind that this version does not support."
    )


class _Section:
    """One JSON object with typed access; errors name the object, the key and the value."""

    def __init__(self, values: object, where: str) -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{where} must be a JSON object, not {type(values).__name__}.")
        self.values: JsonDict = values
        self.where = where

    def fail(self, key: str, wanted: str) -> CheckpointError:
        return _fail(self.where, key, self.values.get(key), wanted)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.fail(key, f"an integer of at least {minimum} is needed")
        return value

    def number(self, key: str, default: float | None = None, *, minimum: float = 0.0) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(key, "a number is needed")
        if not math.isfinite(value) or value < minimum:
            raise self.fail(key, f"a finite number of at least {minimum} is needed")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false is needed")
        return value

    def equals(self, key: str, *allowed: object, default: object = ...) -> None:
        value = self.values.get(key, allowed[0] if default is ... else default)
        if not any(value == a and isinstance(value, bool) == isinstance(a, bool) for a in allowed):
            raise self.fail(key, f"only {', '.join(map(repr, allowed))} is supported")

    def choice(self, key: str, *allowed: str) -> str:
        """One of some strings; without the key, the first of them."""
        self.equals(key, *allowed)
        return str(self.values.get(key, allowed[0]))

    def sizes(self, key: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        value = self.values.get(key, default)
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise self.fail(key, "a non-empty list of integers is needed")
        if any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in value):
            raise self.fail(key, "a list of positive integers is needed")
        return tuple(value)

    def only(self, *known: str) -> None:
        """Refuses unknown keys: a misspelt one would silently have no effect."""
        for key in self.values:
            if key not in known:
                raise CheckpointError(
                    f"{self.where}: unknown key {key!r}; the known keys are {', '.join(known)}."
                )

    def section(self, key: str) -> _Section:
        return _Section(self.values.get(key), f"{self.where}.{key}")


def _rotary_dim(section: _Section, key: str, head_dim: int) -> int:
    share = section.number(key, 0.25)
    size = int(head_dim * share)
    if not 0 < size <= head_dim or size % 2:
        raise section.fail(key, f"it must give an even number of 2..{head_dim} rotary dims")
    return size


def _backbone(text: _Section) -> BackboneConfig:
    text.equals("model_type", "fish_omni_text", "qwen3_5_moe_text")
    text.equals("hidden_act", "silu")
    text.equals("rotary_interleaved", False)
    text.equals("tie_word_embeddings", False)
    text.equals("attention_bias", False)
    for key in ("use_qk_norm", "attn_output_gate", "layernorm_zero_centered_gamma"):
        text.equals(key, True)
    text.equals("shared_expert_gate", True)
    layers = text.integer("num_hidden_layers")
    types = text.values.get("layer_types")
    if not isinstance(types, Sequence) or len(types) != layers:
        raise text.fail("layer_types", f"a list of {layers} layer types is needed")
    for i, kind in enumerate(types):
        if kind not in ("linear_attention", "full_attention"):
            raise _fail(text.where, f"layer_types[{i}]", kind, "linear or full attention is needed")
    mlp_types = text.values.get("mlp_layer_types", ["moe"] * layers)
    if list(mlp_types) != ["moe"] * layers:
        raise text.fail("mlp_layer_types", f"{layers} times 'moe' is needed")
    experts = text.values.get("num_experts")
    per_layer = text.sizes("num_experts") if isinstance(experts, list | tuple) else None
    if per_layer is None:
        per_layer = (text.integer("num_experts"),) * layers
    if len(per_layer) != layers:
        raise text.fail("num_experts", f"one count or a list of {layers} counts is needed")
    top = text.integer("num_experts_per_tok")  # or all, in a layer that has fewer
    if top > max(per_layer):
        raise text.fail("num_experts_per_tok", f"at most {max(per_layer)} experts exist")
    heads, kv = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    if heads % kv:
        raise text.fail("num_key_value_heads", f"it must divide the {heads} attention heads")
    key_heads = text.integer("linear_num_key_heads")
    value_heads = text.integer("linear_num_value_heads")
    if value_heads % key_heads:
        raise text.fail("linear_num_key_heads", f"it must divide the {value_heads} value heads")
    head_dim = text.integer("head_dim")
    rope = text.section("rope_parameters")
    rope.equals("rope_type", "default")
    if rope.values.get("mrope_section") is not None:
        raise rope.fail("mrope_section", "multi-axis rotary positions are not supported")
    positions = text.values.get("max_position_embeddings")
    return BackboneConfig(
        hidden_size=text.integer("hidden_size"),
        layer_types=tuple(types),
        heads=heads,
        kv_heads=kv,
        head_dim=head_dim,
        rotary_dim=_rotary_dim(rope, "partial_rotary_factor", head_dim),
        rope_base=rope.number("rope_theta", minimum=1.0),
        experts=per_layer,
        experts_per_token=top,
        expert_ffn=text.integer("moe_intermediate_size"),
        shared_expert_ffn=text.integer("shared_expert_intermediate_size"),
        linear_key_heads=key_heads,
        linear_value_heads=value_heads,
        linear_key_dim=text.integer("linear_key_head_dim"),
        linear_value_dim=text.integer("linear_value_head_dim"),
        conv_kernel=text.integer("linear_conv_kernel_dim", minimum=2),
        norm_eps=text.number("rms_norm_eps", 1e-6),
        vocab_size=text.integer("vocab_size"),
        max_positions=None
        if positions is None
        else text.integer("max_position_embeddings", minimum=16),
    )


def _tower(audio: _Section, backbone: BackboneConfig) -> TowerConfig:
    audio.equals("model_type", "fish_qwen3_audio_decoder")
    audio.equals("decoder_type", "codebook_mtp_shared")
    # rotary_interleaved and attention_qk_norm are stored by the exporter but do not describe the
    # model: its rotation is always interleaved, q/k norms always apply (docs/model.md, 1.3).
    audio.equals("attention_output_gate", True)
    audio.equals("layernorm_zero_centered_gamma", True)
    for key in ("attention_qkv_bias", "attention_o_bias", "use_moe", "mtp_use_swa"):
        audio.equals(key, False)
    audio.equals("dropout", 0.0, 0)
    for key in ("window_size", "window_attn_skip_freq", "window_rotary_base"):
        audio.equals(key, None)
    audio.equals("vq_feature_scope", "all_vq")
    dim = audio.integer("dim")
    for key, value in (
        ("dim", backbone.hidden_size),
        ("text_dim", backbone.hidden_size),
        ("n_head", backbone.heads),
        ("n_local_heads", backbone.kv_heads),
        ("head_dim", backbone.head_dim),
    ):
        if audio.integer(key, dim if key == "text_dim" else None) != value:
            raise audio.fail(key, f"it must equal the backbone's {value}")
    codebooks = audio.integer("num_codebooks", minimum=2)
    if audio.integer("max_seq_len", codebooks + 1) != codebooks + 1:
        raise audio.fail("max_seq_len", f"it must be num_codebooks + 1 = {codebooks + 1}")
    shared = audio.integer("shared_enrichment_layers")
    if audio.integer("n_layer", shared) != shared:
        raise audio.fail("n_layer", f"it must equal shared_enrichment_layers = {shared}")
    placed = audio.integer("vq_backbone_codebooks", minimum=0)
    audio.equals("vq_feature_placement", "backbone_partial", "mtp_shared_pre", default=None)
    placement = audio.values["vq_feature_placement"]
    if placement == "backbone_partial" and not 1 <= placed < codebooks:
        raise audio.fail("vq_backbone_codebooks", f"backbone_partial needs 1..{codebooks - 1}")
    if placement == "mtp_shared_pre" and placed != 0:
        raise audio.fail("vq_backbone_codebooks", "mtp_shared_pre needs 0")
    mtp = audio.values.get("mtp_spec")
    if mtp is not None:
        spec = audio.section("mtp_spec")
        spec.equals("attention_variant", "full_attention")
        for key in spec.values:
            if key == "num_experts" or key.startswith("moe_"):
                raise spec.fail(key, "a tower with experts is not supported")
    return TowerConfig(
        dim=dim,
        heads=backbone.heads,
        kv_heads=backbone.kv_heads,
        head_dim=backbone.head_dim,
        rotary_dim=_rotary_dim(audio, "rotary_percent", backbone.head_dim),
        rope_base=audio.number("rope_base", 1e7, minimum=1.0),
        shared_layers=shared,
        num_codebooks=codebooks,
        codebook_size=audio.integer("vocab_size"),
        ffn=audio.integer("intermediate_size"),
        norm_eps=audio.number("norm_eps", 1e-6),
        backbone_codebooks=placed,
    )


def parse_model_config(values: object, where: str = "config.json") -> ModelConfig:
    """Reads and checks the parsed ``config.json`` of a checkpoint.

    Raises:
        CheckpointError: a key is missing or has a value that is not supported.
    """
    top = _Section(values, where)
    architectures = top.values.get("architectures", ["FishOmniModel"])
    if architectures != ["FishOmniModel"]:
        raise top.fail("architectures", "['FishOmniModel'] is needed")
    if top.values.get("ct2_layout_version") is not None:
        raise top.fail(
            "ct2_layout_version", "CTranslate2's layout is not supported; use another form"
        )
    top.equals("model_type", "fish_omni", "fish_drama3")  # the second is mlx-audio's
    top.equals("fish_schema_version", 1)
    top.equals("speech_template_version", "reference-bracket-v1")
    if top.values.get("audio_encoder_config"):
        raise top.fail("audio_encoder_config", "an audio encoder is not supported")
    if top.values.get("extra_samplable_token_ids"):
        raise top.fail("extra_samplable_token_ids", "extra tokens are not supported")
    backbone = _backbone(top.section("text_config"))
    tower = _tower(top.section("audio_decoder_config"), backbone)
    start = top.integer("semantic_start_token_id", minimum=0)
    end = top.integer("semantic_end_token_id", minimum=0)
    eos = top.integer("eos_token_id", minimum=0)
    if end - start + 1 != tower.codebook_size:
        raise top.fail(
            "semantic_end_token_id", f"start + {tower.codebook_size} - 1 codes is needed"
        )
    if start <= eos <= end:
        raise top.fail("eos_token_id", f"it must lie outside the semantic band {start}..{end}")
    dtype_key = "dtype" if "dtype" in top.values else "torch_dtype"
    for key, value in (("semantic_end_token_id", end), ("eos_token_id", eos)):
        if value >= backbone.vocab_size:
            raise top.fail(key, f"the vocabulary has {backbone.vocab_size} tokens")
    return ModelConfig(
        backbone=backbone,
        tower=tower,
        semantic_start=start,
        semantic_end=end,
        eos=eos,
        dtype=top.choice(dtype_key, "bfloat16", "float16", "float32"),
        fp8_experts=_fp8(top),
    )


def _fp8(top: _Section) -> bool:
    if top.values.get("quantization_config") is None:
        return False
    quant = top.section("quantization_config")
    if quant.values.get("quant_method") not in ("bsgemm-moe", "fp8"):
        return False  # it depends on the tensors
    quant.equals("activation_scheme", "dynamic")
    quant.equals("weight_block_size", [128, 128])
    return True


def _window(section: _Section, key: str) -> WindowTransformerConfig:
    part = section.section(key)
    part.only("n_layer", "n_head", "head_dim", "ffn", "window")
    return WindowTransformerConfig(
        layers=part.integer("n_layer"),
        heads=part.integer("n_head"),
        head_dim=part.integer("head_dim", minimum=2),
        ffn=part.integer("ffn"),
        window=part.integer("window"),
    )


_CODEC_KEYS = (
    *("sr", "latent", "n_codebooks", "codebook_size", "semantic_codebook_size"),
    *("residual_codebook_size", "codebook_dim", "post", "pre", "encoder_transformer", "up"),
    *("decoder_dim", "rates", "encoder_dim", "encoder_rates", "rope_base", "rope_table_dtype"),
)


def parse_codec_config(values: object, where: str = "codec_config.json") -> CodecConfig:
    """Reads ``codec_config.json``; absent keys keep the official codec's values.

    ``pre`` and ``encoder_transformer`` may be null for an encode half without them.

    Raises:
        CheckpointError: a key is unknown, or a value has the wrong type or is invalid.
    """
    top = _Section(values, where)
    top.only(*_CODEC_KEYS)
    base = CodecConfig()
    size = top.values.get("codebook_size")
    common = base.semantic_codebook_size if size is None else top.integer("codebook_size")
    residual = base.residual_codebook_size if size is None else common
    optional: dict[str, WindowTransformerConfig | None] = {}
    for key in ("pre", "encoder_transformer"):
        if key in top.values:
            optional[key] = None if top.values[key] is None else _window(top, key)
    return replace(
        base,
        sample_rate=top.integer("sr", base.sample_rate, minimum=8000),
        latent=top.integer("latent", base.latent),
        num_codebooks=top.integer("n_codebooks", base.num_codebooks, minimum=2),
        semantic_codebook_size=top.integer("semantic_codebook_size", common),
        residual_codebook_size=top.integer("residual_codebook_size", residual),
        codebook_dim=top.integer("codebook_dim", base.codebook_dim),
        post=_window(top, "post") if "post" in top.values else base.post,
        upsample=top.sizes("up", base.upsample),
        decoder_dim=top.integer("decoder_dim", base.decoder_dim),
        decoder_rates=top.sizes("rates", base.decoder_rates),
        encoder_dim=top.integer("encoder_dim", base.encoder_dim),
        encoder_rates=top.sizes("encoder_rates", base.encoder_rates),
        rope_base=top.number("rope_base", base.rope_base, minimum=1.0),
        rope_table_dtype=top.choice("rope_table_dtype", base.rope_table_dtype, "float32"),
        encoder_transformer=optional.get("encoder_transformer", base.encoder_transformer),
        pre=optional.get("pre", base.pre),
    )


def parse_voice_config(values: object, where: str = "generation_config.json") -> VoiceConfig:
    """Reads how a checkpoint speaks; absent keys keep the defaults.

    Without ``head_temperature`` the heads use the main temperature.

    Raises:
        CheckpointError: a value has the wrong type or is out of range.
    """
    top = _Section(values, where)
    base, segments = SamplingConfig(), SegmentConfig()
    temperature = top.number("temperature", base.temperature)
    sampling = SamplingConfig(
        temperature=temperature,
        head_temperature=top.number("head_temperature", temperature),
        top_p=_probability(top, "top_p", base.top_p),
        top_k=None if top.values.get("top_k") is None else top.integer("top_k"),
        head_top_k=min(top.integer("head_top_k", base.head_top_k), base.head_top_k),
        repetition_aware=top.flag("repetition_aware", base.repetition_aware),
        ras_temperature=top.number("ras_temperature", base.ras_temperature),
        ras_top_k=min(top.integer("ras_top_k", base.ras_top_k), base.ras_top_k),
        ras_top_p=_probability(top, "ras_top_p", base.ras_top_p),
    )
    longest = top.integer("piece_bytes", segments.longest, minimum=SHORTEST_SEGMENT)
    return VoiceConfig(
        sampling=sampling,
        segments=SegmentConfig(longest, top.flag("remembers_pieces", segments.remembered)),
        fixed_voice=top.flag("fixed_voice", False),
        reads_directions=top.flag("reads_directions", True),
        normalizes=top.flag("normalize_text", False),
    )


def _probability(top: _Section, key: str, default: float) -> float:
    value = top.number(key, default)
    if not 0.0 < value <= 1.0:
        raise top.fail(key, "a probability above 0 and up to 1 is needed")
    return value
