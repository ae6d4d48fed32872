"""The experts of each layer: pruned checkpoints keep fewer, layer by layer.

Nothing declares pruning in one way. What counts is the number of rows of a layer's router, the ids
of the experts that are stored, and a list of kept ids, if there is one: ``drama_experts`` in the
metadata. A router that still has rows of experts that are gone loses them: without its row an
expert is never chosen, and the weights of the others are those of a softmax over them alone.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rt_drama3.checkpoint.inventory import BACKBONE, layer_prefix
from rt_drama3.checkpoint.stored import Part, Stored
from rt_drama3.checkpoint.views import View, view
from rt_drama3.config import ModelConfig
from rt_drama3.errors import CheckpointError
from rt_drama3.model.weights import FP8_BLOCK

KEPT = "drama_experts"
_EXPERT = re.compile(rf"{re.escape(BACKBONE)}\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(.+)")


def settle_experts(
    config: ModelConfig, views: Mapping[str, View], metadata: Mapping[str, Any]
) -> tuple[ModelConfig, dict[str, View]]:
    """Numbers the experts of every layer 0, 1, 2 ... and gives each router their rows alone.

    Args:
        config: with the counts of ``config.json``.
        views: official names, experts as they are numbered in the files.
        metadata: of the checkpoint, with the kept experts if it has the list.

    Returns:
        The config with the counts that are stored, and the views.

    Raises:
        CheckpointError: it is not known which rows of a router belong to its experts.
    """
    backbone = config.backbone
    kept = kept_experts(metadata, backbone.layers)
    stored = _stored_ids(views)
    counts, views = list(backbone.experts), dict(views)
    numbers: dict[int, dict[int, int]] = {}
    for layer, count in enumerate(counts):
        name = f"{layer_prefix(layer)}.mlp.gate.weight"
        router = views.get(name)
        if router is not None and len(router.shape) != 2:
            router = None  # the inventory will name it
        rows = count if router is None else router.shape[0]
        ids = sorted(stored[layer])
        chosen, order = _settled(layer, rows, ids, None if kept is None else kept[layer])
        counts[layer] = min(len(ids), rows) or count
        if router is not None and chosen != list(range(rows)) and ids:
            views[name] = router.taken(chosen)
        numbers[layer] = {expert: number for number, expert in enumerate(order)}
    renamed = {}
    for name, one in views.items():
        match = _EXPERT.fullmatch(name)
        if match and int(match[1]) in numbers:
            layer, number = int(match[1]), numbers[int(match[1])][int(match[2])]
            name = f"{layer_prefix(layer)}.mlp.experts.{number}.{match[3]}"
        renamed[name] = one if name == one.name else replace(one, name=name)
    return replace(config, backbone=replace(backbone, experts=tuple(counts))), renamed


def _settled(
    layer: int, rows: int, ids: list[int], kept: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """Rows of the router, and ids of the experts that belong to them, both in the same order."""
    count = len(ids)
    contiguous = ids == list(range(count))
    if kept is not None and len(kept) != count and ids:
        raise CheckpointError(
            f"The metadata {KEPT!r} lists {len(kept)} experts for layer {layer}, but the files "
            f"have {count}."
        )
    if count > rows:  # the inventory will name those beyond
        return list(range(rows)), ids
    if kept is not None and (set(kept) == set(ids) or contiguous):
        order = list(kept) if set(kept) == set(ids) else ids
        if count == rows:  # the router was cut down with the experts, in the order of the list
            return list(range(rows)), order
        if max(kept) < rows:
            return list(kept), order
    elif (contiguous and count == rows) or not ids:
        return list(range(rows)), ids
    elif kept is None and not contiguous and ids[-1] < rows:
        return ids, ids
    raise CheckpointError(
        f"{layer_prefix(layer)}.mlp.gate.weight has {rows} rows, but layer {layer} has {count} "
        f"experts (up to number {ids[-1]}), and it is not known which rows are theirs. If experts "
        f"were removed, the list of those kept, {KEPT!r} in the metadata of the index, is missing "
        "or of another checkpoint; if not, tensors are missing, and the checkpoint must be "
        "downloaded again."
    )


def kept_experts(metadata: Mapping[str, Any], layers: int) -> list[Sequence[int]] | None:
    """Official ids of the kept experts of every layer; None without such a list.

    A list of lists, an object with layers as keys (``"3"``, ``"layers.3"``), or either as a JSON
    string: metadata of a safetensors file holds nothing but strings.

    Raises:
        CheckpointError: it is something else, or does not cover the layers.
    """
    value = metadata.get(KEPT)
    if value is None:
        return None
    fault = CheckpointError(
        f"The metadata {KEPT!r} must list the kept experts of {layers} layers, each as a non-empty "
        "list of different ids."
    )
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise fault from error
    if isinstance(value, dict):
        by_layer = {str(key).rpartition(".")[2]: ids for key, ids in value.items()}
        value = [by_layer.get(str(layer)) for layer in range(layers)]
    if not isinstance(value, list) or len(value) != layers:
        raise fault
    for ids in value:
        if not isinstance(ids, list) or not ids or len(set(map(str, ids))) != len(ids):
            raise fault
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
            raise fault
    return value


def _stored_ids(views: Mapping[str, View]) -> defaultdict[int, set[int]]:
    """Layer -> ids of the experts that the files hold."""
    ids: defaultdict[int, set[int]] = defaultdict(set)
    for name in views:
        match = _EXPERT.fullmatch(name)
        if match:
            ids[int(match[1])].add(int(match[2]))
    return ids


def with_fp8(config: ModelConfig, views: Mapping[str, View]) -> tuple[ModelConfig, dict[str, View]]:
    """Splits FP8 experts into matrix and scales, as the model keeps them, if all are stored so.

    Where they are not, those in FP8 are dequantised like any other quantised matrix.
    """
    experts = [
        one for name, one in views.items() if _EXPERT.fullmatch(name) and name.endswith(".weight")
    ]
    pairs = {one.name: _pair(one) for one in experts}
    fp8 = bool(experts) and all(
        one.dtype == "F8_E4M3" and (pairs[one.name] or not one.quantised) for one in experts
    )
    if not fp8:
        return replace(config, fp8_experts=False), dict(views)
    split: dict[str, View] = {}
    for name, one in views.items():
        split |= {part.name: part for part in pairs.get(name) or (one,)}
    return replace(config, fp8_experts=True), split


def _pair(one: View) -> tuple[View, View] | None:
    """Codes and block scales of a view; None if it is not one whole FP8 matrix."""
    if len(one.pieces) > 1 or one.dtype != "F8_E4M3" or one.undo is not None:
        return None
    (piece,) = one.pieces
    if piece.stored.parts[-1].per != FP8_BLOCK or not piece.stored.divides(piece.rows):
        return None
    codes, scales = piece.stored.narrowed(piece.rows).parts
    shape = (-(-one.shape[0] // FP8_BLOCK), -(-one.shape[1] // FP8_BLOCK))
    names = one.name, f"{one.name}_scale_inv"
    return _plain(names[0], codes, one.shape), _plain(names[1], scales, shape)


def _plain(name: str, part: Part, shape: tuple[int, ...]) -> View:
    return view(name, Stored(part.entry.dtype, shape, (Part(part.entry, part.rows),)))
