# Triton's own language: constants in capitals, types only at launch.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels of the mixture of experts: routing, experts for few rows, experts for many rows.

A frame step has few rows, so its cost is the bytes of the chosen experts: one kernel turns a (row,
expert) pair into its hidden values, a second one those into the pair's output. Every weight is read
once, straight into registers, 16 bytes per thread and load, all loads of a program in
flight. In the official model the 8 experts of one row and layer are 25 MB, 6 us at 4.3 TB/s, and a
layer's two launches spread them over 512 programs each. A prompt has many rows per expert, so there
every expert multiplies its own rows on the matrix units; up to some hundred rows it is still bound
by reading nearly all experts, 0.8 GB per layer.

FP8 weights are never dequantised in memory: the factor of a 128x128 block goes into the activations
(few rows) or into the block's product (many rows). Sums have one order, fixed by sizes alone; there
are no atomics, and no row sees another row's values. Nothing here waits for the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

FP8_BLOCK = 128  # rows and columns that share one factor

_LOWEST = tl.constexpr(-3.0e38)
_SCALE_BLOCK = tl.constexpr(FP8_BLOCK)


@triton.jit
def _widen(tile):
    """Any weight as float32; uint8 holds the bits of float8_e4m3fn, for devices that lack it."""
    if tile.dtype == tl.uint8:
        bits = tile.to(tl.uint32)
        # Its exponent and mantissa in a float32's places are the value times 2^-120.
        value = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
        return value.to(tl.float32, bitcast=True) * 1.329227995784916e36
    else:
        return tile.to(tl.float32)


@triton.jit
def _operand(tile, dtype: tl.constexpr):
    # Through float32: Hopper's direct cast of FP8 to bfloat16 runs on a slow unit.
    if tile.dtype == dtype:
        return tile
    else:
        return _widen(tile).to(dtype)


@triton.jit
def route_kernel(
    logits,
    chosen,
    weights,
    shared,
    EXPERTS: tl.constexpr,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Best ``TOP`` of one row's logits; the softmax over those is the renormalised full one."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    line = logits + row * (EXPERTS + 1)
    left = tl.load(line + expert, mask=expert < EXPERTS, other=float("-inf")).to(tl.float32)
    # Bad numbers must not become bad addresses: NaN ranks last, and every pick stays distinct.
    left = tl.where((left > _LOWEST) | (expert >= EXPERTS), left, _LOWEST)
    best = tl.max(left, 0)
    picks = tl.zeros((SLOTS,), tl.int32)
    shares = tl.zeros((SLOTS,), tl.float32)
    for number in tl.static_range(TOP):
        value = tl.max(left, 0)
        pick = tl.min(tl.where(left == value, expert, EXPERTS - 1), 0)
        picks = tl.where(slot == number, pick, picks)
        shares = tl.where(slot == number, tl.exp(value - best), shares)
        left = tl.where(expert == pick, float("-inf"), left)
    inside = slot < TOP
    tl.store(chosen + row * TOP + slot, picks, mask=inside)
    tl.store(weights + row * TOP + slot, shares / tl.sum(shares, 0), mask=inside)
    gate = tl.load(line + EXPERTS).to(tl.float32)
    tl.store(shared + row, 1.0 / (1.0 + tl.exp(-gate)))


@triton.jit
def expand_few_kernel(
    x,
    chosen,
    weight,
    scale,
    hidden,
    DIM: tl.constexpr,
    FFN: tl.constexpr,
    TOP: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``silu(gate) * up`` of one (row, expert) pair for ``BLOCK_N`` hidden columns, float32."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    pair = tl.program_id(1).to(tl.int64)
    expert = tl.load(chosen + pair).to(tl.int64)
    gate_rows = weight + (expert * 2 * FFN + column)[:, None] * DIM
    up_rows = gate_rows + FFN * DIM
    gate = tl.zeros((BLOCK_N,), tl.float32)
    up = tl.zeros((BLOCK_N,), tl.float32)
    for start in tl.range(0, DIM, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        seen = (column < FFN)[:, None] & (k < DIM)[None, :]
        gate_weight = tl.load(gate_rows + k[None, :], mask=seen, other=0.0)
        up_weight = tl.load(up_rows + k[None, :], mask=seen, other=0.0)
        values = tl.load(x + pair // TOP * DIM + k, mask=k < DIM, other=0.0).to(tl.float32)
        gate_values = values
        up_values = values
        if SCALED:  # BLOCK_N divides 128, so the whole tile lies in one row of factors
            line = expert * 2 * (FFN // _SCALE_BLOCK) + tl.program_id(0) * BLOCK_N // _SCALE_BLOCK
            factors = scale + line * (DIM // _SCALE_BLOCK) + k // _SCALE_BLOCK
            gate_values = values * tl.load(factors, mask=k < DIM, other=0.0)
            factors += FFN // _SCALE_BLOCK * (DIM // _SCALE_BLOCK)
            up_values = values * tl.load(factors, mask=k < DIM, other=0.0)
        gate += tl.sum(_widen(gate_weight) * gate_values[None, :], 1)
        up += tl.sum(_widen(up_weight) * up_values[None, :], 1)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(hidden + pair * FFN + column, result, mask=column < FFN)


@triton.jit
def contract_few_kernel(
    hidden,
    chosen,
    share,
    weight,
    scale,
    products,
    DIM: tl.constexpr,
    FFN: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``BLOCK_N`` columns of the weighted output of one (row, expert) pair, float32."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    pair = tl.program_id(1).to(tl.int64)
    expert = tl.load(chosen + pair).to(tl.int64)
    rows = weight + (expert * DIM + column)[:, None] * FFN
    total = tl.zeros((BLOCK_N,), tl.float32)
    for start in tl.range(0, FFN, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        seen = (column < DIM)[:, None] & (k < FFN)[None, :]
        tile = tl.load(rows + k[None, :], mask=seen, other=0.0)
        values = tl.load(hidden + pair * FFN + k, mask=k < FFN, other=0.0)
        if SCALED:
            line = expert * (DIM // _SCALE_BLOCK) + tl.program_id(0) * BLOCK_N // _SCALE_BLOCK
            factors = scale + line * (FFN // _SCALE_BLOCK) + k // _SCALE_BLOCK
            values *= tl.load(factors, mask=k < FFN, other=0.0)
        total += tl.sum(_widen(tile) * values[None, :], 1)
    tl.store(products + pair * DIM + column, total * tl.load(share + pair), mask=column < DIM)


@triton.jit(do_not_specialize=["pairs", "rows"])
def collect_kernel(chosen, members, counts, pairs, rows, BLOCK: tl.constexpr):
    """Lists the pairs of one expert in ascending order: ``members[expert, :counts[expert]]``."""
    expert = tl.program_id(0)
    found = 0
    for start in tl.range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        mine = tl.load(chosen + pair, mask=pair < pairs, other=-1) == expert
        place = found + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(members + expert.to(tl.int64) * rows + place, pair, mask=mine)
        found += tl.sum(mine.to(tl.int32), 0)
    tl.store(counts + expert, found)


@triton.jit(do_not_specialize=["rows"])
def expand_many_kernel(
    x,
    members,
    counts,
    weight,
    scale,
    hidden,
    rows,
    DIM: tl.constexpr,
    FFN: tl.constexpr,
    TOP: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``silu(gate) * up`` of all pairs of one expert for ``BLOCK_N`` hidden columns.

    Tiles are ``[columns, pairs]``: weights are the left operand, which the matrix units can take
    from registers after the cast from FP8, and few pairs still fill them.
    """
    expert = tl.program_id(1).to(tl.int64)
    count = tl.load(counts + expert)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    gate_rows = weight + (expert * 2 * FFN + column)[:, None] * DIM
    up_rows = gate_rows + FFN * DIM
    line = expert * 2 * (FFN // _SCALE_BLOCK) + tl.program_id(0) * BLOCK_N // _SCALE_BLOCK
    factors = scale + line * (DIM // _SCALE_BLOCK)
    for start in tl.range(0, count, BLOCK_M):
        place = start + tl.arange(0, BLOCK_M)
        pair = tl.load(members + expert * rows + place, mask=place < count, other=0).to(tl.int64)
        lines = x + (pair // TOP * DIM)[None, :]
        gate = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for first in tl.range(0, DIM, BLOCK_K):
            k = first + tl.arange(0, BLOCK_K)
            values = tl.load(
                lines + k[:, None], mask=(k < DIM)[:, None] & (place < count)[None, :], other=0.0
            )
            seen = (column < FFN)[:, None] & (k < DIM)[None, :]
            gate_weight = tl.load(gate_rows + k[None, :], mask=seen, other=0.0)
            up_weight = tl.load(up_rows + k[None, :], mask=seen, other=0.0)
            gate_weight = _operand(gate_weight, values.dtype)
            up_weight = _operand(up_weight, values.dtype)
            if SCALED:
                at = factors + first // _SCALE_BLOCK
                gate_scale = tl.load(at)
                up_scale = tl.load(at + FFN // _SCALE_BLOCK * (DIM // _SCALE_BLOCK))
                gate += tl.dot(gate_weight, values, input_precision="ieee") * gate_scale
                up += tl.dot(up_weight, values, input_precision="ieee") * up_scale
            else:
                gate = tl.dot(gate_weight, values, gate, input_precision="ieee")
                up = tl.dot(up_weight, values, up, input_precision="ieee")
        result = (gate / (1.0 + tl.exp(-gate)) * up).to(hidden.dtype.element_ty)
        inside = (column < FFN)[:, None] & (place < count)[None, :]
        tl.store(hidden + (pair * FFN)[None, :] + column[:, None], result, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def contract_many_kernel(
    hidden,
    members,
    counts,
    share,
    weight,
    scale,
    products,
    rows,
    DIM: tl.constexpr,
    FFN: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Weighted outputs of all pairs of one expert for ``BLOCK_N`` columns, each stored apart."""
    expert = tl.program_id(1).to(tl.int64)
    count = tl.load(counts + expert)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_rows = weight + (expert * DIM + column)[:, None] * FFN
    line = expert * (DIM // _SCALE_BLOCK) + tl.program_id(0) * BLOCK_N // _SCALE_BLOCK
    factors = scale + line * (FFN // _SCALE_BLOCK)
    for start in tl.range(0, count, BLOCK_M):
        place = start + tl.arange(0, BLOCK_M)
        pair = tl.load(members + expert * rows + place, mask=place < count, other=0).to(tl.int64)
        lines = hidden + (pair * FFN)[None, :]
        total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for first in tl.range(0, FFN, BLOCK_K):
            k = first + tl.arange(0, BLOCK_K)
            values = tl.load(
                lines + k[:, None], mask=(k < FFN)[:, None] & (place < count)[None, :], other=0.0
            )
            seen = (column < DIM)[:, None] & (k < FFN)[None, :]
            tile = tl.load(weight_rows + k[None, :], mask=seen, other=0.0)
            tile = _operand(tile, values.dtype)
            if SCALED:
                factor = tl.load(factors + first // _SCALE_BLOCK)
                total += tl.dot(tile, values, input_precision="ieee") * factor
            else:
                total = tl.dot(tile, values, total, input_precision="ieee")
        weighted = total * tl.load(share + pair, mask=place < count, other=0.0)[None, :]
        inside = (column < DIM)[:, None] & (place < count)[None, :]
        result = weighted.to(products.dtype.element_ty)
        tl.store(products + (pair * DIM)[None, :] + column[:, None], result, mask=inside)
