"""Rate changes between frames and latents, with their ConvNeXt blocks (docs/model.md, 8.2).

Everything here is channels last, [batch, time, dim]: a convolution whose kernel equals its stride
is then one linear map between ``factor`` neighbouring steps and one step, and needs no memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rt_drama3.codec.state import State, StreamModule
from rt_drama3.codec.weights import Device, Dtype, by_frame, matrix, weight

_TAPS = 7
_NORM_EPS = 1e-6


class ConvNeXt(StreamModule):
    """Causal depthwise convolution, LayerNorm and a GELU MLP, added to its input.

    The layer scale ``gamma`` of the checkpoint is folded into the second matrix and its bias.
    ``rate`` is that of ``by_frame``.
    """

    def __init__(
        self,
        dim: int,
        *,
        rate: int | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.rate = rate
        self.taps = weight(_TAPS, dim, device=device, dtype=dtype)
        self.taps_bias = weight(dim, device=device, dtype=dtype)
        self.norm = weight(dim, device=device, dtype=torch.float32)
        self.norm_bias = weight(dim, device=device, dtype=torch.float32)
        self.up = matrix(4 * dim, dim, device=device, dtype=dtype)
        self.up_bias = weight(4 * dim, device=device, dtype=dtype)
        self.down = matrix(dim, 4 * dim, device=device, dtype=dtype)
        self.down_bias = weight(dim, device=device, dtype=dtype)

    def new_memory(self, batch: int) -> Tensor:
        return self.taps.new_zeros(batch, _TAPS - 1, self.taps.shape[1])

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, time, dim] to the same shape."""
        memory = state[self.key]
        time = x.shape[1]
        past = torch.cat((memory, x), dim=1)
        memory.copy_(past[:, time:])
        y = torch.addcmul(self.taps_bias, past[:, :time], self.taps[0])
        for tap in range(1, _TAPS):
            y = torch.addcmul(y, past[:, tap : tap + time], self.taps[tap])
        y = F.layer_norm(y.float(), y.shape[-1:], self.norm, self.norm_bias, _NORM_EPS).to(x.dtype)
        y = F.gelu(by_frame(y, self.up, self.up_bias, self.rate))
        return x + by_frame(y, self.down, self.down_bias, self.rate)


class Upsample(nn.Module):
    """One step of ``rate`` per frame becomes ``factor`` steps, then a ConvNeXt block."""

    def __init__(
        self,
        dim: int,
        factor: int,
        *,
        rate: int,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.rate = rate
        self.spread = matrix(factor * dim, dim, device=device, dtype=dtype)
        self.spread_bias = weight(factor * dim, device=device, dtype=dtype)
        self.block = ConvNeXt(dim, rate=rate * factor, device=device, dtype=dtype)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, time, dim] to [batch, time * factor, dim]."""
        y = by_frame(x, self.spread, self.spread_bias, self.rate)
        steps: Tensor = self.block(y.view(x.shape[0], -1, x.shape[2]), state)
        return steps


class Downsample(nn.Module):
    """``factor`` steps become one, then a ConvNeXt block."""

    def __init__(
        self,
        dim: int,
        factor: int,
        *,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.merge = matrix(dim, factor * dim, device=device, dtype=dtype)
        self.merge_bias = weight(dim, device=device, dtype=dtype)
        self.block = ConvNeXt(dim, device=device, dtype=dtype)
        self.factor = factor

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, time, dim] to [batch, time / factor, dim]."""
        batch, time, dim = x.shape
        y = x.reshape(batch, time // self.factor, self.factor * dim)
        step: Tensor = self.block(F.linear(y, self.merge, self.merge_bias), state)
        return step
