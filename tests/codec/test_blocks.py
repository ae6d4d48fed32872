"""Every block, streamed in pieces, against the one-shot form of the notes in plain PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rt_drama3.codec.blocks import CausalConv, CausalTransposedConv, Snake
from rt_drama3.codec.layout import _transposed
from rt_drama3.codec.state import name_memories, new_state
from rt_drama3.codec.window_transformer import RotaryAngles


def fill(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    name_memories(module)
    return module


def in_pieces(module: nn.Module, x: Tensor, lengths: list[int]) -> Tensor:
    state = new_state(module, x.shape[0])
    return torch.cat([module(part, state) for part in x.split(lengths, dim=2)], dim=2)


# Each way of convolving: rows of a few steps, tap by tap, one output, strided, one tap.
@pytest.mark.parametrize(
    ("channels", "outputs", "taps", "stride", "dilation", "time"),
    [
        (5, 4, 7, 1, 1, 12),
        (5, 4, 7, 1, 9, 90),
        (5, 1, 7, 1, 1, 60),
        (16, 16, 7, 1, 3, 6000),
        (3, 6, 8, 4, 1, 24),
        (3, 6, 10, 5, 1, 300),
        (6, 3, 1, 1, 1, 30),
        (1, 4, 7, 1, 1, 30),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_causal_conv(
    channels: int, outputs: int, taps: int, stride: int, dilation: int, time: int, batch: int
) -> None:
    conv = fill(CausalConv(channels, outputs, taps, stride=stride, dilation=dilation))
    assert isinstance(conv, CausalConv)
    x = torch.randn(batch, channels, time)
    kernel, bias = conv.weight, conv.bias[:, 0]
    padded = F.pad(x, ((taps - 1) * dilation + 1 - stride, 0))
    expected = F.conv1d(padded, kernel, bias, stride=stride, dilation=dilation)
    lengths = [stride, time - 3 * stride, 2 * stride]
    torch.testing.assert_close(in_pieces(conv, x, lengths), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(in_pieces(conv, x, [time]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", [2, 5])
def test_transposed_conv(rate: int) -> None:
    kernel, bias = torch.randn(6, 4, 2 * rate), torch.randn(4)
    conv = CausalTransposedConv(6, 4, rate)
    name_memories(conv)
    into_weight, into_bias = _transposed("", "", 6, 4, rate)
    conv.weight.copy_(into_weight.build(kernel))
    conv.bias.copy_(into_bias.build(bias))
    x = torch.randn(2, 6, 40)
    expected = F.conv_transpose1d(x, kernel, bias, stride=rate)[..., :-rate]
    torch.testing.assert_close(in_pieces(conv, x, [1, 30, 9]), expected, rtol=1e-4, atol=1e-4)


def test_snake_keeps_the_dtype_and_computes_in_float32() -> None:
    snake = Snake(3)
    snake.alpha.copy_(torch.tensor([[0.5], [1.0], [40.0]]))
    snake.scale.copy_(1 / (snake.alpha + 1e-9))
    x = torch.randn(1, 3, 50)
    exact = x + torch.sin(snake.alpha * x) ** 2 / (snake.alpha + 1e-9)
    torch.testing.assert_close(snake(x), exact)
    half = x.half()
    assert snake(half).dtype == torch.float16
    exact = half.float() + torch.sin(snake.alpha * half.float()) ** 2 / (snake.alpha + 1e-9)
    torch.testing.assert_close(snake(half), exact.half())


def test_rotary_angles_are_the_reference_table_inside_its_length() -> None:
    frequencies = 1.0 / (10_000.0 ** (torch.arange(0, 64, 2).float() / 64))
    angles = torch.outer(torch.arange(RotaryAngles.FOLD).float(), frequencies)
    for dtype in (torch.bfloat16, torch.float32):
        cos, sin = RotaryAngles(64, 10_000.0, dtype)(torch.arange(RotaryAngles.FOLD))
        assert torch.equal(cos, angles.cos().to(dtype).float())
        assert torch.equal(sin, angles.sin().to(dtype).float())


@pytest.mark.parametrize("start", [RotaryAngles.FOLD - 50, 2_000_000, 10**9, 2**40])
def test_rotary_angles_do_not_degrade(start: int) -> None:
    rotary = RotaryAngles(64, 10_000.0, torch.float32)
    positions = torch.arange(start, start + 128)
    cos, sin = rotary(positions)
    # Attention only sees differences; those must be right wherever the stream is.
    turned = torch.complex(cos, sin)
    exact = torch.outer(torch.arange(128).double(), rotary.frequencies.double())
    difference = turned * turned[0].conj()
    assert (difference - torch.polar(torch.ones_like(exact), exact)).abs().max() < 2e-3
    if start < 10**9:
        angles = positions[:, None].double() * rotary.frequencies.double()
        assert (cos - angles.cos()).abs().max() < 2e-3
    assert math.isclose(float(turned.abs().mean()), 1.0, abs_tol=1e-5)
