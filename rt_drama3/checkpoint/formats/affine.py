"""MLX's affine quantisation: unsigned codes of 2 to 8 bits, a scale and a bias for each group."""

from __future__ import annotations

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats.bits import chunks, unpack

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)


def dequantize_affine(
    weight: Tensor,
    scales: Tensor,
    biases: Tensor,
    bits: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``scale * q + bias``.

    Args:
        weight: ``[..., columns * bits / 32]``, uint32 or int32: a row is one stream of bits, the
            lowest first.
        scales: floating point ``[..., columns / group]``; so are the biases.
        biases: what a code of 0 stands for.
        bits: of a code; one of ``BITS``.
        dtype: of the result; the arithmetic is float32.

    Returns:
        ``[..., columns]``.

    Raises:
        ValueError: another number of bits, or shapes that give a group not in ``GROUPS``.
    """
    if bits not in BITS:
        raise ValueError(f"Affine codes have one of {BITS} bits, not {bits}.")
    columns, rest = divmod(weight.shape[-1] * 32, bits)
    group = columns // max(1, scales.shape[-1])
    if rest or group not in GROUPS or group * scales.shape[-1] != columns:
        raise ValueError(
            f"Rows of {weight.shape[-1]} words with {bits}-bit codes have {columns} columns; with "
            f"{scales.shape[-1]} scales, a group is none of {GROUPS}."
        )
    if scales.shape[:-1] != weight.shape[:-1] or biases.shape != scales.shape:
        raise ValueError(
            f"Weights of {list(weight.shape)}, scales of {list(scales.shape)} and biases of "
            f"{list(biases.shape)} do not belong together."
        )
    out = torch.empty(*weight.shape[:-1], columns, dtype=dtype, device=weight.device)
    rows = out.view(-1, columns)
    data = weight.view(torch.uint8).view(rows.shape[0], -1)
    scales, biases = (part.reshape(rows.shape[0], -1) for part in (scales, biases))
    for part in chunks(*rows.shape):
        values = unpack_stream(data[part], bits).float().unflatten(1, (-1, group))
        values = values.mul_(scales[part, :, None]).add_(biases[part, :, None])
        rows[part] = values.flatten(1)
    return out


def unpack_stream(data: Tensor, bits: int) -> Tensor:
    """Codes of a stream of bits, the lowest first: ``[N, bytes]`` -> ``[N, 8 * bytes / bits]``."""
    if bits == 8:
        return data
    if 8 % bits == 0:
        return unpack(data, bits, 1).flatten(1)
    runs = data.unflatten(1, (-1, bits))  # 8 codes each
    word = runs[..., 0].long()
    for place in range(1, bits):
        word |= runs[..., place].long() << 8 * place
    places = torch.arange(0, 8 * bits, bits, device=data.device)
    codes: Tensor = word[..., None] >> places & (1 << bits) - 1
    return codes.flatten(1)
