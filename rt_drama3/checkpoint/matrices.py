"""Finds the matrices of a checkpoint: puts codes and their scales together, by names and dtypes.

A matrix that is recognised is known by the name that it has without quantisation. Every other
tensor keeps its own, and is refused later by it if the model has no place for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rt_drama3.checkpoint import formats, kept
from rt_drama3.checkpoint.formats.affine import BITS, GROUPS, dequantize_affine
from rt_drama3.checkpoint.formats.int4 import dequantize_gptq, dequantize_packed
from rt_drama3.checkpoint.formats.nvfp4 import dequantize_nvfp4
from rt_drama3.checkpoint.inventory import FP8_BLOCK
from rt_drama3.checkpoint.stored import Part, Stored, plain
from rt_drama3.checkpoint.tensors import TORCH_DTYPES, Entry
from rt_drama3.errors import CheckpointError
from rt_drama3.model.weights import dequantize as dequantize_fp8

Entries = Mapping[str, Entry]
_FLOATS = ("F32", "BF16", "F16")
_PACKED_BITS = (4, 8)
# Scales of activations and caches, which are not quantised here, and shapes that are known.
_UNUSED = re.compile(
    r".*\.(input_scale|input_global_scale|scale_input|k_scale|v_scale|weight_shape)"
)


@dataclass
class Matrices:
    """What a checkpoint holds.

    Attributes:
        stored: name -> matrix.
        unused: tensors that are recognised and not needed.
    """

    stored: dict[str, Stored] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def find_matrices(entries: Entries, quantization: object = None) -> Matrices:
    """Puts the tensors of a checkpoint together.

    Args:
        entries: its tensors.
        quantization: ``quantization_config`` of ``config.json``, or MLX's ``quantization``: for
            what tensors do not show.

    Raises:
        CheckpointError: tensors that belong together do not fit, or the config says that they are
            in a layout that cannot be read.
    """
    settings = quantization if isinstance(quantization, Mapping) else {}
    found, taken = Matrices(), set[str]()
    for name, entry in entries.items():
        built = _quantised(name, entry, entries, settings)
        if built is not None:
            base = re.sub(r"\.(qweight|weight_packed)$", ".weight", name)
            found.stored[base] = built
            taken.update(part.entry.name for part in built.parts)
    for name, entry in entries.items():
        if name in taken:
            continue
        if _UNUSED.fullmatch(name) or _is_idle(name, entries):
            found.unused.append(name)
        else:
            found.stored[name] = plain(entry)
    return found


def _is_idle(name: str, entries: Entries) -> bool:
    """Whether a tensor belongs to a GPTQ matrix that does not need it."""
    base, _, last = name.rpartition(".")
    return last in ("qzeros", "g_idx") and f"{base}.qweight" in entries


def _quantised(name: str, entry: Entry, entries: Entries, settings: Any) -> Stored | None:
    base, _, last = name.rpartition(".")
    if len(entry.shape) < 2 or not entry.elements:
        return None
    if last == "qweight" and entry.dtype == "I32":
        return _gptq(base, entry, entries, settings)
    if last == "weight_packed" and entry.dtype == "I32":
        return _packed(base, entry, entries, settings)
    if last == "weight_packed" and entry.dtype == "U8":
        scale, factor = (entries.get(f"{base}.weight_{n}") for n in ("scale", "global_scale"))
        return _nvfp4(entry, scale, factor, divide=True)
    if entry.dtype == "U8":
        scale, factor = entries.get(f"{name}_scale"), entries.get(f"{name}_scale_2")
        return _nvfp4(entry, scale, factor, divide=False)
    if entry.dtype == "U32":
        return _affine(base, entry, entries, settings)
    if entry.dtype == "F8_E4M3":
        names = (f"{name}_scale_inv", f"{name}_scale", f"{base}.scale_weight")
        scale = next((entries[n] for n in names if n in entries), None)
        return None if scale is None else _fp8(entry, scale)
    if entry.dtype not in TORCH_DTYPES and entry.dtype.lower() in formats.FORMATS:
        return _blocks(base, entry, entries)
    return None


def _gptq(base: str, entry: Entry, entries: Entries, settings: Any) -> Stored | None:
    """int32 ``[K / 8, N]``, scales ``[K / group, N]``: docs/model.md, 11.2."""
    scales = entries.get(f"{base}.scales")
    if scales is None or len(entry.shape) != 2 or scales.dtype not in _FLOATS:
        return None
    values = _gptq_settings(base, settings)
    bits = values.get("bits", 4)
    if bits not in _PACKED_BITS:
        raise _unreadable(base, f"GPTQ with {bits} bits; 4 and 8 are read")
    if values.get("checkpoint_format") == "marlin" or values.get("is_marlin_format"):
        raise _unreadable(base, "GPTQ that is tiled for one kernel (marlin)")
    rows, columns = entry.shape[1], entry.shape[0] * 32 // bits
    groups = scales.shape[0] if scales.shape else 0
    _require(scales, (groups, rows), base)
    parts = {"qweight": Part(entry), "scales": Part(scales)}
    zeros, index = entries.get(f"{base}.qzeros"), entries.get(f"{base}.g_idx")
    if values.get("sym", True) is False:
        if zeros is None:
            raise _unfit(base, "it is not symmetric, but has no qzeros")
        _require(zeros, (groups, rows * bits // 32), base)
        parts["qzeros"] = Part(zeros)
    if index is not None and values.get("desc_act"):
        _require(index, (columns,), base)
        parts["g_idx"] = Part(index)
    offset = 0 if values.get("checkpoint_format") == "gptq_v2" else 1
    decode = partial(_decode_gptq, tuple(parts), bits, offset)
    keeping = None
    if "g_idx" not in parts:
        dtype = TORCH_DTYPES[scales.dtype]
        keeping = kept.packed(columns, bits, groups, dtype, "qzeros" in parts, gptq=offset)
    return Stored(f"INT{bits}", (rows, columns), tuple(parts.values()), decode, None, keeping)


def _decode_gptq(names: tuple[str, ...], bits: int, offset: int, *tensors: Tensor) -> Tensor:
    parts = _parts(names, tensors)
    return dequantize_gptq(
        parts["qweight"],
        parts["scales"],
        parts.get("qzeros"),
        parts.get("g_idx"),
        bits=bits,
        zero_offset=offset,
    )


def _gptq_settings(base: str, settings: Any) -> Mapping[str, Any]:
    """The settings of a matrix: some configs have one set for experts and one for the rest."""
    part = settings.get("experts" if ".experts." in base else "dense")
    return part if isinstance(part, Mapping) else settings


def _packed(base: str, entry: Entry, entries: Entries, settings: Any) -> Stored | None:
    """compressed-tensors' int32 ``[N, K / 8]``, scales ``[N, K / group]``."""
    scale = entries.get(f"{base}.weight_scale")
    if scale is None or scale.dtype not in _FLOATS:
        return None
    bits = next(_group_bits(settings), 4)
    if bits not in _PACKED_BITS:
        raise _unreadable(base, f"packed integers of {bits} bits; 4 and 8 are read")
    shape = (*entry.shape[:-1], entry.shape[-1] * 32 // bits)
    _require(scale, (*entry.shape[:-1], scale.shape[-1] if scale.shape else 0), base)
    parts = {"packed": Part(entry), "scale": Part(scale)}
    zeros, index = (entries.get(f"{base}.weight_{n}") for n in ("zero_point", "g_idx"))
    if zeros is not None:
        parts["zero_point"] = Part(zeros)
    if index is not None:
        parts["g_idx"] = Part(index, per=None)
    decode = partial(_decode_packed, tuple(parts), bits)
    unit = 1 if zeros is None else None  # zero points are packed along the rows
    keeping = None
    if index is None:
        dtype, groups = TORCH_DTYPES[scale.dtype], scale.shape[-1]
        keeping = kept.packed(shape[-1], bits, groups, dtype, zeros is not None, gptq=None)
    return Stored(f"INT{bits}", shape, tuple(parts.values()), decode, unit, keeping)


def _decode_packed(names: tuple[str, ...], bits: int, *tensors: Tensor) -> Tensor:
    parts = _parts(names, tensors)
    return dequantize_packed(
        parts["packed"],
        parts["scale"],
        parts.get("zero_point"),
        parts.get("g_idx"),
        bits=bits,
    )


def _parts(names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The tensors of packed integers by name; the group of each input is a vector."""
    parts = dict(zip(names, tensors, strict=True))
    return {name: part.flatten() if name == "g_idx" else part for name, part in parts.items()}


def _group_bits(settings: Any) -> Iterator[Any]:
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and weights.get("num_bits"):
            yield weights["num_bits"]


def _nvfp4(
    entry: Entry, scale: Entry | None, factor: Entry | None, *, divide: bool
) -> Stored | None:
    """Bytes of two e2m1 codes, an e4m3 scale for every 16, one factor for a matrix."""
    if scale is None or factor is None or scale.dtype != "F8_E4M3":
        return None
    shape = (*entry.shape[:-1], 2 * entry.shape[-1])
    _require(scale, (*entry.shape[:-1], shape[-1] // 16), entry.name)
    parts = (Part(entry), Part(scale), _per_matrix(factor, shape, entry.name))
    decode = partial(dequantize_nvfp4, divide=divide)
    return Stored("NVFP4", shape, parts, decode, kept=kept.nvfp4(shape[-1], divide))


def _per_matrix(factor: Entry, shape: tuple[int, ...], name: str) -> Part:
    """A factor of a matrix, or one for each matrix of a stack."""
    if factor.dtype not in _FLOATS or factor.elements not in (1, math.prod(shape[:-2])):
        raise _unfit(name, f"its factor {factor.name} has shape {list(factor.shape)}")
    if factor.elements == 1:
        return Part(factor, per=None)
    return Part(replace(factor, shape=(factor.elements, 1)), per=shape[-2])


def _affine(base: str, entry: Entry, entries: Entries, settings: Any) -> Stored | None:
    """MLX: uint32 ``[N, K * bits / 32]``, scales and biases ``[N, K / group]``."""
    scales, biases = entries.get(f"{base}.scales"), entries.get(f"{base}.biases")
    if scales is None or biases is None or not scales.shape or scales.dtype not in _FLOATS:
        return None
    own = settings.get(base)
    values = own if isinstance(own, Mapping) else settings
    group = values.get("group_size", 64)
    if group not in GROUPS:
        raise _unreadable(base, f"MLX's layout with groups of {group}; {GROUPS} are read")
    bits, rest = divmod(entry.shape[-1] * 32, max(1, scales.shape[-1] * group))
    if rest or bits not in BITS:
        raise _unfit(base, f"{scales.shape[-1]} groups of {group} do not divide its rows")
    _require(scales, (*entry.shape[:-1], scales.shape[-1]), base)
    _require(biases, scales.shape, base)
    shape = (*entry.shape[:-1], scales.shape[-1] * group)
    parts = (Part(entry), Part(scales), Part(biases))
    decode = partial(dequantize_affine, bits=bits)
    same = biases.dtype == scales.dtype
    keeping = kept.affine(shape[-1], bits, group, TORCH_DTYPES[scales.dtype]) if same else None
    return Stored(f"{bits}-bit", shape, parts, decode, kept=keeping)


def _fp8(entry: Entry, scale: Entry) -> Stored | None:
    """e4m3 numbers with a scale for each block of 128 x 128, each row, or the matrix."""
    *stack, rows, columns = entry.shape
    blocks = (*stack, -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
    if scale.shape == blocks:
        whole = rows % FP8_BLOCK == 0
        decode = dequantize_blocks if whole else partial(dequantize_blocks, rows=rows)
        parts = (Part(entry), Part(scale, per=FP8_BLOCK))
        keeping = kept.fp8(columns) if whole else None
        return Stored("F8_E4M3", entry.shape, parts, decode, FP8_BLOCK if whole else None, keeping)
    if scale.elements == entry.rows:
        part = Part(replace(scale, shape=(entry.rows, 1)))
    elif scale.elements in (1, math.prod(stack)):
        part = _per_matrix(scale, entry.shape, entry.name)
    else:
        return None
    keeping = kept.fp8_rows(columns)
    return Stored("F8_E4M3", entry.shape, (Part(entry), part), _scaled, kept=keeping)


def dequantize_blocks(weight: Tensor, scale: Tensor, rows: int | None = None) -> Tensor:
    """FP8 matrices ``[..., K]`` below each other; ``rows`` of each if blocks are cut short."""
    if rows is None:
        return dequantize_fp8(weight, scale, torch.float32)
    tall = -(-rows // FP8_BLOCK)
    stack = weight.unflatten(0, (-1, rows)), scale.unflatten(0, (-1, tall))
    return dequantize_fp8(*stack, torch.float32).flatten(0, 1)


def _scaled(weight: Tensor, scale: Tensor) -> Tensor:
    return weight.float() * scale.float()


def _blocks(base: str, entry: Entry, entries: Entries) -> Stored:
    """Ggml's blocks; its NVFP4 may have a factor next to it."""
    name = entry.dtype.lower()
    decode = partial(formats.dequantize, format=formats.FORMATS[name])
    factor = entries.get(f"{base}.scale")
    scaled_rows = factor is not None and factor.dtype == "F32"
    try:
        keeping = kept.blocks(name, entry.shape[-1], factor=scaled_rows)
    except ValueError as error:
        raise _unfit(base, str(error)) from error
    if factor is None or not scaled_rows:
        return Stored(entry.dtype, entry.shape, (Part(entry),), decode, kept=keeping)
    parts = (Part(entry), _per_matrix(factor, entry.shape, entry.name))

    def scaled(data: Tensor, scale: Tensor) -> Tensor:
        return decode(data) * scale

    return Stored(entry.dtype, entry.shape, parts, scaled, kept=keeping)


def _require(entry: Entry, shape: tuple[int, ...], name: str) -> None:
    if entry.shape != shape:
        raise _unfit(name, f"{entry.name} has shape {list(entry.shape)} instead of {list(shape)}")


def _unfit(name: str, why: str) -> CheckpointError:
    return CheckpointError(f"{name} is damaged: {why}. Download the checkpoint again.")


def _unreadable(name: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{name} is {what}. Use another form of the checkpoint, such as fishaudio/drama-3."
    )
