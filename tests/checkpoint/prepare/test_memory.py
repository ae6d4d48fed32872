"""How much of a model is in memory while a package is made."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.inventory import inventory
from rt_drama3.checkpoint.prepare import Recipe, tiles, writing
from rt_drama3.checkpoint.prepare.errors import Squares
from rt_drama3.checkpoint.prepare.targets import ModelTargets
from rt_drama3.checkpoint.prepare.tiles import TILE, Tile
from rt_drama3.checkpoint.prepare.writing import IN_FLIGHT
from rt_drama3.checkpoint.stored import Part, Stored
from rt_drama3.checkpoint.tensors import Entry, TensorReader
from rt_drama3.checkpoint.views import View, entry_view, view
from tests.checkpoint.prepare.packages import packed

BYTES_PER_WEIGHT = 16  # of a tile: as read, in float32, dequantised, and their difference
LIMIT = 4e9


class InFlight:
    """Counts the weights in tiles that were begun and are not written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = self.largest = 0
        self._lock = threading.Lock()
        make = Tile.make

        def counted(tile: Tile, reader: TensorReader) -> tuple[Tensor, Squares]:
            with self._lock:
                self.now += tile.weights
                self.most = max(self.most, self.now)
                self.largest = max(self.largest, tile.weights)
            made = make(tile, reader)
            with self._lock:
                self.now -= tile.weights
            return made

        monkeypatch.setattr(Tile, "make", counted)


@pytest.mark.parametrize("threads", [1, 4])
def test_tiles_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(tiles, "TILE", 1 << 12)
    monkeypatch.setattr(writing, "IN_FLIGHT", 1 << 17)
    seen = InFlight(monkeypatch)
    packed(tmp_path / "package.gguf", threads=threads)
    assert seen.largest == 256 * 256  # an expert in FP8, whose blocks are read together
    assert seen.most <= 1 << 17


def full_size(config: dict[str, Any]) -> ModelTargets:
    """Four layers of the published model: experts in FP8, everything else in bfloat16."""
    config = copy.deepcopy(config)
    config["text_config"] |= {"num_hidden_layers": 4, "mlp_layer_types": ["moe"] * 4}
    config["text_config"]["layer_types"] = config["text_config"]["layer_types"][:4]
    sizes = replace(parse_model_config(config), fp8_experts=False)

    def stored(name: str, shape: tuple[int, ...]) -> View:
        if ".mlp.experts." not in name:
            return entry_view(Entry(name, "shard", "BF16", shape, 0, 0))
        parts = (Part(Entry(name, "shard", "F8_E4M3", shape, 0, 0)),)
        return view(name, Stored("F8_E4M3", shape, parts, lambda codes: codes, unit=128))

    views = {name: stored(name, spec.shape) for name, spec in inventory(sizes).items()}
    return ModelTargets(sizes, views, Recipe())


def test_the_published_model(full_config: dict[str, Any]) -> None:
    """Every tile of it is small: 4 GB are enough for any number of threads."""
    found = full_size(full_config)
    sizes = [tile.weights for target in found.targets for tile in target.tiles()]
    assert sum(sizes) > 5e9
    assert max(sizes) == TILE
    assert IN_FLIGHT * BYTES_PER_WEIGHT < LIMIT / 2  # the rest is for the codec and the libraries
    assert found.notes == []
