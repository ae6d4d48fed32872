"""The voice's text tokens, and the config that goes with them.

Text reaches the model as phonemes where a word is in the lexicon and as letters where it is not.
Token numbers of earlier voices stay what they were.
"""
# ruff: noqa: RUF001 - phonemes

from __future__ import annotations

from typing import Any

from training.analysis import PHONES, VOWELS
from training.codebooks import BOOKS, CODES

SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|voice|>",
    "<|text|>",
    "<|interleave|>",
    *(f"<|speaker:{number}|>" for number in range(16)),
]
PHRASES = ["system\n", "convert the provided text to speech", "user\n", "assistant\n", "\n", " "]
LETTERS = "abcdefghijklmnopqrstuvwxyz'"
MARKS = ".,;:!?-"
_UNUSED = "23456789"  # digits are spoken as words
SOUNDS = [  # a phoneme, or a vowel with its stress
    stress + phone for phone in PHONES for stress in (("", "ˈ", "ˌ") if phone in VOWELS else ("",))
]
_LIKE = {"ɐ": "ə"}  # the teacher's sounds that share a token with another
UNKNOWN = "<unk>"
DIRECTIONS = ["fast", "slow"]  # followed when they come first, in brackets

# In tokenizer.json a sound or direction is one character of the private use area.
SOUND_CHARS = {sound: chr(0xE000 + index) for index, sound in enumerate(SOUNDS)}
DIRECTION_CHARS = {name: chr(0xE0F0 + index) for index, name in enumerate(DIRECTIONS)}

TOKENS = [
    *SPECIAL,
    *PHRASES,
    *LETTERS,
    *MARKS,
    *DIRECTION_CHARS.values(),  # where earlier voices had the digits 0 and 1
    *_UNUSED,
    *SOUND_CHARS.values(),
    UNKNOWN,
]
IDS = {token: index for index, token in enumerate(TOKENS)}
TEXT_TOKENS = len(TOKENS)
END = IDS["<|im_end|>"]

SYSTEM = [IDS[token] for token in ("<|im_start|>", "system\n", PHRASES[1], "<|im_end|>", "\n")]
USER = [IDS["<|im_start|>"], IDS["user\n"]]
ANSWER = [IDS[t] for t in ("<|im_end|>", "\n", "<|im_start|>", "assistant\n", "<|voice|>")]
SPACE, NEWLINE = IDS[" "], IDS["\n"]


def split_sounds(phones: str) -> list[tuple[int, int]]:
    """Tokens of a phoneme string, each with how many of its characters it stands for.

    A stress mark joins the vowel after it; unknown characters are -1.
    """
    found = []
    index = 0
    while index < len(phones):
        pair, char = phones[index : index + 2], phones[index]
        token = pair if pair in SOUND_CHARS else _LIKE.get(char, char)
        size = len(token)
        found.append((IDS.get(SOUND_CHARS.get(token, token), -1), size))
        index += size
    return found


def config_json() -> dict[str, Any]:
    """``config.json`` of the nano voice."""
    layers = 8
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 64, "dim": 192, "rope": 1e7, "rotary": 0.25}
    text = {
        "model_type": "fish_omni_text",
        "hidden_size": shape["dim"],
        "num_hidden_layers": layers,
        "layer_types": [
            "full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)
        ],
        "mlp_layer_types": ["moe"] * layers,
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["head_dim"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "shared_expert_intermediate_size": 96,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": shape["rope"],
            "partial_rotary_factor": shape["rotary"],
        },
        "rotary_interleaved": False,
        "use_qk_norm": True,
        "attn_output_gate": True,
        "layernorm_zero_centered_gamma": True,
        "shared_expert_gate": True,
        "tie_word_embeddings": False,
        "vocab_size": TEXT_TOKENS + CODES,
        "attention_bias": False,
    }
    audio = {
        "model_type": "fish_qwen3_audio_decoder",
        "decoder_type": "codebook_mtp_shared",
        "dim": shape["dim"],
        "text_dim": shape["dim"],
        "n_head": shape["heads"],
        "n_local_heads": shape["kv_heads"],
        "head_dim": shape["head_dim"],
        "n_layer": 1,
        "shared_enrichment_layers": 1,
        "num_codebooks": BOOKS,
        "max_seq_len": BOOKS + 1,
        "vocab_size": CODES,
        "intermediate_size": 384,
        "norm_eps": 1e-6,
        "rope_base": shape["rope"],
        "rotary_percent": shape["rotary"],
        "rotary_interleaved": True,
        "attention_qk_norm": False,
        "attention_output_gate": True,
        "layernorm_zero_centered_gamma": True,
        "vq_feature_scope": "all_vq",
        "vq_feature_placement": "backbone_partial",
        "vq_backbone_codebooks": 1,
        "mtp_spec": None,
    }
    return {
        "architectures": ["FishOmniModel"],
        "model_type": "fish_omni",
        "fish_schema_version": 1,
        "speech_template_version": "reference-bracket-v1",
        "semantic_start_token_id": TEXT_TOKENS,
        "semantic_end_token_id": TEXT_TOKENS + CODES - 1,
        "eos_token_id": END,
        "dtype": "bfloat16",
        "text_config": text,
        "audio_decoder_config": audio,
    }
