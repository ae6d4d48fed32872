"""Decode half: latents at frame rate to PCM (docs/model.md, 8.1 and 8.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rt_drama3.codec.blocks import CausalConv, CausalTransposedConv, ResidualUnits, Snake
from rt_drama3.codec.convnext import Upsample
from rt_drama3.codec.state import State
from rt_drama3.codec.weights import Device, Dtype
from rt_drama3.codec.window_transformer import WindowTransformer
from rt_drama3.config import CodecConfig


class DecoderBlock(nn.Module):
    """Snake, transposed convolution that raises the rate and halves the channels, three units.

    ``rate`` steps per frame come in, and ``upsample`` times as many go out.
    """

    def __init__(
        self,
        channels: int,
        upsample: int,
        *,
        rate: int,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        half = channels // 2
        self.snake = Snake(channels, device=device)
        self.raise_rate = CausalTransposedConv(
            channels, half, upsample, rate=rate, device=device, dtype=dtype
        )
        self.units = ResidualUnits(half, rate=rate * upsample, device=device, dtype=dtype)

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, channels, time] to [batch, channels / 2, time * upsample]."""
        x = self.raise_rate(self.snake(x), state)
        y: Tensor = self.units(x, state)
        return y


class Decoder(nn.Module):
    """Window transformer, upsampling to the latent rate, convolution stack up to the waveform."""

    def __init__(
        self,
        config: CodecConfig,
        *,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.dtype = dtype or torch.get_default_dtype()
        rate = 1  # steps per frame
        self.post = WindowTransformer(
            config, config.latent, config.post, rate=rate, device=device, dtype=dtype
        )
        self.upsample = nn.ModuleList()
        for factor in config.upsample:
            stage = Upsample(config.latent, factor, rate=rate, device=device, dtype=dtype)
            self.upsample.append(stage)
            rate *= factor
        channels = config.decoder_dim
        self.first = CausalConv(config.latent, channels, 7, rate=rate, device=device, dtype=dtype)
        self.blocks = nn.ModuleList()
        for factor in config.decoder_rates:
            block = DecoderBlock(channels, factor, rate=rate, device=device, dtype=dtype)
            self.blocks.append(block)
            channels //= 2
            rate *= factor
        self.snake = Snake(channels, device=device)
        self.last = CausalConv(channels, 1, 7, rate=rate, device=device, dtype=dtype)

    def forward(self, latents: Tensor, state: State) -> Tensor:
        """Maps latents [batch, frames, latent] to float32 PCM [batch, frames * frame_samples]."""
        x = self.post(latents.to(self.dtype), state)
        for stage in self.upsample:
            x = stage(x, state)
        x = self.first(x.transpose(1, 2), state)
        for block in self.blocks:
            x = block(x, state)
        return torch.tanh(self.last(self.snake(x), state).float()).squeeze(1)
