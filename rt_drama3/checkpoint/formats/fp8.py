"""FP8 as the official experts have it: e4m3 with a float32 scale for each 128x128 block.

Reading it is ``rt_drama3.model.weights.dequantize``, which the model does, too.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rt_drama3.checkpoint.formats.bits import require_finite
from rt_drama3.model.weights import FP8_BLOCK

FP8_MAX = 448.0  # largest number of float8_e4m3fn


def quantize_fp8(weight: Tensor, *, exact: bool = False) -> tuple[Tensor, Tensor]:
    """Block-quantises a matrix as the official experts are (docs/model.md, 2.2).

    Args:
        weight: floating point ``[rows, columns]``.
        exact: use powers of two as scales, so that the product needs no rounding in bfloat16.

    Returns:
        float8_e4m3fn ``[rows, columns]`` and one float32 scale per block, a last part of one
        included.

    Raises:
        ValueError: weights are not finite.
    """
    require_finite(weight)
    rows, columns = weight.shape
    tall, wide = -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)
    padded = F.pad(weight.float(), (0, wide * FP8_BLOCK - columns, 0, tall * FP8_BLOCK - rows))
    blocks = padded.view(tall, FP8_BLOCK, wide, FP8_BLOCK)
    scales = blocks.abs().amax((1, 3)).clamp(min=1e-12) / FP8_MAX
    if exact:
        scales = scales.log2().ceil().exp2()
    quantised = (blocks / scales[:, None, :, None]).clamp(-FP8_MAX, FP8_MAX)
    matrix = quantised.view(padded.shape)[:rows, :columns].to(torch.float8_e4m3fn)
    return matrix.contiguous(), scales
