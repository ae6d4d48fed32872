"""The prompt's rows: built twice (by hand, by the oracle), its checks of codes, its limits."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tokenizers import Tokenizer

from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.config import ModelConfig
from rt_drama3.errors import RequestError
from rt_drama3.text.prompt import PromptBuilder, check_codes

NANO = files("rt_drama3") / "voices" / "nano"
BOOKS, SIZE = 5, 512


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str((NANO / "tokenizer.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return parse_model_config(json.loads((NANO / "config.json").read_text("utf-8")))


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer, config: ModelConfig) -> PromptBuilder:
    return PromptBuilder(tokenizer, config)


def codes(frames: int, seed: int = 0) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, SIZE, (BOOKS, frames))


def rows_of(tokenizer: Tokenizer, *parts: str | npt.NDArray[np.int64]) -> list[list[int]]:
    """Rows of a prompt's parts, the slow and obvious way."""
    rows = []
    for part in parts:
        if isinstance(part, str):
            rows += [[token, *[0] * BOOKS] for token in tokenizer.encode(part).ids]
        else:
            for frame in part.T.tolist():
                semantic = tokenizer.token_to_id(f"<|semantic:{frame[0]}|>")
                rows.append([semantic, *frame])
    return rows


END, USER, VOICE = "<|im_end|>\n", "<|im_start|>user\n", "<|im_start|>assistant\n<|voice|>"
SYSTEM = ("<|im_start|>system\n", "convert the provided text to speech", END)


def test_text_alone(prompts: PromptBuilder, tokenizer: Tokenizer) -> None:
    prompt = prompts.build("Hello there.")
    expected = rows_of(tokenizer, *SYSTEM, USER, "<|speaker:0|> Hello there.", END, VOICE)
    assert prompt.rows.tolist() == expected
    assert prompt.rows.dtype == np.int64
    assert prompt.rows.shape[1] == 1 + BOOKS
    assert prompt.system_rows == len(rows_of(tokenizer, *SYSTEM))


def test_references_and_history(prompts: PromptBuilder, tokenizer: Tokenizer) -> None:
    first, second, earlier = codes(3, 1), codes(7, 2), codes(4, 3)
    prompt = prompts.build(
        "<|speaker:1|> Now.",
        references=[("One two.", first), ("  <|speaker:1|> Three.", second)],
        history=[("Before.", earlier)],
    )
    system = (
        "<|im_start|>system\n",
        "convert the provided text to speech reference to the following:",
        "\n\n[Reference 1]\nText: <|speaker:0|> One two.\nSpeech: ",
        first,
        "\n\n[Reference 2]\nText: <|speaker:1|>   Three.\nSpeech: ",
        second,
        END,
    )
    turn = (USER, "<|speaker:0|> Before.", END, VOICE, earlier, END)
    target = (USER, "<|speaker:1|> Now.", END, VOICE)
    assert prompt.rows.tolist() == rows_of(tokenizer, *system, *turn, *target)
    assert prompt.system_rows == len(rows_of(tokenizer, *system))


def test_parts_are_tokenised_separately(config: ModelConfig) -> None:
    seen = []

    class Recorder:
        def encode(self, sequence: str, /) -> SimpleNamespace:
            seen.append(sequence)
            return SimpleNamespace(ids=[7] * len(sequence))

    builder = PromptBuilder(Recorder(), config)
    assert set(seen) >= {*SYSTEM, USER, VOICE}
    seen.clear()
    builder.build("Hi.", history=[("Ho.", codes(2))])
    assert seen == ["<|speaker:0|> Ho.", "<|speaker:0|> Hi."]  # the rest is constant


def test_system_block_depends_only_on_references(prompts: PromptBuilder) -> None:
    voice = [("One two.", codes(30))]
    one = prompts.build("Hello.", voice)
    two = prompts.build("Good bye, my dear.", voice, [("Before.", codes(5))])
    assert one.system_rows == two.system_rows
    assert np.array_equal(one.rows[: one.system_rows], two.rows[: two.system_rows])


def test_line_breaks_cannot_end_a_turn(prompts: PromptBuilder) -> None:
    flat = prompts.build("a b", [("c d", codes(2))], [("e f", codes(3))])
    broken = prompts.build("a\nb\n", [("c\r\n d", codes(2))], [("\ne\u2028f", codes(3))])
    assert np.array_equal(flat.rows, broken.rows)


def test_speaker_turns_keep_their_line_breaks(prompts: PromptBuilder, tokenizer: Tokenizer) -> None:
    text = "<|speaker:0|> Hi.\n<|speaker:1|> Ho."
    expected = rows_of(tokenizer, *SYSTEM, USER, text, END, VOICE)
    assert prompts.build(text).rows.tolist() == expected


def test_the_oracle_builds_the_same_rows(
    prompts: PromptBuilder, tokenizer: Tokenizer, config: ModelConfig
) -> None:
    mx = pytest.importorskip("mlx.core")
    oracle = pytest.importorskip("mlx_audio.tts.models.fish_drama3.drama3").Model
    model = SimpleNamespace(
        tokenizer=tokenizer,
        tower=SimpleNamespace(vocab_size=SIZE),
        num_codebooks=BOOKS,
        semantic_begin=config.semantic_start,
    )
    model._check_codes = MethodType(oracle._check_codes, model)
    voices = [("One.", codes(9, 1)), (" \u3000<|speaker:2|> Two!", codes(4, 2))]
    turns = [("Before.", codes(6, 3)), ("<|speaker:2|> And\n<|speaker:1|>then.", codes(1, 4))]
    for text in (
        "Hello there.",
        "<|speaker:15|> x [laughs]",
        "  \u00e4 <b>\u6f22</b> 42 \U0001f600 ",
    ):
        for references in ([], voices[:1], voices):
            for history in ([], turns):
                asked = [[(t, mx.array(c)) for t, c in part] for part in (references, history)]
                rows, system_rows = oracle.build_frames(model, *asked, text)
                prompt = prompts.build(text, references, history)
                assert np.array_equal(prompt.rows, np.array(rows))
                assert prompt.system_rows == system_rows


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"text": "a <|im_end|>"}, "text contains"),
        ({"text": " "}, "text is empty"),
        ({"text": "a", "references": [("", codes(2))]}, "transcript of reference 1 is empty"),
        ({"text": "a", "references": [("a", codes(0))]}, "reference 1: the codes are empty"),
        ({"text": "a", "history": [("a", codes(1)), ("<|voice|>", codes(1))]}, "text of history 2"),
        ({"text": "a", "history": [("a", codes(2)[:4])]}, r"history 1: .*\(4, 2\).*\[5, frames\]"),
    ],
)
def test_bad_parts_are_named(prompts: PromptBuilder, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        prompts.build(**arguments)


def test_a_prompt_longer_than_the_limit_is_refused(prompts: PromptBuilder) -> None:
    whole = prompts.build("Hello.", [("One.", codes(50))])
    rows = len(whole.rows)
    fits = prompts.build("Hello.", [("One.", codes(50))], max_rows=rows)
    assert np.array_equal(fits.rows, whole.rows)
    with pytest.raises(
        RequestError, match=rf"{rows} rows .*references {whole.system_rows}.*{rows - 1}"
    ):
        prompts.build("Hello.", [("One.", codes(50))], max_rows=rows - 1)


@pytest.mark.parametrize(
    "given",
    [
        codes(6),
        codes(6).astype(np.uint16),
        codes(6).astype(">i4"),
        codes(6).tolist(),
        torch.from_numpy(codes(6)),
        torch.from_numpy(codes(6).astype(np.int32)),
        np.asfortranarray(codes(6)),
    ],
)
def test_any_integers_are_codes(given: npt.ArrayLike, config: ModelConfig) -> None:
    found = check_codes(given, config)
    assert found.dtype == np.int64
    assert np.array_equal(found, codes(6))


def test_codes_are_copied(config: ModelConfig) -> None:
    given = codes(3)
    check_codes(given, config)[:] = 0
    assert given.any()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (np.zeros((BOOKS, 2), np.float32), "float32"),
        (np.zeros((BOOKS, 2), bool), "bool"),
        (np.zeros((BOOKS, 2), object), "object"),
        ([["a"]] * BOOKS, "U1"),
        (np.zeros((BOOKS + 1, 2), int), r"\(6, 2\)"),
        (np.zeros((1, BOOKS, 2), int), r"\(1, 5, 2\)"),
        (np.zeros(BOOKS, int), r"\(5,\)"),
        (7, r"\(\)"),
        (None, r"\(\)"),
        (np.zeros((BOOKS, 0), int), "empty"),
        ([[1, 2], [3]], "not an array"),
        (torch.zeros(BOOKS, 2, dtype=torch.int64, device="meta"), "not an array in host memory"),
        (torch.zeros(BOOKS, 2, requires_grad=True), "not an array in host memory"),
        ([[0, 0]] * 3 + [[0, SIZE]] + [[0, 0]], "codebook 3, frame 1 is 512.* 0 to 511"),
        ([[0, -1]] + [[0, 0]] * 4, "codebook 0, frame 1 is -1"),
        (np.full((BOOKS, 1), 2**64 - 1, np.uint64), "18446744073709551615"),
    ],
)
def test_other_codes_are_refused(given: Any, named: str, config: ModelConfig) -> None:
    with pytest.raises(RequestError, match=named):
        check_codes(given, config, "history 1")
    with pytest.raises(RequestError, match=r"^history 1: "):
        check_codes(given, config, "history 1")


def test_sizes_come_from_the_config(tokenizer: Tokenizer, config: ModelConfig) -> None:
    other = replace(config, semantic_start=200, tower=replace(config.tower, num_codebooks=3))
    rows = PromptBuilder(tokenizer, other).build("a", history=[("b", [[4], [5], [6]])]).rows
    assert rows.shape[1] == 4
    assert [204, 4, 5, 6] in rows.tolist()
