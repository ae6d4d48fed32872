"""The codebook tower: shared layers read the semantic code, residual layers draw one codebook each.

Every layer attends over the whole timeline with its own cache, at the backbone's positions. Row p
is processed together with the codes of its label, row p + 1 (docs/model.md, 5).

Of ``eh_proj([enorm(e); hnorm(h)])`` the embedding half depends on the code alone in all layers but
the first, so the loader folds it into one table per layer (9.1 there); the first layer adds the
codes of row p to ``e`` before the norm and keeps embedding, norm and projection apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from rt_drama3.config import TowerConfig
from rt_drama3.model.attention import Attention
from rt_drama3.model.moe import swiglu
from rt_drama3.model.ops import linear, lookup, parameter, rms_norm
from rt_drama3.model.state import StreamState


class TowerLayer(nn.Module):
    """One tower layer; see the module docstring for ``table`` against ``embed``."""

    def __init__(
        self, config: TowerConfig, index: int, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        super().__init__()
        dim, codes, f32 = config.dim, config.codebook_size, torch.float32
        self.eps = config.norm_eps
        self.first = index == 0
        if self.first:
            self.embed = parameter(codes, dim, device=device, dtype=dtype)
            self.enorm = parameter(dim, device=device, dtype=f32)
            self.embed_proj = parameter(dim, dim, device=device, dtype=dtype)
        else:
            self.table = parameter(codes, dim, device=device, dtype=dtype)
        self.hnorm = parameter(dim, device=device, dtype=f32)
        self.hidden_proj = parameter(dim, dim, device=device, dtype=dtype)
        self.attn_norm = parameter(dim, device=device, dtype=f32)
        self.ffn_norm = parameter(dim, device=device, dtype=f32)
        self.final_norm = parameter(dim, device=device, dtype=f32)
        self.attention = Attention(config.attention, device, dtype)
        self.ffn_up = parameter(2 * config.ffn, dim, device=device, dtype=dtype)
        self.ffn_down = parameter(dim, config.ffn, device=device, dtype=dtype)

    def mix(
        self, hidden: Tensor, code: Tensor, labelled: Tensor | None, extra: Tensor | None
    ) -> Tensor:
        """Joins the label's code to the hidden rows.

        Args:
            hidden: ``[N, dim]``.
            code: int64 ``[N]``, inside the codebook.
            labelled: bool ``[N, 1]``, whether the label is an audio row; None means all are.
            extra: ``[N, dim]`` codes of the row itself, first layer only.

        Returns:
            ``[N, dim]``.
        """
        mixed = linear(rms_norm(hidden, self.hnorm, self.eps), self.hidden_proj)
        embedded = lookup(self.embed if self.first else self.table, code, hidden.dtype)
        if labelled is not None:
            embedded = embedded * labelled.to(embedded.dtype)
        if not self.first:
            return mixed + embedded
        assert extra is not None
        embedded = rms_norm(embedded + extra, self.enorm, self.eps)
        return mixed + linear(embedded, self.embed_proj)

    def finish(self, x: Tensor) -> Tensor:
        """Feed-forward and final norm after attention."""
        up = linear(rms_norm(x, self.ffn_norm, self.eps), self.ffn_up)
        return rms_norm(x + linear(swiglu(up), self.ffn_down), self.final_norm, self.eps)


class Tower(nn.Module):
    """Shared layers, residual layers and their heads ``[num_codebooks - 1, codes, dim]``."""

    def __init__(self, config: TowerConfig, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(
            TowerLayer(config, i, device, dtype) for i in range(config.layers)
        )
        self.heads = parameter(
            config.residual_layers, config.codebook_size, config.dim, device=device, dtype=dtype
        )

    def _each_layer(self) -> list[TowerLayer]:
        return cast(list[TowerLayer], list(self.layers))

    def block(
        self,
        hidden: Tensor,
        extra: Tensor,
        codes: Tensor,
        labelled: Tensor,
        rope: Tensor,
        state: StreamState,
        slot: int,
        start: int,
    ) -> None:
        """Teacher-forces the caches of one stream over rows ``start .. start + T - 1``.

        Args:
            hidden: ``[T, dim]`` final-norm output of the backbone.
            extra: ``[T, dim]`` summed embeddings of the rows' own later codebooks (U).
            codes: int64 ``[T, num_codebooks]`` of the following rows.
            labelled: bool ``[T, 1]``, whether the following row is an audio row.
            rope: ``[2, T, rotary/2]``.
            state, slot, start: where the caches are.
        """
        shared = self.config.shared_layers
        last = len(self.layers) - 1
        for i, layer in enumerate(self._each_layer()):
            code = codes[:, max(0, i - shared)]
            x = layer.mix(hidden, code, labelled, extra if i == 0 else None)
            keys, values = state.tower_keys[i][slot], state.tower_values[i][slot]
            normed = rms_norm(x, layer.attn_norm, layer.eps)
            attended = layer.attention.block(normed, rope, keys, values, start)
            if i < last:  # of the last layer only the cache is needed
                hidden = layer.finish(x + attended)

    def step(
        self,
        hidden: Tensor,
        extra: Tensor,
        semantic: Tensor,
        draw: Callable[[int, Tensor], Tensor],
        rope: Tensor,
        state: StreamState,
        position: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Draws the codes of one frame for every stream.

        Args:
            hidden, extra: ``[B, dim]`` of the latest row, as in ``block``.
            semantic: int64 ``[B]``, the code just drawn from the main head.
            draw: ``draw(j, logits [B, codes]) -> int64 [B]`` for codebook j >= 1.
            rope, position, mask: of the latest row, as in ``Attention.step``.

        Returns:
            int64 ``[B, num_codebooks]``, the semantic code first.
        """
        shared = self.config.shared_layers
        codes = [semantic]
        for i, layer in enumerate(self._each_layer()):
            x = layer.mix(hidden, codes[-1], None, extra if i == 0 else None)
            keys, values = state.tower_keys[i], state.tower_values[i]
            normed = rms_norm(x, layer.attn_norm, layer.eps)
            x = x + layer.attention.step(normed, rope, keys, values, position, mask)
            hidden = layer.finish(x)
            if i >= shared:
                logits = linear(hidden, self.heads, i - shared)
                codes.append(draw(i - shared + 1, logits))
        return torch.stack(codes, 1)
