"""Matrices of the model: plain parameters, or weights that stay as a checkpoint stores them.

A ``Weight`` holds the stored numbers in one to three planes, and its ``Format`` says what they
stand for. Products go through a kernel where the device has one for the format
(``kernels.registry``). The plain form here is what kernels are compared with, and what computes
where there is none: a tile of some rows is dequantised, multiplied and dropped, so that no matrix
is ever there in another form as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rt_drama3.model.kernels import registry

FP8_BLOCK = 128
PLANES = ("data", "scales", "extra")
_TILE = 1 << 20  # weights that are dequantised at a time

# (planes [rows, numbers of a row]) -> float32 [rows, columns]
Decode = Callable[..., Tensor]


@dataclass(frozen=True)
class Format:
    """What the planes of a matrix stand for. Equal formats are the same object.

    Attributes:
        name: such as ``q4_k``, ``int4``, ``nvfp4`` or ``fp8``; kernels are registered for it.
        decode: makes float32 rows of rows of the planes.
        unit: columns that share bytes or a scale; a row can be cut between them.
        per: for each plane, the rows of the matrix that share one of its rows.
    """

    name: str
    decode: Decode
    unit: int = 1
    per: tuple[int, ...] = (1,)


def decode_fp8(data: Tensor, scales: Tensor) -> Tensor:
    """``float(q) * scale`` over blocks of 128 columns; whole blocks."""
    blocks = data.float().unflatten(-1, (-1, FP8_BLOCK))
    whole: Tensor = blocks.mul_(scales.float().unsqueeze(-1)).flatten(-2)
    return whole


# e4m3 with a float32 scale for each block of 128 x 128.
FP8 = Format("fp8", decode_fp8, FP8_BLOCK, (1, FP8_BLOCK))


class Weight(nn.Module):
    """A matrix, or a stack of equally large ones, as it is stored.

    Parameters: ``data [*stack, rows, ...]`` with the codes, and up to two more planes for scales
    and what else a format has, each with one row for ``format.per`` rows of the matrix.

    Args:
        format: what the planes stand for.
        shape: ``[*stack, rows, columns]`` of the numbers; a stack has at most one dim.
        planes: as many as the format needs.
    """

    data: Tensor
    scales: Tensor | None
    extra: Tensor | None

    def __init__(self, format: Format, shape: Sequence[int], planes: Sequence[Tensor]) -> None:
        super().__init__()
        self.format, self.shape = format, torch.Size(shape)
        for name, plane in zip(PLANES, [*planes, None, None], strict=False):
            held = None if plane is None else nn.Parameter(plane, requires_grad=False)
            self.register_parameter(name, held)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the codes."""
        return self.data.dtype

    @property
    def device(self) -> torch.device:
        """Where the codes are."""
        return self.data.device

    def dim(self) -> int:
        """Dims of ``shape``."""
        return len(self.shape)

    def parts(self) -> list[Weight]:
        """Itself; see ``Rows.parts``."""
        return [self]

    def planes(self) -> list[Tensor]:
        """Those that the format has."""
        return [plane for plane in (self.data, self.scales, self.extra) if plane is not None]

    def product(self, x: Tensor, index: int | None = None) -> Tensor:
        """``x [N, columns]`` times the matrix transposed -> ``[N, rows]``, in the dtype of ``x``.

        Args:
            x: rows.
            index: number of the matrix in a stack.
        """
        kernel = registry.find(self.format.name, x)
        if kernel is not None and kernel.product is not None:
            return kernel.product(x, self, index)
        return self.plain_product(x, index)

    def plain_product(self, x: Tensor, index: int | None = None) -> Tensor:
        """``product`` without a kernel."""
        parts = [F.linear(x, tile.to(x.dtype)) for tile in self.tiles(index)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def tiles(self, index: int | None = None) -> Iterator[Tensor]:
        """The matrix from its first rows to its last, in float32 parts of bounded size."""
        rows, columns = self.shape[-2:]
        planes = [plane if index is None else plane[index] for plane in self.planes()]
        # Whole rows of every plane.
        step = max(1, _TILE // columns // FP8_BLOCK) * FP8_BLOCK
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            parts = [
                plane[start // per : -(-stop // per)]
                for plane, per in zip(planes, self.format.per, strict=True)
            ]
            yield self._decoded(parts, stop - start)

    def taken(self, index: Tensor) -> Tensor:
        """Matrices of a stack: int64 ``[*]`` -> float32 ``[*, rows, columns]``."""
        rows = self.shape[-2]
        numbers = index.flatten()
        planes = [plane[numbers] for plane in self.planes()]
        whole = self._decoded([plane.flatten(0, 1) for plane in planes], numbers.numel() * rows)
        stack: Tensor = whole.unflatten(0, (*index.shape, rows))
        return stack

    def looked_up(self, rows: Tensor) -> Tensor:
        """Rows of a matrix: int64 ``[*]`` -> float32 ``[*, columns]``."""
        flat = rows.flatten()
        pairs = zip(self.planes(), self.format.per, strict=True)
        found = self.format.decode(*(plane[flat // per] for plane, per in pairs))
        table: Tensor = found.unflatten(0, rows.shape)
        return table

    def _decoded(self, planes: Sequence[Tensor], rows: int) -> Tensor:
        parts = [
            plane if per == 1 else plane.repeat_interleave(per, 0)[:rows]
            for plane, per in zip(planes, self.format.per, strict=True)
        ]
        return self.format.decode(*parts)


class Rows(nn.Module):
    """Matrices below each other that are not stored alike: one matrix to those who multiply.

    Args:
        parts: plain parameters and weights; of stacks, each holds its rows of every matrix.
    """

    def __init__(self, parts: Sequence[nn.Parameter | Weight]) -> None:
        super().__init__()
        for number, part in enumerate(parts):
            setattr(self, str(number), part)
        self.count = len(parts)
        first = parts[0].shape
        rows = sum(part.shape[-2] for part in parts)
        self.shape = torch.Size((*first[:-2], rows, first[-1]))

    @property
    def device(self) -> torch.device:
        """Where the parts are."""
        return self.parts()[0].device

    def dim(self) -> int:
        """Dims of ``shape``."""
        return len(self.shape)

    def parts(self) -> list[nn.Parameter | Weight]:
        """From the first rows to the last."""
        return [getattr(self, str(number)) for number in range(self.count)]

    def product(self, x: Tensor, index: int | None = None) -> Tensor:
        """See ``Weight.product``."""
        found = []
        for part in self.parts():
            if isinstance(part, Weight):
                found.append(part.product(x, index))
            else:
                found.append(F.linear(x, part if index is None else part[index]))
        return torch.cat(found, -1)

    def taken(self, index: Tensor) -> Tensor:
        """See ``Weight.taken``."""
        parts = self.parts()
        both = [p.taken(index) if isinstance(p, Weight) else p[index].float() for p in parts]
        return torch.cat(both, -2)

    def looked_up(self, rows: Tensor) -> Tensor:
        """See ``Weight.looked_up``."""
        found = torch.empty(rows.numel(), self.shape[-1], device=rows.device)
        flat, first = rows.flatten(), 0
        for part in self.parts():
            inside = (flat >= first) & (flat < first + part.shape[0])
            some = flat[inside] - first
            found[inside] = part.looked_up(some) if isinstance(part, Weight) else part[some].float()
            first += part.shape[0]
        table: Tensor = found.unflatten(0, rows.shape)
        return table


Matrix: TypeAlias = nn.Parameter | Weight | Rows


def is_plain(weight: object) -> TypeGuard[Tensor]:
    """Whether a matrix is a plain parameter."""
    return isinstance(weight, Tensor)


def common_format(*matrices: Matrix) -> Format | None:
    """The format of all of them; None if they are not stored alike, or are plain."""
    formats: set[Format | None] = set()
    for matrix in matrices:
        parts = matrix.parts() if isinstance(matrix, Rows) else [matrix]
        formats |= {part.format if isinstance(part, Weight) else None for part in parts}
    return formats.pop() if len(formats) == 1 else None


def matrices(model: nn.Module) -> Iterator[tuple[str, Matrix]]:
    """Name and value of every parameter, with weights as they are instead of their planes."""
    for name, parameter in model.named_parameters(recurse=False):
        yield name, parameter
    for name, child in model.named_children():
        if isinstance(child, Weight | Rows):
            yield name, child
        else:
            for tail, found in matrices(child):
                yield f"{name}.{tail}", found


def fp8_stack(*shape: int, device: torch.device | str | None) -> Weight:
    """An uninitialised stack of FP8 matrices ``[experts, rows, columns]``."""
    experts, rows, columns = shape
    blocks = (experts, rows // FP8_BLOCK, columns // FP8_BLOCK)
    data = torch.empty(shape, device=device, dtype=torch.float8_e4m3fn)
    return Weight(FP8, shape, (data, torch.empty(blocks, device=device, dtype=torch.float32)))


def dequantize_into(
    region: Tensor, weight: Tensor, scale: Tensor, room: Tensor | None = None
) -> None:
    """``dequantize`` of one FP8 matrix without NaN, written where it belongs.

    On a CPU torch converts FP8 one number at a time. The bits of e4m3, moved by seven, are those of
    a half-precision number that is 256 times smaller, and converting that is several times faster.
    The factor is a power of two and goes into the scale, so that the result is the same.

    Args:
        region: ``[rows, columns]`` of any floating dtype.
        weight, scale: see ``dequantize``.
        room: bytes of the host to work in, ``6 * 128 * columns`` of them; None allocates some.
    """
    rows, columns = weight.shape
    if weight.device.type != "cpu" or rows % FP8_BLOCK or columns % FP8_BLOCK:
        region.copy_(dequantize(weight, scale, region.dtype))
        return
    codes, factors = weight.view(torch.int8), scale.float().mul(256).unsqueeze(-1)
    if room is None:
        room = torch.empty(6 * FP8_BLOCK * columns, dtype=torch.uint8)
    halves, rest = room.split((2 * FP8_BLOCK * columns, 4 * FP8_BLOCK * columns))
    bits = halves.view(torch.int16).view(FP8_BLOCK, columns)
    numbers = rest.view(torch.float32).view(FP8_BLOCK, columns)
    blocks = numbers.view(FP8_BLOCK, -1, FP8_BLOCK)
    for number, start in enumerate(range(0, rows, FP8_BLOCK)):
        some = slice(start, start + FP8_BLOCK)
        bits.copy_(codes[some])  # the sign is now in all upper bits, one of which is not its own
        bits.bitwise_left_shift_(7).bitwise_and_(~0x4000)
        numbers.copy_(bits.view(torch.float16))
        blocks.mul_(factors[number])
        region[some].copy_(numbers)


def dequantize(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``W[i, j] = float(q[i, j]) * scale[i // 128, j // 128]`` over the last two dims.

    Despite the checkpoint's name ``weight_scale_inv`` the factor multiplies (docs/model.md,
    2.2). Sizes that are not multiples of 128 use the part of the last block that exists. Without a
    scale the weight is only cast.
    """
    if scale is None:
        return weight.to(dtype)
    rows, columns = weight.shape[-2:]
    if rows % FP8_BLOCK == 0 and columns % FP8_BLOCK == 0:
        blocks = weight.float().unflatten(-1, (-1, FP8_BLOCK)).unflatten(-3, (-1, FP8_BLOCK))
        blocks.mul_(scale.float()[..., :, None, :, None])
        whole: Tensor = blocks.flatten(-4, -3).flatten(-2, -1).to(dtype)
        return whole
    factor = scale.float().repeat_interleave(FP8_BLOCK, -2).repeat_interleave(FP8_BLOCK, -1)
    return (weight.float() * factor[..., :rows, :columns]).to(dtype)
