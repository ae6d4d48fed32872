# Triton's own language: constants in capitals, types only at launch.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels of one attention step: few queries per stream against a long cache.

One stream has as many independent heads as key/value heads, two in Drama 3, which would leave
nearly all of a GPU idle. So the cached rows are cut into pieces of a fixed size, every piece is
attended to on its own, and a second kernel merges the pieces ("flash decoding", Dao et al., 2023).
Pieces beyond a stream's position return immediately: a stream reads its own rows, however long the
attention length or another stream is, and its result does not depend on either.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_MERGED = 16  # pieces merged per iteration


def piece_rows(itemsize: int) -> int:
    """Cached rows per program: what stays in registers; 4-byte caches cannot use matrix units."""
    return 64 if itemsize <= 2 else 16


@triton.jit(do_not_specialize=["length"])
def attend_kernel(
    q,
    keys,
    values,
    position,
    parts,
    peaks,
    sums,
    stream_stride,
    head_stride,
    length,
    pieces,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One piece of the cache for the query heads that share one key/value head."""
    piece = tl.program_id(0)
    kv = tl.program_id(1)
    stream = tl.program_id(2).to(tl.int64)
    rows = tl.minimum(tl.load(position + stream) + 1, length)
    if piece * ROWS < rows:
        row = piece * ROWS + tl.arange(0, ROWS)
        member = tl.arange(0, BLOCK_G)
        d = tl.arange(0, BLOCK_D)
        head = stream * KV_HEADS * GROUP + kv * GROUP + member
        ours = member < GROUP
        queries = tl.load(
            q + head[:, None] * SIZE + d[None, :],
            mask=ours[:, None] & (d < SIZE)[None, :],
            other=0.0,
        )
        base = stream * stream_stride + kv * head_stride
        inside = (row < rows)[:, None] & (d < SIZE)[None, :]
        at = base + row[:, None] * SIZE + d[None, :]
        seen = tl.load(keys + at, mask=inside, other=0.0)
        score = tl.dot(queries, tl.trans(seen), input_precision="ieee") * scale
        score = tl.where((row < rows)[None, :], score, float("-inf"))
        peak = tl.max(score, 1)
        share = tl.exp(score - peak[:, None])
        held = tl.load(values + at, mask=inside, other=0.0)
        read = tl.dot(share.to(held.dtype), held, input_precision="ieee")
        part = head * pieces + piece
        tl.store(peaks + part, peak, mask=ours)
        tl.store(sums + part, tl.sum(share, 1), mask=ours)
        tl.store(
            parts + part[:, None] * SIZE + d[None, :],
            read,
            mask=ours[:, None] & (d < SIZE)[None, :],
        )


@triton.jit(do_not_specialize=["length"])
def merge_kernel(
    parts,
    peaks,
    sums,
    position,
    out,
    length,
    pieces,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """The pieces of one head of one stream, in order; zeros where nothing was read."""
    stream = tl.program_id(1).to(tl.int64)
    head = stream * HEADS + tl.program_id(0)
    d = tl.arange(0, BLOCK_D)
    rows = tl.minimum(tl.load(position + stream) + 1, length)
    count = tl.cdiv(rows, ROWS)
    peak = float("-inf")
    total = 0.0
    read = tl.zeros((BLOCK_D,), tl.float32)
    for start in tl.range(0, count, BLOCK_P):
        piece = start + tl.arange(0, BLOCK_P)
        inside = piece < count
        tops = tl.load(peaks + head * pieces + piece, mask=inside, other=float("-inf"))
        weights = tl.load(sums + head * pieces + piece, mask=inside, other=0.0)
        part = tl.load(
            parts + (head * pieces + piece)[:, None] * SIZE + d[None, :],
            mask=inside[:, None] & (d < SIZE)[None, :],
            other=0.0,
        )
        highest = tl.maximum(peak, tl.max(tops, 0))
        kept = tl.exp(peak - highest)
        share = tl.exp(tops - highest)
        total = total * kept + tl.sum(weights * share, 0)
        read = read * kept + tl.sum(part * share[:, None], 0)
        peak = highest
    result = read / tl.where(count > 0, total, 1.0)
    tl.store(out + head * SIZE + d, result.to(out.dtype.element_ty), mask=d < SIZE)


def attend(q: Tensor, keys: Tensor, values: Tensor, position: Tensor, length: int) -> Tensor:
    """See ``kernels.attend``."""
    streams, heads, size = q.shape
    kv_heads = keys.shape[1]
    rows = piece_rows(keys.element_size())
    pieces = triton.cdiv(length, rows)
    parts = torch.empty(streams, heads, pieces, size, dtype=torch.float32, device=q.device)
    peaks = torch.empty(streams, heads, pieces, dtype=torch.float32, device=q.device)
    sums = torch.empty_like(peaks)
    out = torch.empty(streams, heads, size, dtype=q.dtype, device=q.device)
    group, block_d = heads // kv_heads, max(16, triton.next_power_of_2(size))
    shared = {"SIZE": size, "BLOCK_D": block_d, "ROWS": rows, "num_warps": 4, "num_stages": 1}
    partial, bounds = (parts, peaks, sums), (length, pieces)
    attend_kernel[(pieces, kv_heads, streams)](
        *(q.contiguous(), keys, values, position, *partial),
        *(keys.stride(0), keys.stride(1), *bounds, size**-0.5),
        KV_HEADS=kv_heads,
        GROUP=group,
        BLOCK_G=max(16, triton.next_power_of_2(group)),
        **shared,
    )
    merge_kernel[(heads, streams)](
        *partial, position, out, *bounds, HEADS=heads, BLOCK_P=_MERGED, **shared
    )
    return out
