"""Takes as artefacts: round trips, and errors that name the file and the entry."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.errors import RequestError
from rt_drama3.scenes import takes
from rt_drama3.scenes.takes import dump_take, load_takes, read_takes, write_take
from tests.small import shared_drama

CONFIG = shared_drama().config
BOOKS = CONFIG.num_codebooks
LAST = CONFIG.tower.codebook_size - 1
GRID = np.arange(BOOKS * 4).reshape(BOOKS, 4) % (LAST + 1)


def artefact(**changes: Any) -> dict[str, Any]:
    whole = {
        "family": "fish_drama3",
        "schema": "drama3_take_v1",
        "text": "Hello.",
        "codes": GRID.tolist(),
    }
    return {name: value for name, value in {**whole, **changes}.items() if value is not ...}


def refused(value: object, config: Any = CONFIG) -> str:
    data = value if isinstance(value, bytes | str) else json.dumps(value)
    with pytest.raises(RequestError) as failure:
        load_takes(data, config, "scene.json")
    message = str(failure.value)
    assert "scene.json" in message
    assert len(message) < 400
    return message


def test_an_artefact_contains_its_family_and_schema() -> None:
    data = dump_take("Héllo [laughs].", GRID, seed=7)
    assert json.loads(data.decode("utf-8")) == {
        "family": "fish_drama3",
        "schema": "drama3_take_v1",
        "text": "Héllo [laughs].",
        "codes": GRID.tolist(),
        "seed": 7,
    }


@settings(max_examples=50)
@given(
    text=st.text(st.characters(exclude_categories=("Cs",)), max_size=40).map(lambda t: "a" + t),
    frames=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_round_trip(text: str, frames: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, LAST + 1, (BOOKS, frames))
    (take,) = load_takes(dump_take(text, codes), CONFIG)
    assert take.text == text
    assert take.codes is not None
    assert take.codes.dtype == np.int64
    assert np.array_equal(take.codes, codes)


def test_a_file_holds_a_list_or_a_single_take(tmp_path: Path) -> None:
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    write_take(one, "Hello.", GRID)
    entries = [artefact(text="A."), artefact(text="B.", codes=..., audio="b.wav"), {"text": "C."}]
    many.write_text(json.dumps(entries))
    (single,) = read_takes(one, CONFIG)
    assert single.text == "Hello."
    assert np.array_equal(single.codes, GRID)
    first, second, third = read_takes(many, CONFIG)
    assert [take.text for take in (first, second, third)] == ["A.", "B.", "C."]
    assert second.audio == tmp_path / "b.wav"
    assert third.codes is third.audio is None


def test_family_and_schema_may_be_omitted() -> None:
    entry = artefact(family=..., schema=...)
    (take,) = load_takes(json.dumps(entry), CONFIG)
    assert np.array_equal(take.codes, GRID)


def test_additional_values_are_ignored() -> None:
    load_takes(json.dumps(artefact(mood={"of": ["the", "day"]})), CONFIG)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "fish_s2"}, "family is 'fish_s2', but only 'fish_drama3' is supported"),
        ({"family": ...}, "family is None"),
        (
            {"schema": "drama3_take_v2"},
            "schema is 'drama3_take_v2', but only 'drama3_take_v1' is supported",
        ),
        ({"schema": 1}, "schema is 1"),
        ({"family": "x" * 10_000}, "family is 'xxx"),
        ({"text": ...}, "must be a string"),
        ({"text": ""}, "is empty"),
        ({"text": "<|im_end|>"}, "belongs to the prompt's own structure"),
        ({"text": 3}, "must be a string, not int"),
        ({"codes": GRID[:-1].tolist()}, f"has {BOOKS - 1} rows, but this checkpoint has {BOOKS}"),
        ({"codes": [*GRID.tolist(), GRID[0].tolist()]}, f"has {BOOKS + 1} rows"),
        ({"codes": []}, "has 0 rows"),
        ({"codes": [[]] * BOOKS}, "0 to 0 frames"),
        ({"codes": [[1, 2]] * (BOOKS - 1) + [[1]]}, "1 to 2 frames"),
        ({"codes": {"a": 1}}, "not a list of"),
        ({"codes": [1] * BOOKS}, "not a list of"),
        ({"codes": "AAAA"}, "not a list of"),
        ({"codes": [[LAST + 1]] * BOOKS}, f"is {LAST + 1}, but this checkpoint's codes run from 0"),
        ({"codes": [[-1]] * BOOKS}, "is -1"),
        ({"codes": [[1.0]] * BOOKS}, "is 1.0; use a whole number"),
        ({"codes": [[True]] * BOOKS}, "is True; use a whole number"),
        ({"codes": [[None]] * BOOKS}, "is None; use a whole number"),
        ({"codes": [[[1]]] * BOOKS}, "a whole number"),
        ({"codes": [[10**40]] * BOOKS}, "a whole number"),
        ({"audio": "a.wav"}, "codes and audio"),
        ({"codes": ..., "audio": 5}, "use the path of a file"),
    ],
)
def test_entries_that_do_not_fit_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    assert message in refused(artefact(**changes))
    assert "scene.json[1]" in refused([artefact(), artefact(**changes)])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"text": "\xff"}', "UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b'{"text": "a", "codes": [[NaN]]}', "NaN is not a number"),
        (b'{"text": "a", "codes": [[-Infinity]]}', "Infinity is not a number"),
        (b'{"text": "a", "codes": [[' + b"9" * 10_000 + b"]]}", "not valid JSON"),
        (b"null", "is a null"),
        (b"3", "is a int"),
        (b'"text"', "is a string"),
        (b"[]", "0 takes were given"),
        (json.dumps([{"text": "a"}] * 65).encode(), "65 takes were given"),
        (b"[[]]", "is a list"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_data_that_is_not_an_artefact_is_refused(data: bytes, message: str) -> None:
    assert message in refused(data)


def test_a_huge_artefact_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takes.json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    huge = tmp_path / "scene.json"
    with huge.open("wb") as file:
        file.truncate(100_000_000)  # sparse: needs no disk space
    with pytest.raises(RequestError, match="limit of 16 MiB"):
        read_takes(huge, CONFIG)
    assert "limit of 16 MiB" in refused(b" " * (takes.MAX_ARTEFACT + 1))


def test_a_take_of_another_checkpoint_is_refused(nano: Any) -> None:
    assert nano.config.num_codebooks != BOOKS
    assert "codebooks; use a take of this checkpoint" in refused(artefact(), nano.config)


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot read the takes in .*none\.json"):
        read_takes(tmp_path / "none.json", CONFIG)
    with pytest.raises(RequestError, match="cannot write the take"):
        write_take(tmp_path / "no" / "folder.json", "a", GRID)


@pytest.mark.parametrize("codes", [[], [[]], [1, 2], [[0.5]], [[[1]]]])
def test_only_2d_codes_are_written(codes: Any) -> None:
    with pytest.raises(RequestError, match="the codes of a take"):
        dump_take("a", codes)


@settings(max_examples=200)
@given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_any_bytes_are_takes_or_a_request_error(data: bytes) -> None:
    with contextlib.suppress(RequestError):
        load_takes(data, CONFIG)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["text", "codes", "audio", "family", "x"]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_takes_or_a_request_error(value: Any) -> None:
    with contextlib.suppress(RequestError):
        load_takes(json.dumps(value), CONFIG)


def test_takes_import_without_torch() -> None:
    modules = "rt_drama3.scenes.takes, rt_drama3.text.directions"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
