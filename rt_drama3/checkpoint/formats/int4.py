"""Integers of 4 or 8 bits in 32-bit words: the layouts of GPTQ and of compressed-tensors.

Both scale groups along the input. GPTQ stores ``[in, out]`` and packs along the input,
compressed-tensors stores ``[out, in]`` as the unpacked weight has it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import chunks, column_counts, require_finite, stored_half
from rt_drama3.checkpoint.formats.search import columns, fit_scale, rounded, steps

_PLACES = steps(6, 13, 0.5)  # of the largest magnitude among the codes


def dequantize_gptq(
    qweight: Tensor,
    scales: Tensor,
    qzeros: Tensor | None = None,
    g_idx: Tensor | None = None,
    *,
    bits: int = 4,
    zero_offset: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``(q - zero) * scale``.

    Args:
        qweight: int32 ``[in * bits / 32, out]``, the lowest bits for the first input.
        scales: floating point ``[groups, out]``.
        qzeros: int32 ``[groups, out * bits / 32]`` of an asymmetric file. None for a symmetric
            one, whatever it stores: its zero is the middle code.
        g_idx: ``[in]``, the group of each input, if the file was made with ``desc_act``. None
            gives each group the same number of consecutive inputs.
        bits: 4 or 8.
        zero_offset: added to stored zeros: 1, or 0 if ``checkpoint_format`` is ``gptq_v2``.
        dtype: of the result; the arithmetic is float32.

    Returns:
        ``[out, in]``.

    Raises:
        ValueError: other bits, or shapes or groups that do not fit together.
    """
    per_word = _per_word(bits)
    inputs, outputs = qweight.shape[0] * per_word, qweight.shape[1]
    groups = scales.shape[0]
    zero_shape = (groups, outputs // per_word)
    if (
        scales.shape != (groups, outputs)
        or (qzeros is not None and (qzeros.shape != zero_shape or outputs % per_word))
        or (g_idx is not None and g_idx.shape != (inputs,))
    ):
        raise ValueError(
            f"Packed weights of {list(qweight.shape)}, scales of {list(scales.shape)}, zeros of "
            f"{_shape(qzeros)} and g_idx of {_shape(g_idx)} do not belong together."
        )
    group = group_index(g_idx, inputs, groups, qweight.device)
    top = (1 << bits) - 1
    zeros = None
    if qzeros is not None:
        # A writer of the first version stores one less, modulo the range.
        zeros = (_fields(qzeros, bits).flatten(1) + zero_offset & top).float()
    out = torch.empty(outputs, inputs, dtype=dtype, device=qweight.device)
    for part in chunks(qweight.shape[0], per_word * outputs):
        span = slice(part.start * per_word, part.stop * per_word)  # of inputs
        values = _fields(qweight[part], bits).transpose(1, 2).flatten(0, 1).float()
        values -= (top + 1) // 2 if zeros is None else zeros[group[span]]
        values *= scales[group[span]].float()
        out[:, span] = values.t()
    return out


def quantize_gptq(
    weight: Tensor, group: int = 128, importance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Writes symmetric 4-bit weights in GPTQ's layout, each rounded to the nearest code.

    Args:
        weight: floating point ``[out, in]``.
        group: inputs that share a scale.
        importance: ``[in]``, how much an error in that column counts; None counts all alike.

    Returns:
        int32 ``[in / 8, out]`` and half-precision scales ``[in / group, out]``.

    Raises:
        ValueError: the inputs are not a multiple of the group, or that of 8; weights or importance
            are not finite.
    """
    codes, scales = _quantize(weight, group, importance)
    return _words(codes.t().unflatten(0, (-1, 8)), 1), scales.t().contiguous()


def dequantize_packed(
    packed: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    g_idx: Tensor | None = None,
    *,
    inputs: int | None = None,
    bits: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``(q - zero) * scale`` of compressed-tensors' ``pack-quantized``.

    Args:
        packed: int32 ``weight_packed [out, in * bits / 32]``, the lowest bits for the first input.
        scale: floating point ``weight_scale [out, groups]``.
        zero_point: int32 ``weight_zero_point [out * bits / 32, groups]``, packed along the output;
            None if symmetric: the zero is the middle code.
        g_idx: ``weight_g_idx [in]``, the group of each input; None gives each group the same
            number of consecutive inputs.
        inputs: the second number of ``weight_shape``, where the last word is filled in part.
        bits: 4 or 8.
        dtype: of the result; the arithmetic is float32.

    Returns:
        ``[out, in]``.

    Raises:
        ValueError: other bits, or shapes or groups that do not fit together.
    """
    per_word = _per_word(bits)
    rows, groups = packed.shape[0], scale.shape[1]
    inputs = packed.shape[1] * per_word if inputs is None else inputs
    if (
        scale.shape[0] != rows
        or not 0 <= packed.shape[1] * per_word - inputs < per_word
        or (zero_point is not None and zero_point.shape != (-(-rows // per_word), groups))
        or (g_idx is not None and g_idx.shape != (inputs,))
    ):
        raise ValueError(
            f"Packed weights of {list(packed.shape)} for {inputs} inputs, scales of "
            f"{list(scale.shape)}, zero points of {_shape(zero_point)} and g_idx of "
            f"{_shape(g_idx)} do not belong together."
        )
    group = group_index(g_idx, inputs, groups, packed.device)
    zeros = None
    if zero_point is not None:
        zeros = _fields(zero_point, bits).transpose(1, 2).flatten(0, 1).float()
    out = torch.empty(rows, inputs, dtype=dtype, device=packed.device)
    for part in chunks(rows, inputs):
        values = _fields(packed[part], bits).flatten(1)[:, :inputs].float()
        values -= 1 << bits - 1 if zeros is None else zeros[part][:, group]
        values *= scale[part].float()[:, group]
        out[part] = values
    return out


def quantize_packed(
    weight: Tensor, group: int = 128, importance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As ``quantize_gptq``, in the layout of compressed-tensors.

    Returns:
        int32 ``[out, in / 8]`` and half-precision scales ``[out, in / group]``.
    """
    codes, scales = _quantize(weight, group, importance)
    return _words(codes.unflatten(1, (-1, 8)), 2), scales


def _quantize(weight: Tensor, group: int, importance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes 0 to 15, int32 ``[out, in]``, and half-precision scales ``[out, in / group]``."""
    rows, inputs = weight.shape
    if group % 8 or inputs % group:
        raise ValueError(
            f"{inputs} inputs are not a multiple of the group {group}, or that is not one of 8."
        )
    codes = torch.empty(rows, inputs, dtype=torch.int32, device=weight.device)
    scales = torch.empty(rows, inputs // group, dtype=torch.float16, device=weight.device)
    counts, nearest = column_counts(importance, weight), rounded(-8, 7)
    for part in chunks(rows, inputs):
        x = weight[part].float()
        require_finite(x)
        data = columns(x, None if counts is None else counts.expand_as(x), group)
        fitted = fit_scale(data, nearest, data.x.abs().amax(0), _PLACES)
        scale = stored_half(fitted[:, None])[1][:, 0]
        scale = torch.where(scale > 0, scale, 1)
        q = nearest(data.x / scale).add_(8)
        codes[part] = q.t().reshape(-1, inputs).int()
        scales[part] = scale.view(-1, inputs // group)
    return codes, scales


def group_index(g_idx: Tensor | None, inputs: int, groups: int, device: torch.device) -> Tensor:
    """The group of each input: int64 ``[in]``.

    Raises:
        ValueError: the inputs do not divide among the groups, or an index is none of them.
    """
    if g_idx is None:
        if groups == 0 or inputs % groups:
            raise ValueError(f"{inputs} inputs do not divide evenly among {groups} groups.")
        return torch.arange(inputs, device=device) // (inputs // groups)
    if ((g_idx < 0) | (g_idx >= groups)).any():
        raise ValueError(
            f"g_idx names groups from {int(g_idx.min())} to {int(g_idx.max())}, but "
            f"there are {groups}."
        )
    return g_idx.long()


def _per_word(bits: int) -> int:
    if bits not in (4, 8):
        raise ValueError(f"Packed integers have 4 or 8 bits here, not {bits}.")
    return 32 // bits


def _fields(words: Tensor, bits: int) -> Tensor:
    """Codes of 32-bit words, the lowest bits first: ``[a, b]`` -> int32 ``[a, b, 32 / bits]``."""
    places = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return words[..., None] >> places & (1 << bits) - 1


def _words(codes: Tensor, dim: int) -> Tensor:
    """Eight 4-bit codes along ``dim`` as one 32-bit word, the first in the lowest bits."""
    parts = codes.unbind(dim)
    word = parts[0].clone(memory_format=torch.contiguous_format)
    for place in range(1, 8):
        word |= parts[place] << 4 * place
    return word


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)
