"""Launches the kernels of ``kernels.moe``: buffers, grids, and tiles chosen from sizes alone."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from rt_drama3.model.kernels import moe


def few_tiles(width: int, itemsize: int) -> dict[str, int]:
    """Tile of the kernels for few rows: about 16 KiB of a weight, all of its loads in flight.

    Args:
        width: columns of the weight, over which products are summed.
        itemsize: bytes of one weight.
    """
    block_k = min(2048, triton.next_power_of_2(width))
    block_n = max(1, min(32, 16384 // (block_k * itemsize)))
    return {"BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": 4, "num_stages": 1}


def many_tiles(pairs: int, experts: int, wide: bool, itemsize: int, large: bool) -> dict[str, int]:
    """Tile of the kernels for many rows.

    Args:
        pairs: (row, expert) pairs in all.
        experts: experts they spread over.
        wide: activations are float32, which are multiplied outside the matrix units.
        itemsize: bytes of one weight.
        large: the device's registers and shared memory hold large tiles (Hopper, Blackwell).
    """
    most = 64 if large and not wide else 32
    block_m = max(16, min(most, triton.next_power_of_2(-(-pairs // experts))))
    block_k = 32 if wide else 128 if itemsize == 1 else 64
    stages = 4 if block_m == 16 and large else 3
    sizes = {"BLOCK_N": 64, "BLOCK_M": block_m, "BLOCK_K": block_k}
    return sizes | {"num_warps": 4, "num_stages": stages}


def route(logits: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """See ``kernels.route``."""
    rows, experts = logits.shape[0], logits.shape[1] - 1
    chosen = torch.empty(rows, top, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, top, dtype=torch.float32, device=logits.device)
    shared = torch.empty(rows, 1, dtype=torch.float32, device=logits.device)
    sizes = {"BLOCK": triton.next_power_of_2(experts), "SLOTS": triton.next_power_of_2(top)}
    moe.route_kernel[(rows,)](
        logits.contiguous(), chosen, weights, shared, EXPERTS=experts, TOP=top, num_warps=1, **sizes
    )
    return chosen, weights, shared


def experts(
    x: Tensor,
    chosen: Tensor,
    share: Tensor,
    gate_up: Tensor,
    gate_up_scale: Tensor | None,
    down: Tensor,
    down_scale: Tensor | None,
    few: bool,
) -> Tensor:
    """Weighted outputs of every (row, expert) pair, ``[N, top, dim]``.

    Args:
        x, chosen, share, gate_up, gate_up_scale, down, down_scale: see ``kernels.experts``.
        few: one program per pair, in float32; otherwise per expert, in the dtype of ``x``.
    """
    (rows, top), (total, dim, ffn) = chosen.shape, down.shape
    gate_up, gate_up_scale = _readable(gate_up, gate_up_scale)
    down, down_scale = _readable(down, down_scale)
    kind = torch.float32 if few else x.dtype
    hidden = torch.empty(rows * top, ffn, dtype=kind, device=x.device)
    products = torch.empty(rows, top, dim, dtype=kind, device=x.device)
    sizes = {"DIM": dim, "FFN": ffn, "SCALED": gate_up_scale is not gate_up}
    if few:
        tiles = few_tiles(dim, gate_up.element_size())
        moe.expand_few_kernel[triton.cdiv(ffn, tiles["BLOCK_N"]), rows * top](
            x.contiguous(), chosen, gate_up, gate_up_scale, hidden, TOP=top, **sizes, **tiles
        )
        tiles = few_tiles(ffn, down.element_size())
        moe.contract_few_kernel[triton.cdiv(dim, tiles["BLOCK_N"]), rows * top](
            hidden, chosen, share, down, down_scale, products, **sizes, **tiles
        )
        return products
    members = torch.empty(total, rows, dtype=torch.int32, device=x.device)
    counts = torch.empty(total, dtype=torch.int32, device=x.device)
    moe.collect_kernel[(total,)](chosen, members, counts, rows * top, rows, BLOCK=1024)
    wide, large = x.dtype == torch.float32, _large(x.device)
    tiles = many_tiles(rows * top, total, wide, down.element_size(), large)
    listed = members, counts
    moe.expand_many_kernel[triton.cdiv(ffn, tiles["BLOCK_N"]), total](
        x.contiguous(), *listed, gate_up, gate_up_scale, hidden, rows, TOP=top, **sizes, **tiles
    )
    moe.contract_many_kernel[triton.cdiv(dim, tiles["BLOCK_N"]), total](
        hidden, *listed, share, down, down_scale, products, rows, **sizes, **tiles
    )
    return products


def _readable(weight: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weight and factors as the device can read them; without factors the weight stands in."""
    if weight.dtype == torch.float8_e4m3fn and not _reads_fp8(weight.device):
        weight = weight.view(torch.uint8)
    return weight, weight if scale is None else scale


def _reads_fp8(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)


def _large(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)
