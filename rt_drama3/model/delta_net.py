"""Gated DeltaNet: the linear-attention mixer of three layers in four.

A stream carries the last ``kernel - 1`` projected columns of the short convolution and one matrix
``S [value_heads, key_dim, value_dim]`` per layer. ``step`` advances S by one row as the delta rule
defines it (docs/model.md, 4); ``block`` gives the same result for many rows with the
chunked form of the rule (Yang et al., "Gated Delta Networks", 2024, section 3.3; "Parallelizing
Linear Transformers with the Delta Rule", 2024, section 3): inside a chunk the corrections of the
values solve one unit lower-triangular system, between chunks only S is carried.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rt_drama3.config import BackboneConfig
from rt_drama3.model.ops import l2_norm, linear, parameter, rms_norm

CHUNK = 64  # rows whose corrections are solved together


class DeltaNet(nn.Module):
    """One gated DeltaNet mixer.

    Parameters: ``in_proj [conv_dim + Hv*dv + 2*Hv, dim]`` with rows QKV, z, b, a;
    ``conv [conv_dim, kernel]``; ``decay [Hv]`` = exp(A_log); ``dt_bias [Hv]``; ``norm [dv]`` (plain
    gamma); ``out_proj [dim, Hv*dv]``. All but the two projections are float32.
    """

    def __init__(
        self, config: BackboneConfig, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.heads = config.linear_value_heads
        self.repeat = config.linear_value_heads // config.linear_key_heads
        self.key_dim, self.value_dim = config.linear_key_dim, config.linear_value_dim
        self.eps = config.norm_eps
        keys = config.linear_key_heads * self.key_dim
        values = self.heads * self.value_dim
        self.qkv_widths = (keys, keys, values)
        self.widths = (config.linear_conv_dim, values, self.heads, self.heads)
        dim, f32 = config.hidden_size, torch.float32
        self.in_proj = parameter(sum(self.widths), dim, device=device, dtype=dtype)
        self.conv = parameter(config.linear_conv_dim, config.conv_kernel, device=device, dtype=f32)
        self.decay = parameter(self.heads, device=device, dtype=f32)
        self.dt_bias = parameter(self.heads, device=device, dtype=f32)
        self.norm = parameter(self.value_dim, device=device, dtype=f32)
        self.out_proj = parameter(dim, values, device=device, dtype=dtype)

    def _gates(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Write strength beta and log decay g, float32 ``[N, Hv]``."""
        return torch.sigmoid(b.float()), -self.decay * F.softplus(a.float() + self.dt_bias)

    def _split_heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits ``[N, conv_dim]`` into q, k ``[N, Hv, key_dim]`` and v ``[N, Hv, value_dim]``."""
        q, k, v = mixed.split(self.qkv_widths, -1)
        q = l2_norm(q.unflatten(-1, (-1, self.key_dim))) * self.key_dim**-0.5
        k = l2_norm(k.unflatten(-1, (-1, self.key_dim)))
        if self.repeat > 1:  # value head v reads key head v // repeat
            q, k = (t.repeat_interleave(self.repeat, -2) for t in (q, k))
        return q, k, v.unflatten(-1, (-1, self.value_dim))

    def _merge(self, read: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
        """Norm per head, SiLU gate in float32, projection: ``[N, Hv, dv]`` -> ``[N, dim]``."""
        gate = F.silu(z.float()).view_as(read)
        return linear(
            (rms_norm(read, self.norm, self.eps) * gate).flatten(1).to(dtype), self.out_proj
        )

    def step(self, x: Tensor, tail: Tensor, state: Tensor, active: Tensor) -> Tensor:
        """One row of every stream; ``tail`` and ``state`` of the active ones advance in place.

        Args:
            x: ``[B, dim]``.
            tail: ``[B, conv_dim, kernel - 1]``, the columns before this row.
            state: float32 ``[B, Hv, key_dim, value_dim]``.
            active: bool ``[B]``.

        Returns:
            ``[B, dim]``.
        """
        mixed, z, b, a = linear(x, self.in_proj).split(self.widths, -1)
        window = torch.cat((tail, mixed.unsqueeze(-1)), -1)  # [B, conv_dim, kernel]
        tail.copy_(torch.where(active[:, None, None], window[..., 1:], tail))
        q, k, v = self._split_heads(F.silu((window.float() * self.conv).sum(-1)))
        beta, g = self._gates(b, a)
        decayed = state * g.exp()[..., None, None]
        recalled = (k.unsqueeze(-2) @ decayed).squeeze(-2)  # what S now holds under key k
        correction = (v - recalled) * beta.unsqueeze(-1)
        updated = decayed + k.unsqueeze(-1) * correction.unsqueeze(-2)
        state.copy_(torch.where(active[:, None, None, None], updated, state))
        return self._merge((q.unsqueeze(-2) @ updated).squeeze(-2), z, x.dtype)

    def block(self, x: Tensor, tail: Tensor, state: Tensor) -> Tensor:
        """Many rows of one stream; ``tail`` and ``state`` advance in place.

        Args:
            x: ``[T, dim]``.
            tail: ``[conv_dim, kernel - 1]``.
            state: float32 ``[Hv, key_dim, value_dim]``.

        Returns:
            ``[T, dim]``.
        """
        mixed, z, b, a = linear(x, self.in_proj).split(self.widths, -1)
        columns = torch.cat((tail, mixed.t()), -1)  # [conv_dim, kernel - 1 + T]
        tail.copy_(columns[:, -tail.shape[-1] :])
        convolved = F.conv1d(
            columns[None].float(), self.conv.unsqueeze(1), groups=self.conv.shape[0]
        )[0]
        q, k, v = self._split_heads(F.silu(convolved).t())
        beta, g = self._gates(b, a)
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))  # heads first
        read = delta_rule(q, k, v, beta.t(), g.t(), state)
        return self._merge(read.transpose(0, 1), z, x.dtype)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, state: Tensor, chunk: int = CHUNK
) -> Tensor:
    """Gated delta rule over T rows in chunks, equal to the row-by-row recurrence.

    With G the running sum of g inside a chunk, row i reads what the chunk's start state still holds
    plus every correction u_j of rows j <= i, decayed by exp(G_i - G_j); the corrections themselves
    obey ``u_i = beta_i * (v_i - k_i . S_i)``, which is a unit lower-triangular system in u.

    Args:
        q, k: float32 ``[H, T, key_dim]``, q already scaled.
        v: float32 ``[H, T, value_dim]``.
        beta, g: float32 ``[H, T]``; g <= 0.
        state: float32 ``[H, key_dim, value_dim]``; advanced in place.
        chunk: rows per chunk.

    Returns:
        float32 ``[H, T, value_dim]``.
    """
    rows = q.shape[1]
    outputs = []
    for start in range(0, rows, chunk):
        part = slice(start, min(start + chunk, rows))
        qc, kc, vc = q[:, part], k[:, part], v[:, part]
        bc, total = beta[:, part, None], g[:, part].cumsum(-1)
        # fade[i, j] = exp(G_i - G_j) for j <= i; the upper half must not overflow before the mask
        fade = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()
        carried = total.exp().unsqueeze(-1)  # what is left of the start state at row i
        system = ((kc @ kc.transpose(-1, -2)) * fade * bc).tril(-1)
        target = bc * (vc - (kc * carried) @ state)
        corrections = torch.linalg.solve_triangular(
            system, target, upper=False, unitriangular=True
        )  # the unit diagonal is implied
        outputs.append((qc * carried) @ state + ((qc @ kc.transpose(-1, -2)) * fade) @ corrections)
        last = total[:, -1:, None]
        kept = kc * (last - total.unsqueeze(-1)).exp()
        state.copy_(state * last.exp() + kept.transpose(-1, -2) @ corrections)
    return torch.cat(outputs, 1)
