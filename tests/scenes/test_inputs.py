"""References, earlier takes and guidance in every accepted form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rt_drama3.errors import RequestError
from rt_drama3.scenes.inputs import check_guidance, read_previous_takes, read_references
from rt_drama3.scenes.takes import PreviousTake

GRID = np.zeros((3, 5), dtype=np.int64)


@pytest.mark.parametrize(("given", "strength"), [(None, 0), (0, 0), (4, 4), (20, 20), (0.5, 0.5)])
def test_guidance(given: Any, strength: float) -> None:
    found = check_guidance(given)
    assert found == strength
    assert isinstance(found, float)


@pytest.mark.parametrize("given", [-1, 20.1, float("nan"), float("inf"), "4", True, [4]])
def test_guidance_out_of_bounds(given: Any) -> None:
    with pytest.raises(RequestError, match=r"guidance is .*use 0 \(off\) to 20"):
        check_guidance(given)


def test_references_keep_their_order_and_forms() -> None:
    found = read_references(
        [
            ("One.", "a.wav"),
            ["Two.", GRID],
            {"text": "Three.", "audio": b"RIFF"},
            {"text": "Four.", "vq_codes": GRID.tolist(), "speaker": 4},
            {"text": "<|speaker:5|> Five.", "audio": "b.wav", "speaker": 5},
            {"text": "  <|speaker:6|> Six.", "codes": GRID},
        ]
    )
    assert [text for text, _ in found] == [
        "One.",
        "Two.",
        "Three.",
        "<|speaker:4|> Four.",
        "<|speaker:5|> Five.",
        "  <|speaker:6|> Six.",
    ]
    assert [type(source) for _, source in found] == [str, np.ndarray, bytes, list, str, np.ndarray]


@pytest.mark.parametrize("speaker", range(16))
def test_every_speaker_has_a_tag(speaker: int) -> None:
    ((text, _),) = read_references([{"text": "Hi.", "audio": "a.wav", "speaker": speaker}])
    assert text == f"<|speaker:{speaker}|> Hi."


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("a.wav", "is a str"),
        (("a",), "is a tuple"),
        (3, "is a int"),
        ({"text": "Hi."}, "neither audio nor vq_codes"),
        ({"text": "Hi.", "audio": "a", "vq_codes": GRID}, "audio and vq_codes"),
        ({"audio": "a.wav"}, "must be a string"),
        ({"text": " ", "audio": "a.wav"}, "is empty"),
        ({"text": "Hi.", "audio": "a.wav", "Speaker": 1}, "'Speaker' is unknown"),
        ({"text": "Hi.", "audio": "a.wav", "speaker": 16}, "speaker is 16; use 0 to 15"),
        ({"text": "Hi.", "audio": "a.wav", "speaker": -1}, "speaker is -1"),
        ({"text": "Hi.", "audio": "a.wav", "speaker": "1"}, "use a whole number"),
        ({"text": "Hi.", "audio": "a.wav", "speaker": True}, "use a whole number"),
        ({"text": "<|speaker:2|> Hi.", "audio": "a.wav", "speaker": 1}, "another speaker's tag"),
        ({"text": "<|speaker:12|> Hi.", "audio": "a.wav", "speaker": 1}, "another speaker's tag"),
    ],
)
def test_invalid_references_are_refused(entry: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"entry 2 of references.*{message}"):
        read_references([("One.", "a.wav"), entry])


def test_previous_takes_in_every_form() -> None:
    take = PreviousTake("One.", GRID)
    found = read_previous_takes(
        [
            take,
            SimpleNamespace(text="Two.", codes=GRID),
            ("Three.", GRID),
            ("Four.", GRID.tolist()),
            ("Five.", "five.wav"),
            ("Six.", None),
            {"text": "Seven.", "codes": GRID.tolist()},
            {"text": "Eight.", "vq_codes": GRID},
            {"text": "Nine.", "audio": b"RIFF", "mood": "fine"},
            {"text": "Ten."},
            {"family": "fish_drama3", "schema": "drama3_take_v1", "text": "Eleven.", "codes": GRID},
        ]
    )
    assert found[0] is take
    kinds = "".join(
        "c" if t.codes is not None else "a" if t.audio is not None else "t" for t in found
    )
    assert kinds == "ccccatccatc"
    assert found[4].audio == "five.wav"
    assert [t.text for t in found][-1] == "Eleven."


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("Hi.", "is a str"),
        (3, "is a int"),
        (("a", "b", "c"), "is a tuple"),
        ({}, "must be a string"),
        ({"text": ""}, "is empty"),
        (("", GRID), "is empty"),
        ((3, GRID), "must be a string"),
        ({"text": "a", "codes": GRID, "audio": "b"}, "audio and codes"),
        (PreviousTake("a", GRID, "b"), "codes and audio"),
        ({"text": "a", "codes": GRID, "family": "fish_s2"}, "family is 'fish_s2'"),
        ({"text": "a", "codes": GRID, "family": "fish_drama3"}, "schema is None"),
    ],
)
def test_invalid_previous_takes_are_refused(entry: Any, message: str) -> None:
    with pytest.raises(RequestError, match=f"entry 2 of previous_takes.*{message}"):
        read_previous_takes([("One.", GRID), entry])


@pytest.mark.parametrize("entries", ["One.", {"text": "a"}, 3, None, b"a"])
def test_other_types_than_lists_are_refused(entries: Any) -> None:
    with pytest.raises(RequestError, match=r"previous_takes is .*use a list"):
        read_previous_takes(entries)
    with pytest.raises(RequestError, match=r"references is .*use a list"):
        read_references(entries)


def test_the_number_of_takes_is_limited() -> None:
    with pytest.raises(RequestError, match="65 previous takes are over the limit of 64"):
        read_previous_takes([("a", None)] * 65)
