"""What a checkpoint folder holds and lacks, read from headers alone; it may be broken."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from rt_drama3.checkpoint.codec_files import read_codec
from rt_drama3.checkpoint.conformance import Differences, compare
from rt_drama3.checkpoint.experts import with_fp8
from rt_drama3.checkpoint.files import Files, check_codec_fits, read_voice_config
from rt_drama3.checkpoint.inventory import SCALE, inventory
from rt_drama3.checkpoint.opened import Checkpoint, opened
from rt_drama3.checkpoint.tokenizer import load_tokenizer
from rt_drama3.checkpoint.views import View, entry_view
from rt_drama3.codec import codec_inventory, has_encode_half
from rt_drama3.codec.official import squeezed, unwrap_codec_state
from rt_drama3.config import CodecConfig, ModelConfig, SamplingConfig
from rt_drama3.errors import CheckpointError

_Result = TypeVar("_Result")

_SHOWN = 3  # names in one problem
_UNKNOWN = "not in the inventory"
_FRIENDLY = {"F8_E4M3": "FP8", **dict.fromkeys(("BF16", "F16", "F32"), "not quantised")}
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
        expert_dtypes: what routed experts are stored as.
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
    expert_dtypes: list[str] = field(default_factory=list)
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
        nbytes = sum(self.dtype_bytes.values())
        yield "language model", f"{_count(self.parameters)} parameters, {size(nbytes)}"
        yield "tensors", f"{sum(self.files.values()):,} in {len(self.files)} files"
        yield "dtypes", _sizes(self.dtype_bytes)
        yield "families", _sizes(self.family_bytes)
        if self.config is not None:
            yield from _config_rows(self.config, self.expert_dtypes)
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


def inspect(place: Path | Checkpoint) -> CheckpointInfo:
    """Describes a checkpoint without loading its weights.

    Missing or damaged parts become problems in the result instead of exceptions.
    """
    checkpoint = opened(place)
    info = CheckpointInfo(str(checkpoint.path), licence=_licence(checkpoint.files))
    found = checkpoint.found
    info.problems += found.problems
    info.files = dict(Counter(entry.shard for entry in found.entries.values()))
    config = info.config = _isolated(info, lambda: checkpoint.declared)
    views = {name: entry_view(entry) for name, entry in found.entries.items()}
    if config is not None and views:
        adapted = _isolated(info, lambda: checkpoint.adapted)
        if adapted is not None:
            settled = _isolated(info, lambda: checkpoint.settled)
            info.config, views = settled or with_fp8(config, adapted.views)
    config = info.config
    info.candidates = None if config is None else config.candidates
    _add_tensors(info, views, config)
    info.codec = _isolated(info, lambda: _codec(info, checkpoint, config))
    voice = _isolated(info, lambda: read_voice_config(checkpoint.files))
    if voice is not None:
        info.sampling, info.fixed_voice = voice.sampling, voice.fixed_voice
    if config is not None:
        known = config
        _isolated(info, lambda: load_tokenizer(checkpoint.files, known))
    return info


def _isolated(info: CheckpointInfo, read: Callable[[], _Result]) -> _Result | None:
    try:
        return read()
    except CheckpointError as error:
        info.problems.append(str(error))
        return None


def _add_tensors(
    info: CheckpointInfo, views: Mapping[str, View], config: ModelConfig | None
) -> None:
    specs = {} if config is None else inventory(config)
    families: Counter[str] = Counter()
    experts: set[str] = set()
    dtypes: Counter[str] = Counter()
    for name, view in views.items():
        spec = specs.get(name)
        families[spec.family if spec else _UNKNOWN] += view.nbytes
        dtypes[view.dtype] += view.nbytes
        info.parameters += 0 if name.endswith("weight_scale_inv") else view.elements
        if spec and spec.family == "experts" and spec.kind != SCALE:
            experts.add(view.dtype)
    info.expert_dtypes = sorted(experts)
    info.family_bytes, info.dtype_bytes = dict(families), dict(dtypes)
    if config is None or not views:
        return
    differences: Differences = compare(views, specs)
    info.missing = list(differences.missing)
    info.unexpected = list(differences.unexpected)
    info.misfits = list(differences.misfits)
    for what, names in (("missing", info.missing), ("unexpected", info.unexpected)):
        if names:
            info.problems.append(f"{len(names):,} {what} tensors: {_listed(names)}")
    info.problems += info.misfits


def _codec(info: CheckpointInfo, checkpoint: Checkpoint, model: ModelConfig | None) -> CodecInfo:
    found = read_codec(checkpoint)
    config = found.config
    if model is not None:
        _isolated(info, lambda: check_codec_fits(model, config))
    state = unwrap_codec_state(found.state)
    encoder = has_encode_half(config, state)
    problems = _codec_problems(config, state, encoder)
    info.problems += [f"{found.where}: {problem}" for problem in problems]
    numbers = sum(value.numel() for value in state.values())
    return CodecInfo(numbers, encoder, config.sample_rate, config.frame_samples)


def _codec_problems(
    config: CodecConfig, state: Mapping[str, Tensor], encoder: bool
) -> Iterator[str]:
    wanted = codec_inventory(config, encoder, state)
    missing = [name for name in wanted if name not in state]
    unexpected = [name for name in state if name not in wanted]
    for what, names in (("missing", missing), ("unexpected", unexpected)):
        if names:
            yield f"{len(names)} {what} tensors: {_listed(names)}"
    for name, shape in wanted.items():
        stored = tuple(state[name].shape) if name in state else shape
        if squeezed(stored) != squeezed(shape):
            yield f"{name} has shape {list(stored)} instead of {list(shape)}"


def _licence(files: Files) -> str | None:
    names = files.names()
    for name in [name for name in names if name.startswith(("LICENSE", "LICENCE"))]:
        for line in files.read(name).decode("utf-8", errors="replace").splitlines():
            if line.strip(" #"):
                return line.strip(" #")
    if "README.md" in names:
        head = files.read("README.md")[:4000].decode("utf-8", errors="replace")
        found = [a or b for a, b in _MODEL_CARD_LICENCE.findall(head)]
        if found:
            return " / ".join(found)
    return "see NOTICE" if "NOTICE" in names else None


def _config_rows(config: ModelConfig, expert_dtypes: list[str]) -> Iterator[tuple[str, str]]:
    backbone, tower = config.backbone, config.tower
    kinds = Counter(backbone.layer_types)
    layers = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in kinds.items())
    yield "backbone", f"{backbone.layers} layers ({layers}), width {backbone.hidden_size}"
    counts = sorted(set(backbone.experts))
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    stored = " and ".join(_FRIENDLY.get(dtype, dtype) for dtype in expert_dtypes)
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
    return ", ".join(f"{name} {size(nbytes)}" for name, nbytes in ordered)


def size(nbytes: float) -> str:
    """A number of bytes, for people."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} GB"


def _count(number: int) -> str:
    for scale, unit in ((1_000_000_000, "billion"), (1_000_000, "million")):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number:,}"
