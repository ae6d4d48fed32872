"""The tokenizer is the one that the config means."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rt_drama3.checkpoint import load_tokenizer, make_tiny, read_config, resolve
from rt_drama3.checkpoint.tokenizer import SPEAKER_TOKENS, STRUCTURAL
from rt_drama3.errors import CheckpointError
from tests.checkpoint.conftest import edit_json


def test_special_tokens_are_one_token_each(tiny_checkpoint: Path) -> None:
    config = read_config(tiny_checkpoint)
    tokenizer = load_tokenizer(tiny_checkpoint, config)
    ids = [tokenizer.encode(token).ids for token in (*STRUCTURAL, *SPEAKER_TOKENS)]
    assert all(len(i) == 1 for i in ids)
    assert len({i[0] for i in ids}) == 21
    assert tokenizer.encode("<|im_end|>").ids == [config.eos]
    semantic = "".join(f"<|semantic:{code}|>" for code in range(64))
    expected = list(range(config.semantic_start, config.semantic_end + 1))
    assert tokenizer.encode(semantic).ids == expected


@pytest.mark.parametrize(
    "text", ["", "Hello.", "héllo 🙂", "\x00\u202e\ud7a3\U0010ffff", "<|nonsense|>", "x" * 20_000]
)
def test_any_text_survives(tiny_checkpoint: Path, text: str) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint, read_config(tiny_checkpoint))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_joined_segments_have_other_tokens(tiny_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(tiny_checkpoint, read_config(tiny_checkpoint))
    before, after = "reference to the following:", "\n\n[Reference 1]"
    apart = tokenizer.encode(before).ids + tokenizer.encode(after).ids
    assert tokenizer.encode(before + after).ids != apart


def test_nano() -> None:
    nano = resolve("nano")
    tokenizer = load_tokenizer(nano, read_config(nano))
    assert len(tokenizer.encode("<|im_start|>system\n").ids) == 2


def test_truncation_and_padding_are_off(tiny: Path) -> None:
    limits = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    edit_json(tiny / "tokenizer.json", lambda t: t.update(truncation=limits, padding=padding))
    tokenizer = load_tokenizer(tiny, read_config(tiny))
    assert len(tokenizer.encode("zzzzzzzz").ids) == 8


def _move(token: str, to: int) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        vocabulary = values["model"]["vocab"]
        other = next(name for name, i in vocabulary.items() if i == to)
        vocabulary[other], vocabulary[token] = vocabulary[token], to
        for added in values["added_tokens"]:
            added["id"] = vocabulary[added["content"]]

    return change


def _rename(token: str) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        vocabulary = values["model"]["vocab"]
        vocabulary["<|other|>"] = vocabulary.pop(token)
        for added in values["added_tokens"]:
            if added["content"] == token:
                added["content"] = "<|other|>"

    return change


def _plain(token: str) -> Callable[[dict[str, Any]], None]:
    """Leaves a token in the vocabulary, but text of that name is split into bytes."""

    def change(values: dict[str, Any]) -> None:
        values["added_tokens"] = [a for a in values["added_tokens"] if a["content"] != token]

    return change


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (_move("<|semantic:0|>", 280), "<|semantic:0|> is 280 instead of"),
        (_move("<|semantic:63|>", 281), "<|semantic:63|> is 281 instead of"),
        (_move("<|semantic:7|>", 282), "<|semantic:7|> is 282 instead of"),
        (_move("<|im_end|>", 283), "<|im_end|> is 283 instead of"),
        (_rename("<|im_start|>"), "<|im_start|> is missing"),
        (_rename("<|interleave|>"), "<|interleave|> is missing"),
        (_rename("<|speaker:15|>"), "<|speaker:15|> is missing"),
        (_rename("<|semantic:33|>"), "<|semantic:33|> is missing"),
        (_plain("<|voice|>"), "<|voice|> is encoded as"),
    ],
)
def test_tokenizer_that_disagrees(
    tiny: Path, change: Callable[[dict[str, Any]], None], part: str
) -> None:
    edit_json(tiny / "tokenizer.json", change)
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(tiny, read_config(tiny))
    assert part in str(caught.value)
    assert "tokenizer.json" in str(caught.value)


def test_tokenizer_with_more_tokens_than_the_vocabulary(tiny: Path) -> None:
    config = read_config(tiny)
    small = replace(config, backbone=replace(config.backbone, vocab_size=config.semantic_end))
    with pytest.raises(CheckpointError, match=rf"is {config.semantic_end}, but vocab_size is"):
        load_tokenizer(tiny, small)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"model": 7}', json.dumps({"version": "1.0"})])
def test_damaged_file(tiny: Path, text: str) -> None:
    (tiny / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(tiny, read_config(tiny))


def test_missing_file(tiny: Path) -> None:
    (tiny / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        load_tokenizer(tiny, read_config(tiny))


def test_tokenizer_of_another_checkpoint(tiny: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path / "other", settings={"semantic_start_token_id": 300}, codec="none")
    with pytest.raises(CheckpointError, match=r"<\|semantic:0\|> is 300 instead of"):
        load_tokenizer(tmp_path / "other", read_config(tiny))
