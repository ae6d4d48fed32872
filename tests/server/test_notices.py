"""The notice for text that the model cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

import rt_drama3
from rt_drama3.server.notices import normalization_notices
from rt_drama3.server.openings import is_unreadable
from tests.small import shared_drama

NANO = Path(rt_drama3.__file__).parent / "voices" / "nano" / "tokenizer.json"


@pytest.mark.parametrize(
    ("text", "unreadable"),
    [
        ("\u4f60\u597d\uff0c\u4e16\u754c", True),
        ("\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440.", True),
        ("Hello there.", False),
        ("Say \u4f60\u597d to everyone.", False),
        ("Gr\u00fc\u00dfe aus M\u00fcnchen", False),
        ("<|speaker:0|> [slowly, as if half asleep] Hi.", False),
        ("\N{GRINNING FACE}", False),
        ("", False),
    ],
)
def test_the_nano_voice_reads_latin_letters(text: str, unreadable: bool) -> None:
    assert is_unreadable(text, Tokenizer.from_file(str(NANO))) == unreadable


def test_what_is_not_spoken_is_noticed() -> None:
    tokenizer = Tokenizer.from_file(str(NANO))
    text = "[fast] Hi [laughs], see [1] and [the manual](https://a.example)."
    assert normalization_notices(text, tokenizer) == [
        "[1] is not spoken.",
        "[laughs] is not spoken: this model does not know it.",
    ]
    assert normalization_notices("[l\u00e4cheln\n] a", tokenizer)[0].isascii()
    assert len(normalization_notices("[" + "x" * 1000 + "] a", tokenizer)[0]) == 160


def test_a_tokenizer_of_bytes_reads_everything() -> None:
    assert not is_unreadable("\u4f60\u597d", shared_drama().prompts.tokenizer)
