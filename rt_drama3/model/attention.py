"""Gated grouped-query attention over a static key/value cache, for backbone and tower alike.

Two entries: ``block`` reads many rows of one stream (prefill), ``step`` one row of every stream.
Source: docs/model.md, 4 (full attention) and 5 (tower). The loader brings both layouts to
the same form, see ``Attention``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rt_drama3.config import AttentionShape
from rt_drama3.model import kernels
from rt_drama3.model.ops import linear, parameter, rms_norm, rotate


class Attention(nn.Module):
    """One attention layer.

    Parameters: ``qkv [2*heads*head_dim + 2*kv_heads*head_dim, dim]`` with rows all Q, all gates, K,
    V; ``out [dim, heads*head_dim]``; ``q_norm``, ``k_norm [head_dim]`` float32 gammas.
    """

    def __init__(
        self, shape: AttentionShape, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.shape = shape
        query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.widths = (query, query, key, key)
        self.qkv = parameter(sum(self.widths), shape.dim, device=device, dtype=dtype)
        self.out = parameter(shape.dim, query, device=device, dtype=dtype)
        self.q_norm = parameter(shape.head_dim, device=device, dtype=torch.float32)
        self.k_norm = parameter(shape.head_dim, device=device, dtype=torch.float32)

    def _project(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``x [N, dim]``, ``rope [2, N, rotary/2]`` -> q, gate, k, v with heads split out."""
        q, gate, k, v = linear(x, self.qkv).split(self.widths, -1)
        size, eps = self.shape.head_dim, self.shape.norm_eps
        cos, sin = rope[0].unsqueeze(-2), rope[1].unsqueeze(-2)
        q = rotate(rms_norm(q.unflatten(-1, (-1, size)), self.q_norm, eps), cos, sin)
        k = rotate(rms_norm(k.unflatten(-1, (-1, size)), self.k_norm, eps), cos, sin)
        return q, gate, k, v.unflatten(-1, (-1, size))

    def _merge(self, attended: Tensor, gate: Tensor) -> Tensor:
        return linear(attended * torch.sigmoid(gate), self.out)

    def block(self, x: Tensor, rope: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
        """Rows ``start .. start + T - 1`` of one stream.

        Args:
            x: ``[T, dim]``.
            rope: ``[2, T, rotary/2]`` of those positions.
            keys, values: ``[kv_heads, context, head_dim]``; rows before ``start`` are valid, the
                new ones are written.
            start: position of the first row.

        Returns:
            ``[T, dim]``.
        """
        rows = x.shape[0]
        end = start + rows
        q, gate, k, v = self._project(x, rope)
        keys[:, start:end] = k.transpose(0, 1)
        values[:, start:end] = v.transpose(0, 1)
        mask = None
        if start:
            mask = torch.ones(rows, end, dtype=torch.bool, device=x.device).tril(start)
        attended = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],  # [1, heads, T, head_dim]
            keys[None, :, :end],
            values[None, :, :end],
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        return self._merge(attended[0].transpose(0, 1).reshape(rows, -1), gate)

    def step(
        self,
        x: Tensor,
        rope: Tensor,
        keys: Tensor,
        values: Tensor,
        position: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """One row of every stream, at its own position.

        Args:
            x: ``[B, dim]``.
            rope: ``[2, B, rotary/2]``.
            keys, values: ``[B, kv_heads, context, head_dim]``; written at ``position``.
            position: int64 ``[B]``.
            mask: bool ``[B, 1, 1, length]``, true up to and with the position; ``length`` bounds
                the part of the cache that is read.

        Returns:
            ``[B, dim]``.
        """
        q, gate, k, v = self._project(x, rope)
        stream = torch.arange(x.shape[0], device=x.device)
        keys[stream, :, position] = k
        values[stream, :, position] = v
        length = mask.shape[-1]
        if kernels.usable(q):
            attended = kernels.attend(q, keys, values, position, length)
            return self._merge(attended.flatten(1), gate)
        grouped = q.unflatten(1, (self.shape.kv_heads, -1))  # [B, kv_heads, group, head_dim]
        attended = F.scaled_dot_product_attention(
            grouped, keys[:, :, :length], values[:, :, :length], attn_mask=mask
        )
        return self._merge(attended.flatten(1), gate)
