"""A package that was begun is completed, and becomes the same file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from rt_drama3.checkpoint.prepare import writing
from rt_drama3.checkpoint.prepare.errors import Squares
from rt_drama3.checkpoint.prepare.journal import Journal
from rt_drama3.checkpoint.prepare.tiles import Tile
from rt_drama3.checkpoint.tensors import TensorReader
from rt_drama3.errors import CheckpointError
from tests.checkpoint.prepare.packages import packed, source
from tests.full_disk import file_size_limit, needs_limit


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The package that all tests here make."""
    out = tmp_path_factory.mktemp("whole") / "package.gguf"
    packed(out, threads=1)
    return out.read_bytes()


class StopError(Exception):
    """What interrupts."""


def stop_after(share: float, out: Path, **more: Any) -> None:
    """Interrupts when this share of the bytes is done."""

    def watch(done: int, total: int) -> None:
        if done >= share * total:
            raise StopError

    with pytest.raises(StopError):
        packed(out, progress=watch, **more)


def count_tiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tensors whose tiles are made from now on."""
    made: list[str] = []
    make = Tile.make

    def counted(tile: Tile, reader: TensorReader) -> tuple[Tensor, Squares]:
        made.append(tile.name)
        return make(tile, reader)

    monkeypatch.setattr(Tile, "make", counted)
    return made


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_any_number_of_threads(whole: bytes, tmp_path: Path) -> None:
    packed(tmp_path / "package.gguf", threads=3)
    assert (tmp_path / "package.gguf").read_bytes() == whole
    assert names_in(tmp_path) == {"package.gguf"}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_continuing(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    out = tmp_path / "package.gguf"
    made = count_tiles(monkeypatch)
    stop_after(share, out)
    assert names_in(tmp_path) == {"package.gguf.part", "package.gguf.part.json"}
    first = made[0]
    made.clear()
    seen: list[int] = []
    report = packed(out, progress=lambda done, total: seen.append(done))
    assert out.read_bytes() == whole
    assert names_in(tmp_path) == {"package.gguf"}
    assert len(report.tensors) == len({tensor.name for tensor in report.tensors})
    if share:
        assert seen[0] >= (share - 0.15) * seen[-1]
        assert first not in made
    assert report.groups()[0].rmse > 0


def test_continuing_after_a_kill(whole: bytes, tmp_path: Path) -> None:
    """The file may end anywhere after what the journal says, and the journal in half a line."""
    out = tmp_path / "package.gguf"
    stop_after(0.5, out)
    part, journal = tmp_path / "package.gguf.part", tmp_path / "package.gguf.part.json"
    with part.open("ab") as file:
        file.write(b"\xff" * 1000)
    text = journal.read_text()
    journal.write_text(text[: len(text) - 20])
    packed(out)
    assert out.read_bytes() == whole

    out.unlink()
    stop_after(0.5, out)
    with part.open("r+b") as file:  # as a file system may leave it
        file.truncate(part.stat().st_size // 2)
    packed(out)
    assert out.read_bytes() == whole


def test_only_what_is_on_the_disk_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "package.gguf"
    synced: list[int] = []
    monkeypatch.setattr(writing, "SYNC_BYTES", 1 << 18)
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    noted: list[int] = []
    add = Journal.add

    def watch(journal: Journal, finished: list[Squares]) -> None:
        noted.append(len(synced))
        add(journal, finished)

    monkeypatch.setattr(Journal, "add", watch)
    packed(out)
    assert len(noted) > 3
    assert noted == list(range(1, len(noted) + 1))  # each after a sync of its own


def test_other_options_or_another_source(whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "package.gguf"
    stop_after(0.3, out, experts="q4_0")
    with pytest.raises(CheckpointError, match=r"experts was q4_0 and is q8_0.*--force"):
        packed(out)
    packed(out, force=True)
    assert out.read_bytes() == whole

    place = Path(shutil.copytree(source(), tmp_path / "source"))
    other = tmp_path / "other.gguf"
    stop_after(0.3, other, place=place)
    os.utime(place / "model.safetensors", ns=(1, 1))
    with pytest.raises(CheckpointError, match=r"source .*model\.safetensors has changed"):
        packed(other, place)


def test_a_file_that_exists(whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "package.gguf"
    out.write_bytes(b"mine")
    with pytest.raises(CheckpointError, match="exists; give another name, or --force"):
        packed(out)
    assert out.read_bytes() == b"mine"
    packed(out, force=True)
    assert out.read_bytes() == whole


@needs_limit
def test_a_full_disk(whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "package.gguf"
    with (
        file_size_limit(len(whole) // 2),
        pytest.raises(CheckpointError, match=r"cannot be written.*give the same command again"),
    ):
        packed(out)
    assert not out.exists()
    packed(out)
    assert out.read_bytes() == whole


def test_two_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "package.gguf"
    refused: list[str] = []

    def again(done: int, total: int) -> None:
        if not refused:
            with pytest.raises(CheckpointError, match="being made by another process") as error:
                packed(out)
            refused.append(str(error.value))

    packed(out, progress=again)
    assert refused
    assert out.is_file()


def test_the_journal_is_plain(tmp_path: Path) -> None:
    out = tmp_path / "package.gguf"
    stop_after(0.3, out)
    first, *lines = (tmp_path / "package.gguf.part.json").read_text().splitlines()
    assert json.loads(first)["options"]["experts"] == "q8_0"
    assert all(json.loads(line)["weight"] >= 0 for line in lines)
