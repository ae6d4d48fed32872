"""Causal transformer with a limited window of attention (docs/model.md, 8.2), as a stream.

The memory of a layer is the keys and values of the last ``window - 1`` steps, newest last. Keys are
kept after rotation by their absolute position, so that a step costs the same after hours.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rt_drama3.codec.state import State, StreamModule
from rt_drama3.codec.weights import Device, Dtype, by_frame, matrix, weight
from rt_drama3.config import CodecConfig, WindowTransformerConfig

_NORM_EPS = 1e-5


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    """RMSNorm over the last dimension, computed in float32, returned in the dtype of ``x``."""
    return F.rms_norm(x.float(), x.shape[-1:], gain, _NORM_EPS).to(x.dtype)


class RotaryAngles(nn.Module):
    """cos and sin of ``position * base^(-2i/dim)`` for positions without an upper bound.

    The reference looks positions up in a table that is a float32 product, rounded to
    ``table_dtype``. Rounded tables are not shift-invariant, so equality with it needs the true
    positions. But far out, float32 products lose the angle: at 10^6 they are off by 0.03 rad. So
    positions are split at multiples of ``FOLD``, the length of the longest reference table. Within
    the first fold the product is the reference's own; the start of each later fold is a phase
    counted in whole 2^-32 turns with integers, which never lose precision.
    """

    FOLD = 16_384

    def __init__(
        self,
        dim: int,
        base: float,
        table_dtype: torch.dtype,
        device: Device = None,
    ) -> None:
        super().__init__()
        frequencies = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
        turns = frequencies.double() * (self.FOLD / (2 * math.pi))
        fold_phase = ((turns % 1.0) * 2.0**32).round().long()
        self.register_buffer("frequencies", frequencies.to(device), persistent=False)
        self.register_buffer("fold_phase", fold_phase.to(device), persistent=False)
        self.frequencies: Tensor
        self.fold_phase: Tensor
        self.table_dtype = table_dtype

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Maps int64 positions [...] to float32 cos and sin, each [..., dim / 2]."""
        fold, within = positions // self.FOLD, positions % self.FOLD
        turns = ((fold[..., None] * self.fold_phase) & 0xFFFF_FFFF).float() / 2**32
        angles = within[..., None].float() * self.frequencies + turns * (2 * math.pi)
        return self._as_stored(angles.cos()), self._as_stored(angles.sin())

    def _as_stored(self, table: Tensor) -> Tensor:
        """Float32 values rounded as the reference's table is."""
        if self.table_dtype != torch.bfloat16:
            return table.to(self.table_dtype).float()
        # In bits, half to even: a compiler drops a cast and its inverse, and so the rounding.
        bits = table.view(torch.int32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).view(torch.float32)


class WindowLayer(StreamModule):
    """One pre-norm layer: windowed attention and SwiGLU.

    Both layer scales of the checkpoint are folded into the output matrices. Inside each head, the
    rotary pairs of query and key rows are re-ordered from interleaved to halves when loaded.
    """

    def __init__(
        self,
        dim: int,
        config: WindowTransformerConfig,
        *,
        rate: int | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.rate = rate
        inner = config.heads * config.head_dim
        self.config = config
        self.attention_norm = weight(dim, device=device, dtype=torch.float32)
        self.qkv = matrix(3 * inner, dim, device=device, dtype=dtype)
        self.out = matrix(dim, inner, device=device, dtype=dtype)
        self.ffn_norm = weight(dim, device=device, dtype=torch.float32)
        self.ffn_up = matrix(2 * config.ffn, dim, device=device, dtype=dtype)
        self.ffn_down = matrix(dim, config.ffn, device=device, dtype=dtype)

    def new_memory(self, batch: int) -> Tensor:
        config = self.config
        return self.qkv.new_zeros(batch, 2, config.heads, config.window - 1, config.head_dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, state: State) -> Tensor:
        """Maps [batch, time, dim] to the same shape.

        Args:
            cos, sin: [batch, 1, 1, time, head_dim / 2], of the new steps.
            mask: added to the scores, [batch, 1, time, window - 1 + time]; or [batch * time, 1, 1,
                window], so that each step attends to its own window alone.
        """
        batch, time, _ = x.shape
        heads, head_dim = self.config.heads, self.config.head_dim
        qkv = by_frame(rms_norm(x, self.attention_norm), self.qkv, None, self.rate)
        qkv = qkv.view(batch, time, 3, heads, head_dim).permute(0, 2, 3, 1, 4)
        left, right = qkv[:, :2].chunk(2, dim=-1)  # [batch, 2, heads, time, head_dim / 2]
        turned = torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)
        query, key = turned.to(x.dtype).unbind(1)
        memory = state[self.key]
        past = torch.cat((memory, torch.stack((key, qkv[:, 2]), dim=1)), dim=3)
        memory.copy_(past[:, :, :, time:])
        if mask.shape[2] < time:
            query = query.transpose(1, 2).reshape(batch * time, heads, 1, head_dim)
            windows = past.unfold(3, self.config.window, 1)  # [batch, 2, heads, time, .., window]
            past = windows.permute(0, 3, 1, 2, 5, 4).flatten(0, 1)
        y = F.scaled_dot_product_attention(query, past[:, 0], past[:, 1], attn_mask=mask)
        y = y.transpose(1, 2).reshape(batch, time, heads * head_dim)
        x = x + by_frame(y, self.out, None, self.rate)
        y = by_frame(rms_norm(x, self.ffn_norm), self.ffn_up, None, self.rate)
        gate, up = y.chunk(2, dim=-1)
        return x + by_frame(F.silu(gate) * up, self.ffn_down, None, self.rate)


class WindowTransformer(StreamModule):
    """The layers, the final norm, and each stream's position as memory.

    With ``rate``, the steps per frame, results do not show how many frames are computed together
    (see ``by_frame``).
    """

    def __init__(
        self,
        codec: CodecConfig,
        dim: int,
        config: WindowTransformerConfig,
        *,
        rate: int | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        table_dtype = getattr(torch, codec.rope_table_dtype)
        self.rate = rate
        self.window = config.window
        self.angles = RotaryAngles(config.head_dim, codec.rope_base, table_dtype, device)
        self.layers = nn.ModuleList(
            WindowLayer(dim, config, rate=rate, device=device, dtype=dtype)
            for _ in range(config.layers)
        )
        self.norm = weight(dim, device=device, dtype=torch.float32)

    def new_memory(self, batch: int) -> Tensor:
        return torch.zeros(batch, dtype=torch.int64, device=self.norm.device)

    def _mask(self, position: Tensor, time: int, dtype: torch.dtype) -> Tensor:
        """0 where a new step may see a step of memory or a new one, else -inf.

        On a CPU and with a ``rate``, each step has a window of its own: attention to more steps
        than those rounds differently, even if they are masked.
        """
        past = self.window - 1
        if self.rate is not None and position.device.type == "cpu":
            first = past - position[:, None] - torch.arange(time)  # in the window of a step
            allowed = torch.arange(self.window) >= first.view(-1, 1, 1, 1)
            return torch.where(allowed, torch.zeros((), dtype=dtype), -math.inf)
        i = torch.arange(time, device=position.device)[:, None]
        j = torch.arange(past + time, device=position.device)
        band = (j >= i) & (j <= i + past)
        heard = j >= past - position[:, None]  # memory from before the stream began is empty
        allowed = band & heard[:, None]  # [batch, time, past + time]
        mask = torch.zeros((), dtype=dtype, device=position.device)
        return torch.where(allowed, mask, -math.inf)[:, None]

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, time, dim] to the same shape and advances the position by ``time``."""
        position = state[self.key]
        time = x.shape[1]
        cos, sin = self.angles(position[:, None] + torch.arange(time, device=x.device))
        mask = self._mask(position, time, x.dtype)
        for layer in self.layers:
            x = layer(x, cos[:, None, None], sin[:, None, None], mask, state)
        position.add_(time)
        return rms_norm(x, self.norm)
