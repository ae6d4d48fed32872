"""A checkpoint's tensors as official ones, whatever program wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from torch import Tensor

from rt_drama3.checkpoint import llama_cpp
from rt_drama3.checkpoint.inventory import BACKBONE, HEAD, inventory
from rt_drama3.checkpoint.matrices import find_matrices
from rt_drama3.checkpoint.names import Claim, assemble, claims, prefixes, renamed
from rt_drama3.checkpoint.stored import Stored
from rt_drama3.checkpoint.tensor_map import mapped, read_tensor_map
from rt_drama3.checkpoint.tensors import Entry, TensorReader
from rt_drama3.checkpoint.views import View
from rt_drama3.config import ModelConfig

HEAD_ORDERS = ("semantic-eos", "eos-semantic")
_NORMS = re.compile(
    rf"{re.escape(BACKBONE)}\.(?:norm|layers\.\d+\.(?:input_layernorm|post_attention_layernorm"
    r"|self_attn\.[qk]_norm))\.weight"
)
_TOWER_NORMS = re.compile(
    r"audio_decoder_mtp(?:_shared)?\.layers\.\d+\.(?:enorm|hnorm|final_layernorm"
    r"|transformer_layer\.(?:attention_norm|ffn_norm|attention\.[qk]_norm))\.weight"
)
_CODEC = re.compile(r"(?:generator\.)?(?:encoder|decoder|quantizer)\..*")
_NOTE = (
    "the head has only the rows that are sampled, in an order that is not declared; "
    f"{HEAD_ORDERS[0]} is assumed. If speech ends immediately or never, use --head-order "
    f"{HEAD_ORDERS[1]}"
)
_SHIFTED_MEDIAN = 0.5  # of every zero-centred norm, from which they are taken as stored plus one


class Origin(Enum):
    """The program whose conventions a checkpoint follows."""

    OFFICIAL = "official"
    MLX = "mlx-audio"
    AUDIO_CPP = "audio.cpp"
    LLAMA_CPP = "llama.cpp"
    PREPARED = "rt-drama3"
    UNKNOWN = "unknown"


@dataclass
class Adapted:
    """Tensors of a checkpoint, sorted.

    Attributes:
        views: official name -> view; also of tensors that are not official.
        unused: stored tensors that are recognised and not needed.
        notes: what was assumed, one sentence each.
    """

    views: dict[str, View] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def adapt(
    entries: Mapping[str, Entry],
    config: ModelConfig,
    origin: Origin,
    reader: TensorReader,
    *,
    quantization: object = None,
    tensor_map: Path | None = None,
    head_order: str | None = None,
) -> Adapted:
    """Brings the tensors of a checkpoint into official form.

    Args:
        entries: the tensors.
        config: sizes; the counts of experts do not matter here.
        origin: whose conventions to undo.
        reader: of the tensors; some small ones may have to be read.
        quantization: see ``find_matrices``.
        tensor_map: file that says where tensors are.
        head_order: order of a head that has only the rows that are sampled.

    Raises:
        CheckpointError: tensors do not fit together.
    """
    adapted = Adapted()
    codec = {entry.name for entry in codec_entries(entries).values()}
    model = {name: entry for name, entry in entries.items() if name not in codec}
    found = find_matrices(model, quantization)
    adapted.unused = found.unused
    stored, all_claims = dict(found.stored), list[Claim]()
    if tensor_map is not None:
        for name, claim in mapped(read_tensor_map(tensor_map), found.stored, tensor_map):
            all_claims.append(claim)
            stored.pop(name, None)
    named = {claim.name for claim in all_claims}
    automatic = [c for c in _claims(stored, config, origin) if c.name not in named]
    specs = inventory(config)
    views = assemble([*all_claims, *automatic], specs)
    if origin is Origin.LLAMA_CPP:
        for name in views.keys() - named:
            views[name] = replace(views[name], undo=llama_cpp.undo(name, config.backbone))
    for pattern, shifted in _norms(origin).items():
        norms = {n: v for n, v in views.items() if n not in named and pattern.fullmatch(n)}
        if shifted is None:
            shifted = _look_shifted(norms.values(), reader)
            if shifted:
                adapted.notes.append("norms are taken as stored plus one, since all look like it")
        if shifted:
            views |= {name: replace(norm, undo=minus_one) for name, norm in norms.items()}
    if HEAD in views:
        known = HEAD in named or origin in (Origin.OFFICIAL, Origin.MLX, Origin.PREPARED)
        if _is_short(views[HEAD], config) and head_order is None and not known:
            adapted.notes.append(_NOTE)
        if _is_short(views[HEAD], config) and head_order == HEAD_ORDERS[1]:
            views[HEAD] = views[HEAD].taken([*range(1, config.candidates), 0])
    adapted.views = views
    return adapted


def codec_entries(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The tensors of a codec in the file of a language model, by their names without a prefix."""
    found = {}
    for name, entry in entries.items():
        space, _, tail = name.rpartition("/")
        if "codec" in space or _CODEC.fullmatch(tail):
            found[tail] = entry
    return found


def _claims(stored: Mapping[str, Stored], config: ModelConfig, origin: Origin) -> Iterator[Claim]:
    short = {name: name.rpartition("/")[2] for name in stored}
    known = prefixes(short.values())
    for name, matrix in stored.items():
        official = renamed(short[name], known)
        if origin is Origin.LLAMA_CPP:
            stacked = list(llama_cpp.stacks(short[name], matrix, config))
            yield from stacked
            if stacked:
                continue
            official = llama_cpp.renamed(short[name], config)
        yield from claims(official, matrix, config)


def _norms(origin: Origin) -> dict[re.Pattern[str], bool | None]:
    """Whether zero-centred norms are stored plus one; None: it depends on their values."""
    if origin in (Origin.OFFICIAL, Origin.MLX, Origin.PREPARED):
        return dict.fromkeys((_NORMS, _TOWER_NORMS), origin is Origin.MLX)
    return {_NORMS: True if origin is Origin.LLAMA_CPP else None, _TOWER_NORMS: None}


def _look_shifted(norms: Iterable[View], reader: TensorReader) -> bool:
    """Whether every norm has a median that only a norm stored plus one has."""
    readable = [norm for norm in norms if norm.dtype in ("F32", "F16", "BF16")]
    medians = [float(norm.read(reader).float().median()) for norm in readable]
    return bool(medians) and min(medians) > _SHIFTED_MEDIAN


def minus_one(weight: Tensor) -> Tensor:
    """A zero-centred gamma of a plain one, in float64 so that adding one gives it back exactly."""
    return weight.double() - 1


def _is_short(head: View, config: ModelConfig) -> bool:
    """Whether a head has only the rows that are sampled."""
    back = config.backbone
    short = (config.candidates, back.hidden_size)
    return head.shape == short and config.candidates != back.vocab_size
