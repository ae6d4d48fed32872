"""The number of experts in each layer: pruned checkpoints keep fewer, layer by layer.

Three forms are supported. ``num_experts`` of the config may be a list. The metadata of the index
may hold ``drama_experts``, for each layer the official ids of the kept experts (in the order of the
router's rows). Or the files imply it: a layer's router has fewer rows than the config's number, and
the layer has that number of experts.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rt_drama3.checkpoint.inventory import BACKBONE, layer_prefix
from rt_drama3.checkpoint.tensors import Entry, Scan
from rt_drama3.config import ModelConfig
from rt_drama3.errors import CheckpointError

KEPT = "drama_experts"
_EXPERT = re.compile(rf"{re.escape(BACKBONE)}\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(.+)")


def with_stored_experts(config: ModelConfig, found: Scan) -> ModelConfig:
    """The config with the number of experts that each layer has in the files.

    Raises:
        CheckpointError: the kept lists are malformed, or a layer has fewer experts than each
            token uses.
    """
    backbone = config.backbone
    kept = kept_experts(found.metadata, backbone.layers)
    stored = _stored_ids(found.entries)
    counts = list(backbone.experts)
    for layer, count in enumerate(counts):
        if kept is not None:
            counts[layer] = len(kept[layer])
            continue
        router = found.entries.get(f"{layer_prefix(layer)}.mlp.gate.weight")
        rows = router.shape[0] if router is not None and router.shape else count
        if rows < count and stored[layer] == set(range(rows)):
            counts[layer] = rows
    top = backbone.experts_per_token
    for layer, count in enumerate(counts):
        if count < top:
            raise CheckpointError(
                f"Layer {layer} of {found.directory} has {count} experts, but num_experts_per_tok "
                f"is {top}."
            )
    return replace(config, backbone=replace(backbone, experts=tuple(counts)))


def official_entries(found: Scan, layers: int) -> dict[str, Entry]:
    """Stored tensors with the experts of every layer numbered 0, 1, 2 ...

    Files of a pruned checkpoint may keep the official ids; then the kept lists map each expert
    to its row of the router.

    Raises:
        CheckpointError: the kept lists are malformed.
    """
    kept = kept_experts(found.metadata, layers)
    if kept is None:
        return found.entries
    stored = _stored_ids(found.entries)
    numbers = {
        layer: {expert: number for number, expert in enumerate(ids)}
        for layer, ids in enumerate(kept)
        if stored[layer] == set(ids)
    }
    renamed = {}
    for name, entry in found.entries.items():
        match = _EXPERT.fullmatch(name)
        if match and int(match[1]) in numbers:
            layer, expert = int(match[1]), int(match[2])
            prefix = layer_prefix(layer)
            name = f"{prefix}.mlp.experts.{numbers[layer][expert]}.{match[3]}"
        renamed[name] = entry
    return renamed


def kept_experts(metadata: Mapping[str, Any], layers: int) -> list[Sequence[int]] | None:
    """Official ids of the kept experts of every layer; None without such a list.

    A list of lists, an object with layer numbers as keys, or either as a JSON string: metadata of a
    safetensors file holds nothing but strings.

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
        except ValueError as error:
            raise fault from error
    if isinstance(value, dict):
        value = [value.get(str(layer)) for layer in range(layers)]
    if not isinstance(value, list) or len(value) != layers:
        raise fault
    for ids in value:
        if not isinstance(ids, list) or not ids or len(set(map(str, ids))) != len(ids):
            raise fault
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
            raise fault
    return value


def _stored_ids(entries: Mapping[str, Entry]) -> defaultdict[int, set[int]]:
    """Layer -> ids of the experts that the files hold."""
    ids: defaultdict[int, set[int]] = defaultdict(set)
    for name in entries:
        match = _EXPERT.fullmatch(name)
        if match:
            ids[int(match[1])].add(int(match[2]))
    return ids
