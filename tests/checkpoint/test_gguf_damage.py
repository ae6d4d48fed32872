"""Damaged and hostile GGUF files: refused quickly, with the file and the field."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rt_drama3.checkpoint.gguf import Planned, Writer, embedded_files, read_embedded, scan_gguf

FILES = "audiocpp.embedded_files"
ANY = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def preamble(tensors: int = 0, values: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)


def tensor(name: str = "t", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    head = text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return head + struct.pack("<IQ", kind, offset)


def problem(path: Path, data: bytes) -> str:
    """The only problem of a file with these bytes, which names the file."""
    path.write_bytes(data)
    (sentence,) = scan_gguf(path).problems
    assert str(path) in sentence
    return sentence


def padded(header: bytes, data: bytes = bytes(64)) -> bytes:
    return header + bytes(-len(header) % 32) + data


LARGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "its first bytes"),
        (b"GG", "its first bytes"),
        (b"GGML" + bytes(40), "not a GGUF file"),
        (preamble(version=1), "version 1"),
        (preamble(version=4), "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (preamble()[:-1], "the number of values"),
        (preamble(tensors=LARGE), "the number of tensors"),
        (preamble(values=LARGE), "the number of values"),
        (preamble(values=1) + struct.pack("<Q", LARGE) + bytes(32), "the key of value 0"),
        (preamble(values=1) + struct.pack("<Q", 70_000) + bytes(80_000), "the key of value 0"),
        (preamble(values=1) + text("") + bytes(32), "value 0"),
        (preamble(values=1) + struct.pack("<Q", 2) + b"\xff\xff" + bytes(32), "not UTF-8"),
        (preamble(values=2) + (text("k") + struct.pack("<IB", 7, 1)) * 2, "used before"),
        (preamble(values=1) + text("k") + struct.pack("<I", 13) + bytes(9), "k: its type 13"),
        (preamble(values=1) + text("k") + struct.pack("<IQ", 8, LARGE), "at k"),
        (preamble(values=1) + text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(99), "arrays of"),
        (preamble(values=1) + text("k") + struct.pack("<IIQ", 9, 10, LARGE // 8), "at k"),
        (preamble(values=1) + text("k") + struct.pack("<IIQ", 9, 8, LARGE), "too many"),
        (preamble(values=1) + text("k") + struct.pack("<IIQ", 9, 8, 9) + bytes(64), "at k"),
        (padded(preamble(1) + tensor("")), "0 dims|a name"),
        (padded(preamble(1) + tensor("t", ())), "t': it has 0 dims"),
        (padded(preamble(1) + tensor("t", (1, 1, 1, 1, 1))), "t': it has 5 dims"),
        (padded(preamble(1) + tensor("t", (0,))), "t': its shape [0]"),
        (padded(preamble(1) + tensor("t", (LARGE, LARGE))), "t': its shape"),
        (padded(preamble(2) + tensor() + tensor(offset=32)), "'t' is used before"),
        (padded(preamble(1) + tensor("t", (33,), 8)), "t: rows of 33 cannot be Q8_0"),
        (padded(preamble(1) + tensor(offset=4)), "t: its offset 4"),
        (padded(preamble(1) + tensor(offset=64)), "truncated: t ends"),
        (padded(preamble(1) + tensor(offset=1 << 62)), "truncated: t ends"),
        (padded(preamble(1) + tensor("t", (1 << 40,))), "truncated: t ends"),
        (padded(preamble(2) + tensor("a", (9,)) + tensor("b", offset=32)), "b: it overlaps a"),
        (padded(preamble(1) + tensor(kind=103)), "t has the type 103"),
        (padded(preamble(1) + tensor("t", (256,), 16)), "t has the type IQ2_XXS"),
    ],
)
def test_damage_is_named(tmp_path: Path, data: bytes, part: str) -> None:
    sentence = problem(tmp_path / "x.gguf", data)
    assert any(option in sentence for option in part.split("|")), sentence


def values_problem(path: Path, values: dict[str, Any], count: int = 1) -> str:
    plan = [Planned(f"t{number}", (2, 4), "F32") for number in range(count)]
    with Writer(path, values, plan) as writer:
        for _ in plan:
            writer.write(bytes(32))
    (sentence,) = scan_gguf(path).problems
    assert str(path) in sentence
    return sentence


def names(*values: str) -> dict[str, Any]:
    return {"audiocpp.tensor_names": list(values)}


def shapes(ranks: list[int], sizes: list[int], kind: Any = np.int64) -> dict[str, Any]:
    return {
        "audiocpp.tensor_ranks": np.array(ranks, dtype=np.int32),
        "audiocpp.tensor_shapes": np.array(sizes, dtype=kind),
    }


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"general.architecture": 3}, "general.architecture is type 4, but a string"),
        ({"general.architecture": ["a"]}, "is an array of type 8, but a string"),
        ({"general.alignment": 48}, "general.alignment is 48"),
        ({"general.alignment": "x"}, "general.alignment is type 8, but an integer"),
        ({"split.count": 3}, "one of 3 parts"),
        (names("a", "b"), "2 names for 1 tensors"),
        ({"audiocpp.tensor_names": "a"}, "tensor_names is type 8, but an array of strings"),
        (shapes([2, 1], [2, 4, 1]), "do not describe 1 tensors"),
        (shapes([3], [2, 4]), "do not describe 1 tensors"),
        (shapes([-1], []), "do not describe 1 tensors"),
        (shapes([2], [2, 5]), "t0: its shape [2, 5] does not hold 8"),
        (shapes([2], [-2, -4]), "t0: its shape [-2, -4]"),
        (shapes([2], [2, 4], np.float32), "integers are needed"),
        ({"audiocpp.tensor_ranks": np.array([2], dtype=np.int32)}, "must come together"),
        (embedded_files({"/etc/passwd": b"x"}), "'/etc/passwd' is not a relative path"),
        (embedded_files({"../config.json": b"x"}), "'../config.json' is not a relative"),
        (embedded_files({"a/../../b": b"x"}), "is not a relative path"),
        (embedded_files({"a\\..\\b": b"x"}), "is not a relative path"),
        (embedded_files({"C:config.json": b"x"}), "is not a relative path"),
        (embedded_files({"": b"x"}), "'' is not a relative path"),
        ({f"{FILES}.names": ["a"]}, "it needs contents"),
        ({f"{FILES}.names": ["a"], f"{FILES}.contents": ["x", "y"]}, "1 names for 2 files"),
        ({f"{FILES}.names": ["a", "a"], f"{FILES}.contents": ["x", "y"]}, "2 names for 2 files"),
        (embedded_files({"a": b"xy"}) | {f"{FILES}.names": ["a", "b"]}, "into 2 files"),
        (
            embedded_files({"a": b"xy"}) | {f"{FILES}.offsets": np.array([0, 3], dtype=np.uint64)},
            "do not divide its data",
        ),
        (
            embedded_files({"a": b"xy"}) | {f"{FILES}.offsets": np.array([2, 1], dtype=np.uint64)},
            "do not divide its data",
        ),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, values: dict[str, Any], part: str) -> None:
    assert part in values_problem(tmp_path / "x.gguf", values)


def test_two_tensors_with_one_logical_name(tmp_path: Path) -> None:
    assert "a: two tensors" in values_problem(tmp_path / "x.gguf", names("a", "a"), count=2)


def valid(path: Path) -> bytes:
    values = {"general.architecture": "audiocpp", "tokens": ["a", "bc"], **names("x/long", "y")}
    values |= shapes([3, 2], [1, 2, 4, 2, 4]) | embedded_files({"config.json": b"{}"})
    with Writer(path, values, [Planned(n, (2, 4), "F32") for n in ("long", "y")]) as writer:
        writer.write(bytes(32))
        writer.write(bytes(32))
    return path.read_bytes()


def look(path: Path, data: bytes) -> None:
    """Reads all that a header offers; nothing but a sound file or problems may come of it."""
    path.write_bytes(data)
    found = scan_gguf(path)
    if found.problems:
        assert all(str(path) in sentence for sentence in found.problems)
        return
    for entry in found.entries.values():
        assert entry.start + entry.nbytes <= len(data)
    for name in found.embedded:
        read_embedded(found, name)


@ANY
@given(end=st.integers(0, 10_000))
def test_any_truncation(tmp_path: Path, end: int) -> None:
    data = valid(tmp_path / "x.gguf")
    cut = data[: end % len(data)]
    assert problem(tmp_path / "x.gguf", cut)


@ANY
@given(
    changes=st.lists(
        st.tuples(
            st.integers(0, 10_000),
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from([struct.pack("<Q", n) for n in (0, LARGE, 1 << 31, 1 << 63, 9)]),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
@example(changes=[(8, struct.pack("<Q", 1 << 20))])
def test_any_change(tmp_path: Path, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(valid(tmp_path / "x.gguf"))
    for place, new in changes:
        start = place % len(data)
        data[start : start + len(new)] = new
    look(tmp_path / "x.gguf", bytes(data))


@ANY
@given(data=st.binary(max_size=400))
def test_any_bytes_behind_the_magic(tmp_path: Path, data: bytes) -> None:
    look(tmp_path / "x.gguf", b"GGUF\x03\0\0\0" + data)


def test_large_arrays_are_passed_over(tmp_path: Path) -> None:
    """Neither their elements nor their bytes end up in memory."""
    path = tmp_path / "x.gguf"
    tokens = ["token"] * 50_000
    with Writer(path, {"tokens": tokens, "data": np.zeros(20 << 20, dtype=np.uint8)}, []):
        pass
    tracemalloc.start()
    found = scan_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.problems == []
    assert found.header is not None
    assert found.header.values["tokens"].count == len(tokens)
    assert peak < 1 << 20
