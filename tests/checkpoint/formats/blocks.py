"""Random blocks and rows for the tests of the formats."""

from __future__ import annotations

import torch
from torch import Tensor

from rt_drama3.checkpoint.formats import FORMATS, Format

# The formats whose blocks have scales, and where half-precision numbers lie in a block.
HALVES = {
    "q4_0": (0,),
    "q8_0": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq3_xxs": (0,),
    "iq4_xs": (0,),
    "nvfp4": (),
}
SCALED = [FORMATS[name] for name in HALVES]


def random_blocks(format: Format, blocks: int, scales: Tensor, seed: int = 0) -> Tensor:
    """Random bytes, but for the half-precision numbers, which are drawn from ``scales``."""
    generator = torch.Generator().manual_seed(seed)
    shape = (blocks, format.block_bytes)
    data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    for start in HALVES[format.name]:
        chosen = scales[torch.randint(0, len(scales), (blocks,), generator=generator)]
        data[:, start : start + 2] = chosen.half()[:, None].view(torch.uint8)
    return data


def random_rows(kind: str, rows: int = 256, columns: int = 2048, seed: int = 0) -> Tensor:
    """Float32 weights with standard deviation 1."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "gauss":
        return torch.randn(rows, columns, generator=generator)
    uniform = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    if kind == "laplace":
        values = (uniform - 0.5).sign() * -(1 - 2 * (uniform - 0.5).abs()).clamp(min=1e-12).log()
        return (values / 2**0.5).float()
    assert kind == "t4"
    normal = torch.randn(5, rows, columns, generator=generator)
    values = normal[0] / (normal[1:].square().sum(0) / 4).sqrt()
    return values / 2**0.5


def rmse(x: Tensor, y: Tensor, importance: Tensor | None = None) -> float:
    """Root of the (weighted) mean square error, in float64."""
    error = (x.double() - y.double()).square()
    if importance is not None:
        error *= importance.double() / importance.double().mean()
    return float(error.mean().sqrt())
