"""Stored matrices to official names: prefixes, stacks of experts, matrices joined or split.

Prefixes differ between containers and are found by tensors that the model has once. A matrix that
stands for several official ones (a bank of experts, gate and up in one) or for a part of one (q, k
and v apart) is recognised by its name: a gate and an up projection have the same shape.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rt_drama3.checkpoint.inventory import BACKBONE, HEAD, TensorSpec, layer_prefix
from rt_drama3.checkpoint.stored import Stored
from rt_drama3.checkpoint.views import Piece, Undo, View
from rt_drama3.config import ModelConfig
from rt_drama3.errors import CheckpointError

# What precedes the first group's end is the prefix of every tensor of that part of the model.
_ANCHORS = (
    (re.compile(r"(.*?)embed_tokens\.weight"), f"{BACKBONE}."),
    (re.compile(r"(.*?)codebook_embeddings\.weight"), "audio_decoder."),
    (re.compile(r"(.*?)0\.semantic_embedding\.weight"), "audio_decoder_mtp_shared.layers."),
    (re.compile(r"(.*?)0\.codebook_embedding\.weight"), "audio_decoder_mtp.layers."),
    (re.compile(r"(.*heads\.)0\.weight"), "audio_decoder_mtp.heads."),
    (re.compile(r"((?:.*[./])?(?:lm_head|semantic_head)\.)weight"), HEAD.removesuffix("weight")),
)
_BACKBONE_PARTS = ("layers.", "norm.", "embed_tokens.")
_MATRIX = r"(gate_proj|up_proj|down_proj|gate_up(?:_proj)?)(?:\.weight)?"
_LAYER = rf"{re.escape(BACKBONE)}\.layers\.(?P<layer>\d+)\.mlp"
_BANK = re.compile(rf"{_LAYER}\.(?:experts|switch_mlp)\.{_MATRIX}")
_JOINED_EXPERT = re.compile(
    rf"(?P<base>{_LAYER}\.(?:shared_expert|experts\.\d+))\.gate_up(?:_proj)?\.weight"
)
_JOINED_FFN = re.compile(r"(.*\.feed_forward)\.(?:w13|w1_?w3|w1_3|gate_up(?:_proj)?)\.weight")
_SPLIT = re.compile(r"(.*\.transformer_layer\.attention)\.(?:w?([qgkv])|(q|gate|k|v)_proj)\.weight")


@dataclass(frozen=True)
class Claim:
    """Rows of a stored matrix that belong to an official tensor.

    Attributes:
        name: the official tensor.
        piece: the rows.
        start: their first row in the tensor; None if they are all of it.
        shape: of the tensor, if it is not that of the rows.
        undo: of what has to be undone after reading.
    """

    name: str
    piece: Piece
    start: int | None = None
    shape: tuple[int, ...] | None = None
    undo: Undo | None = None


def prefixes(names: Iterable[str]) -> dict[str, str]:
    """Stored prefix -> official prefix, the longest first."""
    found: dict[str, str] = {}
    for name in names:
        for pattern, official in _ANCHORS:
            match = pattern.fullmatch(name)
            if match:
                found.setdefault(match[1], official)
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def renamed(name: str, known: Mapping[str, str]) -> str:
    """A stored name with the official prefix."""
    for prefix, official in known.items():
        if name.startswith(prefix):
            tail = name.removeprefix(prefix)
            if official != f"{BACKBONE}." or tail.startswith(_BACKBONE_PARTS):
                return official + tail
    return name


def claims(name: str, stored: Stored, config: ModelConfig) -> Iterator[Claim]:
    """The official tensors that a matrix stands for, given its name with official prefix."""
    if (match := _BANK.fullmatch(name)) and len(stored.shape) == 3:
        yield from _bank(layer_prefix(int(match["layer"])), match[2], stored)
    elif match := _JOINED_EXPERT.fullmatch(name):
        yield from _halves(stored, 0, stored.rows, f"{match['base']}.{{}}_proj.weight", "gate up")
    elif match := _JOINED_FFN.fullmatch(name):
        yield from _halves(stored, 0, stored.rows, f"{match[1]}.{{}}.weight", "w1 w3")
    elif match := _SPLIT.fullmatch(name):
        shape = config.tower.attention
        query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        starts = {"q": 0, "g": query, "k": 2 * query, "v": 2 * query + key}
        start = starts[(match[2] or match[3])[0]]
        yield Claim(f"{match[1]}.wqkv.weight", Piece(stored, slice(0, stored.rows)), start)
    else:
        yield Claim(name, Piece(stored, slice(0, stored.rows)), None, stored.shape)


def _bank(layer: str, matrix: str, stored: Stored) -> Iterator[Claim]:
    count, rows = stored.shape[0], stored.shape[1]
    for expert in range(count):
        name = f"{layer}.mlp.experts.{expert}"
        start = expert * rows
        if matrix.startswith("gate_up"):
            pattern = f"{name}.{{}}_proj.weight"
            yield from _halves(stored, start, start + rows, pattern, "gate up")
        else:
            yield Claim(f"{name}.{matrix}.weight", Piece(stored, slice(start, start + rows)))


def _halves(stored: Stored, start: int, stop: int, pattern: str, names: str) -> Iterator[Claim]:
    middle = (start + stop) // 2
    for name, rows in zip(names.split(), (slice(start, middle), slice(middle, stop)), strict=True):
        yield Claim(pattern.format(name), Piece(stored, rows))


def assemble(found: Iterable[Claim], specs: Mapping[str, TensorSpec]) -> dict[str, View]:
    """Official name -> view.

    Args:
        found: all claims.
        specs: official shapes; dims of 1 that a container has dropped, moved or added follow them.

    Raises:
        CheckpointError: two matrices claim one tensor, or those that make it up leave a gap.
    """
    by_name: defaultdict[str, list[Claim]] = defaultdict(list)
    for claim in found:
        by_name[claim.name].append(claim)
    views = {}
    for name, parts in by_name.items():
        parts.sort(key=lambda claim: claim.start or 0)
        pieces = tuple(claim.piece for claim in parts)
        _require_seamless(name, parts)
        rows, columns = sum(piece.count for piece in pieces), pieces[0].stored.columns
        whole = parts[0].shape if len(parts) == 1 else None
        shape = (rows, columns) if whole is None else whole
        spec = specs.get(name)
        if spec is not None and _same_rows(shape, spec.shape):
            shape = spec.shape
        views[name] = View(name, shape, pieces, parts[0].undo)
    return views


def _require_seamless(name: str, parts: list[Claim]) -> None:
    end = 0
    for claim in parts:
        stored = claim.piece.stored
        origin = stored.parts[0].entry.name
        if len(parts) > 1 and claim.start is None:
            others = " and ".join(part.piece.stored.parts[0].entry.name for part in parts[:2])
            raise CheckpointError(f"{name} is stored twice: as {others}.")
        if (claim.start or 0) != end or stored.columns != parts[0].piece.stored.columns:
            raise CheckpointError(
                f"{name} is stored in parts that do not fit: {origin} {list(stored.shape)} would "
                f"be its rows from {claim.start}, after {end} rows of the others."
            )
        end += claim.piece.count


def _same_rows(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes differ in dims of 1, or in how their rows are stacked."""
    if [size for size in shape if size != 1] == [size for size in other if size != 1]:
        return True
    return shape[-1:] == other[-1:] and math.prod(shape) == math.prod(other)
