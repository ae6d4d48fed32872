"""The tokenizer of a tiny checkpoint: byte-level BPE like the official one, with few merges.

Any text has tokens, every special token is one, and some merges reach across a line break, so that
text joined before tokenising has other tokens than its segments (docs/model.md, 6).
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rt_drama3.checkpoint.files import TOKENIZER
from rt_drama3.checkpoint.tokenizer import (
    IM_END,
    IM_START,
    SPEAKER_TOKENS,
    STRUCTURAL,
    semantic_token,
)
from rt_drama3.errors import ConfigError

AUDIO_PAD = "<|audio_pad|>"  # strict readers insist on it; the template has no use for it

# In the alphabet of byte-level BPE, where Ġ is a space and Ċ a line break.
_MERGES = (
    ("t", "h"),
    ("th", "e"),
    ("i", "n"),
    ("e", "r"),
    ("a", "n"),
    ("Ġ", "the"),
    (":", "Ċ"),
    ("Ċ", "Ċ"),
    ("Ċ", "c"),
)


def base_vocabulary() -> list[str]:
    """Bytes, merges and special tokens, without eos and the semantic tokens, in order of id."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["".join(pair) for pair in _MERGES]
    special = [token for token in STRUCTURAL if token != IM_END]
    return [*alphabet, *merged, *special, *SPEAKER_TOKENS, AUDIO_PAD]


def base_tokens() -> int:
    """Tokens before the semantic ones, eos included; without a setting one stands after eos."""
    return len(base_vocabulary()) + 1


def write_tokenizer(directory: Path, *, start: int, codes: int, eos: int) -> int:
    """Writes ``tokenizer.json`` and the small files that accompany the official one.

    Args:
        directory: where.
        start: id of the first semantic token.
        codes: number of semantic tokens.
        eos: id of ``<|im_end|>``.

    Returns:
        The id of ``<|audio_pad|>``.

    Raises:
        ConfigError: the other tokens find no place before and between them.
    """
    vocabulary = {semantic_token(code): start + code for code in range(codes)}
    vocabulary[IM_END] = eos
    taken = set(vocabulary.values())
    end = max(taken) + 1
    free = [i for i in range(end) if i not in taken]
    base = base_vocabulary()
    if len(free) < len(base):
        raise ConfigError(
            f"semantic_start_token_id is {start} and eos_token_id {eos}, which leaves {len(free)} "
            f"ids for the other {len(base)} tokens; set semantic_start_token_id to at least "
            f"{base_tokens()}."
        )
    vocabulary.update(zip(base, free, strict=False))
    # An id without a token would be dropped, and the later ones moved, by some readers.
    reserved = {f"<|reserved:{i}|>": i for i in free[len(base) :]}
    tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, **reserved}, merges=list(_MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        *STRUCTURAL,
        *SPEAKER_TOKENS,
        AUDIO_PAD,
        *reserved,
        *(semantic_token(code) for code in range(codes)),
    ]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    tokenizer.save(str(directory / TOKENIZER))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": IM_END}
    _write_json(directory / "tokenizer_config.json", settings)
    named = {"eos_token": IM_END, "additional_special_tokens": [IM_START, IM_END]}
    _write_json(directory / "special_tokens_map.json", named)
    # Strict readers insist on the file, which has no part in speech (docs/model.md, 6).
    (directory / "chat_template.jinja").write_text("", encoding="utf-8")
    return vocabulary[AUDIO_PAD]


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
