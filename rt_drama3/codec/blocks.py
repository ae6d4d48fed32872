"""Causal convolution blocks of the codec, channels first (architecture notes, 8.2).

A convolution's memory is its left context: the last input samples that the next outputs still need.
Reading zeros for a stream that has just begun is exactly the left padding of the one-shot form.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rt_drama3.codec.state import State, StreamModule
from rt_drama3.codec.weights import Device, Dtype, weight

# On a CPU, PyTorch's own choice is up to three times slower than a matrix product over copied
# columns when little is convolved at once, which is what a stream does. Measured on one thread:
_FEW_STEPS = 16  # below, the product with the steps as rows is fastest: weights are read once
_SMALL_INPUT = 20_480  # up to this many values PyTorch does not use oneDNN; products are faster


class CausalConv(StreamModule):
    """Causal 1-d convolution: output step t sees inputs up to the end of stride step t.

    The left context is ``(taps - 1) * dilation + 1 - stride`` samples. The input length must be a
    multiple of the stride, so that the reference's padding of the last step never applies.

    ``weight`` is [out, in * taps] (the official [out, in, taps], flattened), ``bias`` [out, 1].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        taps: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.weight = weight(out_channels, in_channels * taps, device=device, dtype=dtype)
        self.bias = weight(out_channels, 1, device=device, dtype=dtype)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.taps = taps
        self.stride = stride
        self.dilation = dilation
        self.context = (taps - 1) * dilation + 1 - stride

    def new_memory(self, batch: int) -> Tensor | None:
        if not self.context:
            return None
        return self.weight.new_zeros(batch, self.in_channels, self.context)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, in, time] to [batch, out, time / stride]."""
        if self.context:
            memory = state[self.key]
            x = torch.cat((memory, x), dim=2)
            memory.copy_(x[:, :, -self.context :])
        return self.convolve(x)

    def convolve(self, x: Tensor) -> Tensor:
        """Convolution without padding, by whichever way is fast at this size.

        Args:
            x: [batch, in, context + time], contiguous if there is more than one tap.
        """
        batch, channels, length = x.shape
        taps, dilation, stride = self.taps, self.dilation, self.stride
        if x.device.type != "cpu":
            return self._library(x)
        if taps == 1:
            return torch.baddbmm(self.bias, self.weight.expand(batch, -1, -1), x)
        steps = (length - (taps - 1) * dilation - 1) // stride + 1
        over = channels * length  # distance between batch rows
        if self.out_channels == 1 and stride == 1:
            # One output: each tap sees a row of its own, and the rows are added along a diagonal.
            rows = torch.matmul(self.weight.view(channels, taps).T, x)  # [batch, taps, length]
            strides = (taps * length, length + dilation, 1)
            return self.bias + rows.as_strided((batch, taps, steps), strides).sum(1, keepdim=True)
        if steps < _FEW_STEPS:
            windows = (over, stride, length, dilation)
            x = x.as_strided((batch, steps, channels, taps), windows).flatten(2)
            return F.linear(x, self.weight, self.bias[:, 0]).transpose(1, 2)
        if channels * length > _SMALL_INPUT:
            return self._library(x)
        columns = (over, length, dilation, stride)
        x = x.as_strided((batch, channels, taps, steps), columns).flatten(1, 2)
        return torch.baddbmm(self.bias, self.weight.expand(batch, -1, -1), x)

    def _library(self, x: Tensor) -> Tensor:
        kernel = self.weight.view(self.out_channels, self.in_channels, self.taps)
        bias = self.bias[:, 0]
        return F.conv1d(x, kernel, bias, stride=self.stride, dilation=self.dilation)


class CausalTransposedConv(CausalConv):
    """Transposed convolution, trimmed on the right, that makes ``stride`` samples per input step.

    With a kernel of ``taps * stride``, output samples ``t * stride + j`` see the inputs ``t - taps
    + 1 .. t`` only. So it is a causal convolution with ``taps`` taps and ``out * stride`` channels
    whose channels are then dealt out over time, and its memory is ``taps - 1`` input steps: no
    overlapping tails to add, and the bias counts once by construction.

    Channel ``o * stride + j`` of that convolution is sample ``j`` of output channel ``o``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        upsample: int,
        *,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(in_channels, out_channels * upsample, 2, device=device, dtype=dtype)
        self.upsample = upsample

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, in, time] to [batch, out, time * upsample]."""
        y = super().forward(x, state)
        batch, _, time = y.shape
        y = y.view(batch, -1, self.upsample, time).transpose(2, 3)  # [batch, out, time, upsample]
        return y.reshape(batch, -1, time * self.upsample)


class Snake(nn.Module):
    """``x + sin(alpha x)^2 / (alpha + 1e-9)`` with one alpha per channel, computed in float32.

    ``scale`` is ``1 / (alpha + 1e-9)``, worked out when loaded.
    """

    def __init__(self, channels: int, *, device: Device = None) -> None:
        super().__init__()
        self.alpha = weight(channels, 1, device=device, dtype=torch.float32)
        self.scale = weight(channels, 1, device=device, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, time] to the same shape and dtype."""
        wave = (x * self.alpha).sin_()
        wave.mul_(wave)  # in place of square(): that is a slower pow
        return torch.addcmul(x, wave, self.scale).to(x.dtype)


class ResidualUnit(nn.Module):
    """``x + conv1(snake(conv7(snake(x))))``, the wide convolution dilated."""

    def __init__(
        self,
        channels: int,
        dilation: int,
        *,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.snake_in = Snake(channels, device=device)
        self.wide = CausalConv(channels, channels, 7, dilation=dilation, device=device, dtype=dtype)
        self.snake_out = Snake(channels, device=device)
        self.point = CausalConv(channels, channels, 1, device=device, dtype=dtype)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, channels, time] to the same shape."""
        y: Tensor = self.wide(self.snake_in(x), state)
        y = self.point(self.snake_out(y), state)
        return x + y


DILATIONS = (1, 3, 9)
"""Dilations of the three residual units of every encoder and decoder block."""
