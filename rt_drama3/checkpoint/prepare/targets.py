"""The tensors of a package: those of the source with the experts that stay, and its codec."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from torch import Tensor

from rt_drama3.checkpoint import audio_cpp
from rt_drama3.checkpoint.experts import KEPT, kept_experts
from rt_drama3.checkpoint.files import read_json
from rt_drama3.checkpoint.formats import FORMATS, Format
from rt_drama3.checkpoint.inventory import (
    EXPERT_MATRICES,
    HEAD,
    TensorSpec,
    expert_name,
    inventory,
)
from rt_drama3.checkpoint.prepare.importance import read_importance
from rt_drama3.checkpoint.prepare.recipe import Choice, Fallbacks, Recipe, choose, group_of
from rt_drama3.checkpoint.prepare.tiles import Target, Tile, tensor_tile, view_tiles
from rt_drama3.checkpoint.views import View
from rt_drama3.codec.official import folded_codec
from rt_drama3.config import CodecConfig, ModelConfig
from rt_drama3.errors import CheckpointError, ConfigError

Views = Mapping[str, View]


class ModelTargets:
    """The tensors of the language model.

    Args:
        config: sizes of the source.
        views: its tensors, each matrix one view.
        recipe: what was asked for.

    Attributes:
        kept: of each layer, the experts of the source that stay; None is all.
        targets: in the order of the model.
        notes: what is done otherwise than asked.

    Raises:
        CheckpointError: the files of the recipe are not of this model.
        ConfigError: what it asks for cannot be done.
    """

    def __init__(self, config: ModelConfig, views: Views, recipe: Recipe) -> None:
        self._config, self._recipe = config, recipe
        self.kept = read_kept(recipe.prune, config)
        self._views = _short_head(config, views, recipe.head)
        specs = inventory(config)
        self._importance = read_importance(recipe.importance, _shapes(config, specs))
        self._fallbacks, self._uncounted = Fallbacks(), 0
        self.targets = list(chain(*(self._layer_or_tensor(name) for name in _names(config))))
        self.notes = self._fallbacks.notes()
        if recipe.importance is not None and self._uncounted:
            self.notes.append(
                f"{self._uncounted} matrices have no importance in {recipe.importance}; all "
                "columns of them count alike"
            )

    def experts(self, layer: int) -> Sequence[int]:
        """The experts of a layer that stay."""
        return (
            range(self._config.backbone.experts[layer]) if self.kept is None else self.kept[layer]
        )

    def _layer_or_tensor(self, name: str | tuple[int, str]) -> Iterator[Target]:
        if isinstance(name, tuple):
            yield self._bank(*name)
            return
        view = self._views[name]
        if self.kept is not None and name.endswith(".mlp.gate.weight"):
            view = view.taken(self.experts(int(name.split(".")[3])))
        choice = choose(view, self._recipe)
        importance = self._of(name, choice)
        yield self._target(name, [view], choice, importance, view.shape)

    def _bank(self, layer: int, matrix: str) -> Target:
        """The stack of a matrix of all experts of a layer."""
        ids = self.experts(layer)
        views = [self._views[expert_name(layer, expert, matrix)] for expert in ids]
        choices = {choose(view, self._recipe) for view in views}
        if len(choices) > 1:
            types = ", ".join(sorted(choice.format.name for choice in choices))
            raise ConfigError(
                f"experts: those of layer {layer} are stored in several types ({types}), but a "
                "GGUF file holds them as one tensor, so they cannot be kept. Give a type, such as "
                "--experts q4_k."
            )
        (choice,) = choices
        name = audio_cpp.bank_name(layer, matrix)
        importance = self._of(name, choice)
        rows = None if importance is None else importance[list(ids)]
        return self._target(name, views, choice, rows, (len(views), *views[0].shape))

    def _of(self, name: str, choice: Choice) -> Tensor | None:
        """The importance of a matrix that is quantised."""
        if choice.format.elements == 1:
            return None
        found = self._importance.get(name)
        self._uncounted += found is None
        return found

    def _target(
        self,
        name: str,
        views: Sequence[View],
        choice: Choice,
        importance: Tensor | None,
        shape: tuple[int, ...],
    ) -> Target:
        group = "small" if audio_cpp.is_small(name, shape) else group_of(name)
        self._fallbacks.add(group, choice, shape[-1], 1)
        tiles = partial(_tiles, views, choice.format, importance)
        source = " ".join(sorted({view.dtype for view in views}))
        return Target(name, audio_cpp.MODEL, group, source, choice.format, shape, tiles)


def codec_targets(config: CodecConfig, state: object) -> Iterator[Target]:
    """The tensors of the codec.

    Args:
        config: its sizes.
        state: its tensors, however the file has them.

    Raises:
        CheckpointError: tensors are missing.
    """
    format = FORMATS[audio_cpp.CODEC_TYPE.lower()]
    for whole, tensor in folded_codec(config, state).items():
        names = audio_cpp.codec_parts(whole)
        shape = (tensor.shape[0] // len(names), *tensor.shape[1:]) if tensor.shape else ()
        for number, name in enumerate(names):
            read = partial(_part, tensor.read, number, len(names))
            tiles = partial(tensor_tile, name, format, read, math.prod(tensor.shape))
            yield Target(name, audio_cpp.CODEC, "codec", "F32", format, shape, tiles)


def read_kept(path: Path | None, config: ModelConfig) -> list[list[int]] | None:
    """The experts of each layer that stay, in order.

    Args:
        path: JSON file: a list of lists, an object with layers as keys, or either as
            ``drama_experts`` of an object; None is all.
        config: sizes.

    Raises:
        CheckpointError: it is something else, or of another model.
    """
    if path is None:
        return None
    value = read_json(path)
    if isinstance(value, dict) and KEPT in value:
        value = value[KEPT]
    backbone = config.backbone
    if isinstance(value, list | dict) and len(value) != backbone.layers:
        raise CheckpointError(
            f"{path} lists the kept experts of {len(value)} layers, but the model has "
            f"{backbone.layers}. It must be made for this checkpoint."
        )
    try:
        found = kept_experts({KEPT: value}, backbone.layers)
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error
    assert found is not None
    for layer, (ids, count) in enumerate(zip(found, backbone.experts, strict=True)):
        if max(ids) >= count:
            raise CheckpointError(
                f"{path} keeps expert {max(ids)} of layer {layer}, but the model has {count} there "
                f"(0 to {count - 1}). It must be made for this checkpoint."
            )
    return [sorted(ids) for ids in found]


def _names(config: ModelConfig) -> Iterator[str | tuple[int, str]]:
    """Official names in the order of the model; of experts, layer and matrix of each stack."""
    seen = set()
    for name in inventory(replace(config, fp8_experts=False)):
        head, _, tail = name.partition(".mlp.experts.")
        if not tail:
            yield name
        elif head not in seen:
            seen.add(head)
            for matrix in EXPERT_MATRICES:
                yield int(head.rpartition(".")[2]), matrix


def _shapes(config: ModelConfig, specs: Mapping[str, TensorSpec]) -> dict[str, tuple[int, ...]]:
    """Shapes of the importance of every matrix."""
    shapes: dict[str, tuple[int, ...]] = {
        name: (spec.shape[-1],)
        for name, spec in specs.items()
        if len(spec.shape) == 2 and ".mlp.experts." not in name
    }
    for layer, count in enumerate(config.backbone.experts):
        for matrix in EXPERT_MATRICES:
            columns = specs[expert_name(layer, 0, matrix)].shape[-1]
            shapes[audio_cpp.bank_name(layer, matrix)] = (count, columns)
    return shapes


def _short_head(config: ModelConfig, views: Views, rows: int | None) -> Views:
    """The tensors with a head of the rows that are asked for."""
    head = views[HEAD]
    if rows is None or rows == head.shape[0]:
        return views
    if rows != config.candidates:
        raise ConfigError(
            f"head is {rows} rows; it can have the {config.candidates} that can be sampled, or all "
            f"{head.shape[0]} of the source if it is not given."
        )
    band = range(config.semantic_start, config.semantic_end + 1)
    return {**views, HEAD: head.taken([*band, config.eos])}


def _tiles(views: Sequence[View], format: Format, importance: Tensor | None) -> Iterator[Tile]:
    for number, view in enumerate(views):
        own = importance if importance is None or importance.ndim == 1 else importance[number]
        yield from view_tiles(view, format, own)


def _part(read: Callable[[], Tensor], number: int, parts: int) -> Tensor:
    return read().chunk(parts)[number]
