"""Encode half: PCM to latents at frame rate (docs/model.md, 8.1 and 8.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rt_drama3.codec.blocks import CausalConv, ResidualUnits, Snake
from rt_drama3.codec.convnext import Downsample
from rt_drama3.codec.state import State
from rt_drama3.codec.weights import Device, Dtype
from rt_drama3.codec.window_transformer import WindowTransformer
from rt_drama3.config import CodecConfig, WindowTransformerConfig


class EncoderBlock(nn.Module):
    """Three residual units, Snake, strided convolution that lowers the rate, doubles channels."""

    def __init__(
        self,
        channels: int,
        rate: int,
        *,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.units = ResidualUnits(channels, device=device, dtype=dtype)
        self.snake = Snake(channels, device=device)
        self.lower_rate = CausalConv(
            channels, 2 * channels, 2 * rate, stride=rate, device=device, dtype=dtype
        )

    def forward(self, x: Tensor, state: State) -> Tensor:
        """Maps [batch, channels, time] to [batch, 2 * channels, time / rate]."""
        x = self.units(x, state)
        y: Tensor = self.lower_rate(self.snake(x), state)
        return y


class Encoder(nn.Module):
    """Convolution stack, window transformer, downsampling to frame rate, window transformer."""

    def __init__(
        self,
        config: CodecConfig,
        *,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.dtype = dtype or torch.get_default_dtype()

        def transformer(
            dim: int, sizes: WindowTransformerConfig | None
        ) -> WindowTransformer | None:
            if sizes is None:
                return None
            return WindowTransformer(config, dim, sizes, device=device, dtype=dtype)

        channels = config.encoder_dim
        self.first = CausalConv(1, channels, 7, device=device, dtype=dtype)
        self.blocks = nn.ModuleList()
        for rate in config.encoder_rates:
            self.blocks.append(EncoderBlock(channels, rate, device=device, dtype=dtype))
            channels *= 2
        self.transformer = transformer(channels, config.encoder_transformer)
        self.snake = Snake(channels, device=device)
        self.last = CausalConv(channels, config.latent, 3, device=device, dtype=dtype)
        self.downsample = nn.ModuleList(
            Downsample(config.latent, factor, device=device, dtype=dtype)
            for factor in reversed(config.upsample)
        )
        self.pre = transformer(config.latent, config.pre)

    def forward(self, samples: Tensor, state: State) -> Tensor:
        """Maps PCM [batch, frames * frame_samples] to latents [batch, frames, latent]."""
        x: Tensor = self.first(samples[:, None].to(self.dtype), state)
        for block in self.blocks:
            x = block(x, state)
        if self.transformer is not None:
            x = self.transformer(x.transpose(1, 2), state).transpose(1, 2)
        x = self.last(self.snake(x), state).transpose(1, 2)
        for stage in self.downsample:
            x = stage(x, state)
        return x if self.pre is None else self.pre(x, state)
