"""Causal convolution blocks of the codec, channels first (docs/model.md, 8.2).

A convolution's memory is its left context: the last input samples that the next outputs still need.
Reading zeros for a stream that has just begun is exactly the left padding of the one-shot form.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rt_drama3.codec.state import State, StreamModule
from rt_drama3.codec.weights import Device, Dtype, kernel, weight

# Where one way of convolving on a CPU overtakes the next, measured on one thread.
_FEW_STEPS = 16
_FEW_INPUTS = 20_000
_USUAL_FRAMES = 4  # of a decode batch, once a stream is under way


class CausalConv(StreamModule):
    """Causal 1-d convolution: output step t sees inputs up to the end of stride step t.

    The left context is ``(taps - 1) * dilation + 1 - stride`` samples. The input length must be a
    multiple of the stride, so that the reference's padding of the last step never applies.

    Ways of convolving round differently. With ``rate``, the steps per frame of the output, the way
    is chosen for the usual number of frames, so that the result does not show how many there are
    (except at 5 to 11 steps, which no known codec has: BLAS rounds so few columns differently from
    more); with None, it is chosen for the length at hand.

    ``weight`` is [out, in, taps] and ``bias`` [out, 1].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        taps: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        rate: int | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.rate = rate
        self.weight = kernel(out_channels, in_channels, taps, device=device, dtype=dtype)
        self.bias = weight(out_channels, 1, device=device, dtype=dtype)
        self.stride = stride
        self.dilation = dilation
        self.context = (taps - 1) * dilation + 1 - stride

    def new_memory(self, batch: int) -> Tensor | None:
        if not self.context:
            return None
        return self.weight.new_zeros(batch, self.weight.shape[1], self.context)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, in, time] to [batch, out, time / stride]."""
        if self.context:
            memory = state[self.key]
            x = torch.cat((memory, x), dim=2)
            memory.copy_(x[:, :, -self.context :])
        if x.device.type == "cpu":
            return self._multiply(x)
        return self._library(x)

    def _library(self, x: Tensor) -> Tensor:
        """PyTorch's convolution, without padding."""
        bias = self.bias[:, 0]
        return F.conv1d(x, self.weight, bias, stride=self.stride, dilation=self.dilation)

    def _multiply(self, x: Tensor) -> Tensor:
        """The same as matrix products, which on one CPU thread beat it at the sizes of a stream.

        PyTorch's convolution copies columns or re-orders its input, kernel and output on every
        call, and is slowest when dilated.
        """
        batch, channels, length = x.shape
        outputs, _, taps = self.weight.shape
        steps = (length - (taps - 1) * self.dilation - 1) // self.stride + 1
        step, tap, over = self.stride, self.dilation, channels * length  # distances in memory
        matrix = self.weight.transpose(1, 2).flatten(1)  # [out, taps * in]
        usual = steps if self.rate is None else self.rate * _USUAL_FRAMES
        if taps > 1 and usual <= _FEW_STEPS:
            # The inputs of a step as a row: weights are read only once.
            rows = x.as_strided((batch, steps, taps, channels), (over, step, tap, length))
            return F.linear(rows.flatten(2), matrix, self.bias[:, 0]).transpose(1, 2)
        if self.stride > 1:
            return self._library(x)
        if outputs == 1:
            # What every tap sees of all inputs, added along diagonals.
            seen = torch.matmul(self.weight[0].T, x)  # [batch, taps, length]
            seen = seen.as_strided((batch, taps, steps), (taps * length, length + tap, 1))
            return self.bias + seen.sum(1, keepdim=True)
        if taps > 1 and channels * (usual + (taps - 1) * tap) <= _FEW_INPUTS:
            columns = x.as_strided((batch, taps, channels, steps), (over, tap, length, 1))
            matrices = matrix.expand(batch, -1, -1)
            return torch.baddbmm(self.bias, matrices, columns.flatten(1, 2))
        matrices = self.weight.expand(batch, -1, -1, -1)  # [batch, out, in, taps]
        y = torch.baddbmm(self.bias, matrices[..., 0], x[:, :, :steps])
        for i in range(1, taps):
            y.baddbmm_(matrices[..., i], x[:, :, i * tap : i * tap + steps])
        return y


class CausalTransposedConv(CausalConv):
    """Transposed convolution, trimmed on the right: ``upsample`` output steps per input step.

    The kernel is twice as long as that, so output step ``t * upsample + j`` sees the inputs ``t -
    1`` and ``t`` only. So this is a causal convolution of two taps and ``upsample`` times as many
    channels, which are then dealt out over time, and its memory is one input step: there are no
    overlapping tails to add, and the bias counts once by construction.

    Channel ``o * upsample + j`` of that convolution is step ``j`` of output channel ``o``.
    ``rate`` counts the steps of the input.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        upsample: int,
        *,
        rate: int | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        channels = out_channels * upsample
        super().__init__(in_channels, channels, 2, rate=rate, device=device, dtype=dtype)
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
        rate: int | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.snake_in = Snake(channels, device=device)
        self.wide = CausalConv(
            channels, channels, 7, dilation=dilation, rate=rate, device=device, dtype=dtype
        )
        self.snake_out = Snake(channels, device=device)
        self.point = CausalConv(channels, channels, 1, rate=rate, device=device, dtype=dtype)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, channels, time] to the same shape."""
        y: Tensor = self.wide(self.snake_in(x), state)
        y = self.point(self.snake_out(y), state)
        return x + y


DILATIONS = (1, 3, 9)
"""Dilations of the three residual units of every encoder and decoder block."""


class ResidualUnits(nn.ModuleList):
    """Those three units, one after the other."""

    def __init__(
        self,
        channels: int,
        *,
        rate: int | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(
            ResidualUnit(channels, dilation, rate=rate, device=device, dtype=dtype)
            for dilation in DILATIONS
        )

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, channels, time] to the same shape."""
        for unit in self:
            x = unit(x, state)
        return x
