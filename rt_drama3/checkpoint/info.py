"""What a checkpoint folder holds and lacks, read from headers alone; it may be broken."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.conformance import Differences, compare
from rt_drama3.checkpoint.experts import official_entries, with_stored_experts
from rt_drama3.checkpoint.files import (
    CODEC,
    CONFIG,
    check_codec_fits,
    read_codec_config,
    read_json,
    read_voice_config,
    require,
)
from rt_drama3.checkpoint.inventory import inventory
from rt_drama3.checkpoint.load import read_codec_file
from rt_drama3.checkpoint.tensors import Scan, scan
from rt_drama3.checkpoint.tokenizer import load_tokenizer
from rt_drama3.codec import codec_inventory, has_encode_half
from rt_drama3.codec.official import unwrap_codec_state
from rt_drama3.config import CodecConfig, ModelConfig, SamplingConfig
from rt_drama3.errors import CheckpointError

_Result = TypeVar("_Result")

_SHOWN = 3  # names in one problem
_UNKNOWN = "not in the inventory"
_MODEL_CARD_LICENCE = re.compile(r"^license_name:\s*(\S.*)$|^license:\s*(\S.*)$", re.MULTILINE)


@dataclass
class CodecInfo:
    """The codec of a checkpoint.

    Attributes:
        parameters: values in ``codec.pth``, weight-norm pairs as stored.
        encoder: whether it has its encode half.
        sample_rate: in Hz.
        frame_samples: samples per frame.
    """

    parameters: int
    encoder: bool
    sample_rate: int
    frame_samples: int


@dataclass
class CheckpointInfo:
    """A checkpoint, described. Fields that could not be read are None or empty.

    Attributes:
        path: the folder.
        licence: first line of its licence, or what its model card says.
        files: safetensors files, with their number of tensors.
        parameters: values of the language model without block scales.
        family_bytes: bytes on disk of each family of tensors.
        dtype_bytes: bytes on disk of each stored dtype.
        config: what ``config.json`` says, experts as stored.
        candidates: main tokens that can be sampled.
        codec: contents of ``codec.pth``.
        sampling: its own sampling defaults, or those of the model spec.
        fixed_voice: references do not change its voice.
        missing, unexpected, misfits: see ``Differences``.
        problems: everything that prevents loading, one sentence each.
    """

    path: str
    licence: str | None = None
    files: dict[str, int] = field(default_factory=dict)
    parameters: int = 0
    family_bytes: dict[str, int] = field(default_factory=dict)
    dtype_bytes: dict[str, int] = field(default_factory=dict)
    config: ModelConfig | None = None
    candidates: int | None = None
    codec: CodecInfo | None = None
    sampling: SamplingConfig | None = None
    fixed_voice: bool = False
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Label and text of every fact that is known, for a table."""
        yield "path", self.path
        yield "licence", self.licence or "not stated in the folder"
        size = sum(self.dtype_bytes.values())
        yield "language model", f"{_count(self.parameters)} parameters, {_size(size)}"
        yield "tensors", f"{sum(self.files.values()):,} in {len(self.files)} files"
        yield "dtypes", _sizes(self.dtype_bytes)
        yield "families", _sizes(self.family_bytes)
        if self.config is not None:
            yield from _config_rows(self.config)
        if self.codec is not None:
            halves = "encode and decode" if self.codec.encoder else "decode only"
            rate = self.codec.sample_rate / self.codec.frame_samples
            yield (
                "codec",
                f"{_count(self.codec.parameters)} parameters, {halves}, {self.codec.sample_rate} "
                f"Hz, {self.codec.frame_samples} samples a frame ({rate:.2f} frames/s)",
            )
        if self.sampling is not None:
            yield "sampling", _sampling(self.sampling)
        yield "references", self._references()

    def _references(self) -> str:
        if self.fixed_voice:
            return "ignored: the checkpoint has one fixed voice"
        if self.codec is not None and not self.codec.encoder:
            return "as codes only: the codec has no encode half"
        return "as audio or codes"


def inspect(directory: Path) -> CheckpointInfo:
    """Describes a checkpoint folder without loading its weights.

    Missing or damaged parts become problems in the result instead of exceptions.
    """
    info = CheckpointInfo(str(directory), licence=_licence(directory))
    found = scan(directory)
    info.problems += found.problems
    info.files = dict(Counter(entry.shard for entry in found.entries.values()))
    config = _isolated(info, lambda: _read_config(directory))
    if config is not None and found.entries:
        stored = config
        config = _isolated(info, lambda: with_stored_experts(stored, found)) or stored
    info.config = config
    info.candidates = None if config is None else config.candidates
    _add_tensors(info, found, config)
    info.codec = _isolated(info, lambda: _codec(info, directory, config))
    voice = _isolated(info, lambda: read_voice_config(directory))
    if voice is not None:
        info.sampling, info.fixed_voice = voice.sampling, voice.fixed_voice
    if config is not None:
        known = config
        _isolated(info, lambda: load_tokenizer(directory, known))
    return info


def _isolated(info: CheckpointInfo, read: Callable[[], _Result]) -> _Result | None:
    try:
        return read()
    except CheckpointError as error:
        info.problems.append(str(error))
        return None


def _read_config(directory: Path) -> ModelConfig:
    path = require(directory, CONFIG)
    return parse_model_config(read_json(path), str(path))


def _add_tensors(info: CheckpointInfo, found: Scan, config: ModelConfig | None) -> None:
    entries = found.entries
    if config is not None:
        layers = config.backbone.layers
        entries = _isolated(info, lambda: official_entries(found, layers)) or entries
    specs = {} if config is None else inventory(config)
    families: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    for name, entry in entries.items():
        spec = specs.get(name)
        families[spec.family if spec else _UNKNOWN] += entry.nbytes
        dtypes[entry.dtype] += entry.nbytes
        info.parameters += 0 if name.endswith("weight_scale_inv") else entry.elements
    info.family_bytes, info.dtype_bytes = dict(families), dict(dtypes)
    if config is None or not entries:
        return
    differences: Differences = compare(entries, specs)
    info.missing = list(differences.missing)
    info.unexpected = list(differences.unexpected)
    info.misfits = list(differences.misfits)
    for what, names in (("missing", info.missing), ("unexpected", info.unexpected)):
        if names:
            info.problems.append(f"{len(names):,} {what} tensors: {_listed(names)}")
    info.problems += info.misfits


def _codec(info: CheckpointInfo, directory: Path, model: ModelConfig | None) -> CodecInfo:
    config = read_codec_config(directory)
    if model is not None:
        _isolated(info, lambda: check_codec_fits(model, config))
    state = unwrap_codec_state(read_codec_file(directory))
    encoder = has_encode_half(config, state)
    shapes = {_one_spelling(name): tuple(value.shape) for name, value in state.items()}
    _compare_codec(info, shapes, config, encoder)
    numbers = sum(math.prod(shape) for shape in shapes.values())
    return CodecInfo(numbers, encoder, config.sample_rate, config.frame_samples)


def _compare_codec(
    info: CheckpointInfo, shapes: dict[str, tuple[int, ...]], config: CodecConfig, encoder: bool
) -> None:
    wanted = {_one_spelling(n): shape for n, shape in codec_inventory(config, encoder).items()}
    missing = [name for name in wanted if name not in shapes]
    unexpected = [name for name in shapes if name not in wanted]
    for what, names in (("missing", missing), ("unexpected", unexpected)):
        if names:
            info.problems.append(f"{CODEC}: {len(names)} {what} tensors: {_listed(names)}")
    info.problems += [
        f"{CODEC}: {name} has shape {list(shapes[name])} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in shapes and shapes[name] != shape
    ]


def _one_spelling(name: str) -> str:
    """Weight-norm pairs have two spellings; this is the shorter one."""
    for long, short in (("original0", "weight_g"), ("original1", "weight_v")):
        name = name.replace(f"parametrizations.weight.{long}", short)
    return name


def _licence(directory: Path) -> str | None:
    for path in sorted(directory.glob("LICENSE*")) + sorted(directory.glob("LICENCE*")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.strip(" #"):
                return line.strip(" #")
    card = directory / "README.md"
    if card.is_file():
        head = card.read_text(encoding="utf-8", errors="replace")[:4000]
        names = [a or b for a, b in _MODEL_CARD_LICENCE.findall(head)]
        if names:
            return " / ".join(names)
    return "see NOTICE" if (directory / "NOTICE").is_file() else None


def _config_rows(config: ModelConfig) -> Iterator[tuple[str, str]]:
    backbone, tower = config.backbone, config.tower
    kinds = Counter(backbone.layer_types)
    layers = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in kinds.items())
    yield "backbone", f"{backbone.layers} layers ({layers}), width {backbone.hidden_size}"
    counts = sorted(set(backbone.experts))
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    stored = "FP8" if config.fp8_experts else "not quantised"
    yield "experts", f"{number} a layer, {backbone.experts_per_token} per token, {stored}"
    if len(counts) > 1:
        yield "experts of each layer", " ".join(map(str, backbone.experts))
    yield "tower", f"{tower.shared_layers} shared and {tower.residual_layers} residual layers"
    yield "codebooks", f"{tower.num_codebooks} of {tower.codebook_size} codes"
    yield (
        "vocabulary",
        f"{backbone.vocab_size:,} tokens, of which {config.candidates:,} can be sampled "
        f"(codes {config.semantic_start}..{config.semantic_end}, eos {config.eos})",
    )
    if backbone.max_positions is not None:
        yield "positions", f"{backbone.max_positions:,}"


def _sampling(sampling: SamplingConfig) -> str:
    top_k = "no top-k" if sampling.top_k is None else f"top-k {sampling.top_k}"
    ras = (
        f"redraw at {sampling.ras_temperature:g}"
        if sampling.repetition_aware
        else "no repetition-aware redraw"
    )
    return (
        f"temperature {sampling.temperature:g}, heads {sampling.head_temperature:g} and top-k "
        f"{sampling.head_top_k}, top-p {sampling.top_p:g}, {top_k}, {ras}"
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _sizes(sizes: dict[str, int]) -> str:
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {_size(size)}" for name, size in ordered)


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"


def _count(number: int) -> str:
    for scale, unit in ((1_000_000_000, "billion"), (1_000_000, "million")):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number:,}"
