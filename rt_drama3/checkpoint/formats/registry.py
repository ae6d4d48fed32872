"""The block formats: a name, sizes, and how a block is read and written (docs/model.md, 11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats import ggml_basic as basic
from rt_drama3.checkpoint.formats import ggml_iq as iq
from rt_drama3.checkpoint.formats import ggml_iq_write as iq_write
from rt_drama3.checkpoint.formats import ggml_k as k
from rt_drama3.checkpoint.formats import ggml_k_write as k_write
from rt_drama3.checkpoint.formats import nvfp4
from rt_drama3.checkpoint.formats.bits import chunks, column_counts, require_finite

Decode = Callable[[Tensor], Tensor]
Encode = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Format:
    """How a row of weights is stored: as consecutive blocks of the same size.

    Attributes:
        name: as ggml spells it, in lower case.
        elements: weights of a block.
        block_bytes: bytes of a block.
        ggml_id: the type's number in GGUF files.
        decode: uint8 ``[blocks, block_bytes]`` -> float32 ``[blocks, elements]``.
        encode: float32 ``[blocks, elements]`` and their importance or None -> uint8
            ``[blocks, block_bytes]``.
    """

    name: str
    elements: int
    block_bytes: int
    ggml_id: int
    decode: Decode
    encode: Encode

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of ``columns`` weights.

        Raises:
            ValueError: the row is not a whole number of blocks.
        """
        if columns % self.elements:
            raise ValueError(
                f"{self.name} stores blocks of {self.elements} weights, and {columns} columns are "
                "not a multiple of that. Use another format for this tensor."
            )
        return columns // self.elements * self.block_bytes

    def columns(self, row_bytes: int) -> int:
        """Weights in a row of ``row_bytes`` bytes.

        Raises:
            ValueError: the row is not a whole number of blocks.
        """
        if row_bytes % self.block_bytes:
            raise ValueError(
                f"{self.name} stores blocks of {self.block_bytes} bytes, and rows of {row_bytes} "
                "bytes are not a multiple of that."
            )
        return row_bytes // self.block_bytes * self.elements


FORMATS = {
    format.name: format
    for format in (
        Format("f32", 1, 4, 0, basic.decode_f32, basic.encode_f32),
        Format("f16", 1, 2, 1, basic.decode_f16, basic.encode_f16),
        Format("q4_0", 32, 18, 2, basic.decode_q4_0, basic.encode_q4_0),
        Format("q8_0", 32, 34, 8, basic.decode_q8_0, basic.encode_q8_0),
        Format("q2_k", 256, 84, 10, k.decode_q2_k, k_write.encode_q2_k),
        Format("q3_k", 256, 110, 11, k.decode_q3_k, k_write.encode_q3_k),
        Format("q4_k", 256, 144, 12, k.decode_q4_k, k_write.encode_q4_k),
        Format("q5_k", 256, 176, 13, k.decode_q5_k, k_write.encode_q5_k),
        Format("q6_k", 256, 210, 14, k.decode_q6_k, k_write.encode_q6_k),
        Format("iq3_xxs", 256, 98, 18, iq.decode_iq3_xxs, iq_write.encode_iq3_xxs),
        Format("iq4_xs", 256, 136, 23, iq.decode_iq4_xs, iq_write.encode_iq4_xs),
        Format("nvfp4", 64, 36, 40, nvfp4.decode_nvfp4, nvfp4.encode_nvfp4),
        Format("bf16", 1, 2, 30, basic.decode_bf16, basic.encode_bf16),
    )
}
_BY_ID = {format.ggml_id: format for format in FORMATS.values()}


def by_ggml_id(ggml_id: int) -> Format | None:
    """The format with this number in GGUF files; None if it is not supported."""
    return _BY_ID.get(ggml_id)


def dequantize(data: Tensor, format: Format, dtype: torch.dtype = torch.float32) -> Tensor:
    """Reads rows of blocks, some rows at a time.

    Args:
        data: uint8 ``[..., rows, row_bytes]``.
        format: of the blocks.
        dtype: of the result. The arithmetic is float32 in the order that ggml has, so float32
            results equal its bit for bit.

    Returns:
        ``[..., rows, columns]``.

    Raises:
        ValueError: the rows are not a whole number of blocks.
    """
    columns = format.columns(data.shape[-1])
    out = torch.empty(*data.shape[:-1], columns, dtype=dtype, device=data.device)
    rows, target = data.flatten(0, -2), out.view(-1, columns)
    for part in chunks(*target.shape):
        blocks = rows[part].reshape(-1, format.block_bytes)
        target[part] = format.decode(blocks).view(-1, columns)
    return out


def quantize(rows: Tensor, format: Format, importance: Tensor | None = None) -> Tensor:
    """Writes rows as blocks, some rows at a time.

    The scales of a block are those that minimise the sum of ``importance * error ** 2`` among the
    ones that are tried.

    Args:
        rows: floating point ``[..., rows, columns]``.
        format: of the blocks.
        importance: ``[columns]``, not negative: how much an error in that column counts, such as
            the mean square of what the column is multiplied with. None counts all alike.

    Returns:
        uint8 ``[..., rows, row_bytes]``.

    Raises:
        ValueError: the columns are not a multiple of the block, weights or importance are not
            finite, or weights are larger than the format can hold.
    """
    columns = rows.shape[-1]
    width = format.row_bytes(columns)
    out = torch.empty(*rows.shape[:-1], width, dtype=torch.uint8, device=rows.device)
    counts = column_counts(importance, rows)
    source, target = rows.flatten(0, -2), out.view(-1, width)
    for part in chunks(*source.shape):
        x = source[part].float()
        if format.elements > 1:
            require_finite(x)
        some = None
        if counts is not None:
            some = counts.expand_as(x).reshape(-1, format.elements)
        target[part] = format.encode(x.reshape(-1, format.elements), some).view(-1, width)
    return out
