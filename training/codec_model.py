"""The codec in the form that training needs: official names, one shot, gradients, no weight norm.

``CodecModel`` holds the decode half and, if asked, the encode half. The mathematics is that of
``rt_drama3.codec`` (docs/model.md, 8.2); ``official_state`` writes the checkpoint's names.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rt_drama3.config import CodecConfig, WindowTransformerConfig
from training import fused

DILATIONS = (1, 3, 9)


class Conv(nn.Module):
    """Causal convolution over ``[B, T, C]``; the kernel is stored as torch's ``conv``."""

    def __init__(
        self, inputs: int, outputs: int, taps: int, stride: int = 1, step: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, taps, stride, dilation=step)
        self.context = (taps - 1) * step + 1 - stride

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(F.pad(x.transpose(1, 2), (self.context, 0)))
        return y.transpose(1, 2)


class Depthwise(nn.Module):
    """Causal convolution of every channel by itself, over ``[B, T, C]``."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        taps = self.conv.weight.shape[-1]
        padded = F.pad(x, (0, 0, taps - 1, 0))
        assert self.conv.bias is not None
        y = self.conv.bias.expand_as(x)
        for tap in range(taps):
            y = torch.addcmul(y, padded[:, tap : tap + x.shape[1]], self.conv.weight[:, 0, tap])
        return y


class Raise(nn.Module):
    """Transposed convolution ``[B, T, in]`` -> ``[B, T * rate, out]``, kernel 1 or 2 rates long."""

    def __init__(self, inputs: int, outputs: int, rate: int, lengths: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, lengths * rate, rate)
        self.rate, self.lengths = rate, lengths

    def forward(self, x: Tensor) -> Tensor:
        batch, time, inputs = x.shape
        kernel = self.conv.weight.unflatten(-1, (self.lengths, self.rate)).permute(0, 2, 3, 1)
        parts = (x @ kernel.reshape(inputs, -1)).unflatten(-1, (self.lengths, -1))
        y = parts[:, :, 0]
        if self.lengths == 2:  # the later half falls on the next step
            y = y + F.pad(parts[:, :-1, 1], (0, 0, 1, 0))
        assert self.conv.bias is not None
        dealt: Tensor = y.reshape(batch, time * self.rate, -1)
        return dealt + self.conv.bias


class Snake(nn.Module):
    """``x + sin(alpha x)^2 / alpha`` over ``[B, T, C]``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return fused.snake(x, self.alpha.flatten())


class Unit(nn.Module):
    """Residual unit: snake, wide dilated convolution, snake, pointwise convolution."""

    def __init__(self, channels: int, step: int) -> None:
        super().__init__()
        self.step = step
        self.block = nn.Sequential(
            Snake(channels),
            Conv(channels, channels, 7, step=step),
            Snake(channels),
            Conv(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = cast(tuple[Snake, Conv, Snake, Conv], tuple(self.block))
        snake_in, wide, snake_out, point = parts
        if not fused.usable(x):
            hidden = snake_out(wide(snake_in(x)))
            return x + F.linear(hidden, point.conv.weight[:, :, 0], point.conv.bias)
        assert wide.conv.bias is not None
        assert point.conv.bias is not None
        return fused.residual_unit(
            x,
            snake_in.alpha.flatten(),
            wide.conv.weight,
            wide.conv.bias,
            snake_out.alpha.flatten(),
            point.conv.weight,
            point.conv.bias,
            self.step,
        )


class DecoderBlock(nn.Module):
    """Raises the rate, halves the channels."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        units = [Unit(half, step) for step in DILATIONS]
        self.block = nn.Sequential(Snake(channels), Raise(channels, half, rate, 2), *units)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        return y


class EncoderBlock(nn.Module):
    """Lowers the rate, doubles the channels."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        units = [Unit(channels, step) for step in DILATIONS]
        lower = Conv(channels, 2 * channels, 2 * rate, stride=rate)
        self.block = nn.Sequential(*units, Snake(channels), lower)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        return y


class ConvNeXt(nn.Module):
    """Depthwise convolution, norm, GELU MLP and layer scale, added to the input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = Depthwise(dim, 7)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.pwconv2(F.gelu(self.pwconv1(self.norm(self.dwconv(x)))))
        return x + y * self.gamma


class RootNorm(nn.Module):
    """RMS norm with plain gain."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


class Scale(nn.Module):
    """Layer scale."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class WindowLayer(nn.Module):
    """Windowed attention and SwiGLU, each with norm and layer scale."""

    def __init__(self, dim: int, sizes: WindowTransformerConfig) -> None:
        super().__init__()
        self.sizes = sizes
        inner = sizes.heads * sizes.head_dim
        self.attention = nn.ModuleDict(
            {
                "wqkv": nn.Linear(dim, 3 * inner, bias=False),
                "wo": nn.Linear(inner, dim, bias=False),
            }
        )
        self.feed_forward = nn.ModuleDict(
            {
                "w1": nn.Linear(dim, sizes.ffn, bias=False),
                "w2": nn.Linear(sizes.ffn, dim, bias=False),
                "w3": nn.Linear(dim, sizes.ffn, bias=False),
            }
        )
        self.attention_norm, self.ffn_norm = RootNorm(dim), RootNorm(dim)
        self.attention_layer_scale, self.ffn_layer_scale = Scale(dim), Scale(dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor) -> Tensor:
        qkv = self.attention["wqkv"](self.attention_norm(x))
        q, k, v = qkv.unflatten(-1, (3, self.sizes.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (_rotate(t, cos, sin) for t in (q, k))
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
        x = x + self.attention_layer_scale(self.attention["wo"](read))
        normed, ffn = self.ffn_norm(x), self.feed_forward
        gated = F.silu(ffn["w1"](normed)) * ffn["w3"](normed)
        y: Tensor = self.ffn_layer_scale(ffn["w2"](gated))
        return x + y


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class WindowTransformer(nn.Module):
    """Causal transformer with a limited window."""

    def __init__(self, dim: int, sizes: WindowTransformerConfig, rope_base: float) -> None:
        super().__init__()
        self.sizes, self.rope_base = sizes, rope_base
        self.layers = nn.ModuleList(WindowLayer(dim, sizes) for _ in range(sizes.layers))
        self.norm = RootNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        size, rows = self.sizes.head_dim, torch.arange(x.shape[1], device=x.device)
        exponents = torch.arange(0, size, 2, device=x.device).float() / size
        angles = rows.float()[:, None] * self.rope_base**-exponents
        back = rows[:, None] - rows
        seen = (back >= 0) & (back < self.sizes.window)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin(), seen)
        y: Tensor = self.norm(x)
        return y


class Book(nn.Module):
    """One codebook with its projections."""

    def __init__(self, size: int, dim: int, latent: int, encoder: bool) -> None:
        super().__init__()
        self.codebook = nn.Embedding(size, dim)
        self.out_proj = nn.Linear(dim, latent)
        if encoder:
            self.in_proj = nn.Linear(latent, dim)

    def forward(self, code: Tensor) -> Tensor:
        """The latent of codes: int64 ``[...]`` -> ``[..., latent]``."""
        y: Tensor = self.out_proj(self.codebook(code))
        return y


class CodecModel(nn.Module):
    """Both halves of one codec config; ``encoder`` says whether the encode half is there."""

    def __init__(self, config: CodecConfig, encoder: bool) -> None:
        super().__init__()
        self.config = config
        latent, rope_base = config.latent, config.rope_base
        sizes = [config.semantic_codebook_size]
        sizes += [config.residual_codebook_size] * (config.num_codebooks - 1)
        self.books = nn.ModuleList(
            Book(size, config.codebook_dim, latent, encoder) for size in sizes
        )
        self.post_module = WindowTransformer(latent, config.post, rope_base)
        self.upsample = nn.ModuleList(
            nn.Sequential(Raise(latent, latent, factor, 1), ConvNeXt(latent))
            for factor in config.upsample
        )
        channels = config.decoder_dim
        stack: list[nn.Module] = [Conv(latent, channels, 7)]
        for rate in config.decoder_rates:
            stack.append(DecoderBlock(channels, rate))
            channels //= 2
        self.decoder = nn.ModuleDict(
            {"model": nn.Sequential(*stack, Snake(channels), Conv(channels, 1, 7))}
        )
        self.encoder: nn.ModuleDict | None = None
        if encoder:
            self._add_encoder()

    def _add_encoder(self) -> None:
        config = self.config
        if config.encoder_transformer is not None:
            raise ValueError("an encode half with a transformer before the last layer is not built")
        channels = config.encoder_dim
        stack: list[nn.Module] = [Conv(1, channels, 7)]
        for rate in config.encoder_rates:
            stack.append(EncoderBlock(channels, rate))
            channels *= 2
        stack += [Snake(channels), Conv(channels, config.latent, 3)]
        self.encoder = nn.ModuleDict({"block": nn.Sequential(*stack)})
        self.downsample = nn.ModuleList(
            nn.Sequential(
                Conv(config.latent, config.latent, factor, stride=factor), ConvNeXt(config.latent)
            )
            for factor in reversed(config.upsample)
        )
        if config.pre is not None:
            self.pre_module = WindowTransformer(config.latent, config.pre, config.rope_base)

    def quantised(self, codes: Tensor) -> Tensor:
        """The latents that codes ``[..., books]`` stand for: ``[..., latent]``."""
        return torch.stack([book(codes[..., i]) for i, book in enumerate(self.books)]).sum(0)

    def decode(self, codes: Tensor) -> Tensor:
        """int64 ``[B, frames, books]`` -> PCM ``[B, frames * frame_samples]``."""
        x: Tensor = self.post_module(self.quantised(codes))
        for stage in self.upsample:
            x = stage(x)
        return torch.tanh(self.decoder["model"](x)).squeeze(-1)

    def latents(self, samples: Tensor) -> Tensor:
        """PCM ``[B, frames * frame_samples]`` -> latents ``[B, frames, latent]``."""
        assert self.encoder is not None
        x: Tensor = self.encoder["block"](samples[..., None])
        for stage in self.downsample:
            x = stage(x)
        return self.pre_module(x) if self.config.pre is not None else x

    def nearness(self, latents: Tensor, codes: Tensor) -> list[Tensor]:
        """How near each code of each book is to a latent, from -1 to 1: ``[B, frames, codes]``.

        Every book but the first sees what the true codes of the earlier ones leave.

        Args:
            latents: ``[B, frames, latent]``.
            codes: int64 ``[B, frames, books]``, the true ones.
        """
        left, found = latents, []
        for number, book in enumerate(cast(list[Book], list(self.books))):
            query = F.normalize(book.in_proj(left), dim=-1)
            found.append(query @ F.normalize(book.codebook.weight, dim=1).T)
            left = left - book(codes[..., number])
        return found

    @torch.no_grad()
    def fit_projections(self, codes: Tensor) -> None:
        """Sets every book's ``in_proj`` to the one that finds the codes best in their own latents.

        Least squares from what the earlier books leave of the latents to the book's normalised
        entries. Of perfect latents it finds nearly all codes, so what is left to learn is the
        latents.

        Args:
            codes: int64 ``[n, books]`` of some minutes of speech.
        """
        left = self.quantised(codes)
        for number, book in enumerate(cast(list[Book], list(self.books))):
            wanted = F.normalize(book.codebook(codes[:, number]), dim=-1)
            given = F.pad(left, (0, 1), value=1.0)
            square = given.T @ given
            square.diagonal().add_(1e-4 * square.diagonal().mean())
            found = torch.linalg.solve(square, given.T @ wanted)
            book.in_proj.weight.copy_(found[:-1].T)
            book.in_proj.bias.copy_(found[-1])
            left = left - book(codes[:, number])


def initialise(model: CodecModel) -> None:
    """Random weights at which a signal keeps its size through the convolution stacks."""
    for name, weight in model.named_parameters():
        if weight.dim() == 3 and "alpha" not in name:
            inputs = weight.shape[1] * weight.shape[2]
            if isinstance(_owner(model, name), nn.ConvTranspose1d):
                inputs = weight.shape[0] * max(1, weight.shape[2] // _rate(model, name))
            gain = 0.5 if name.endswith("block.3.conv.weight") else 0.9
            nn.init.normal_(weight, std=gain / math.sqrt(inputs))
        elif name.endswith("conv.bias"):
            nn.init.zeros_(weight)
    last = cast(Conv, list(cast(nn.Sequential, model.decoder["model"]))[-1])
    with torch.no_grad():
        last.conv.weight.mul_(0.1)


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _rate(model: nn.Module, name: str) -> int:
    owner = _owner(model, name)
    assert isinstance(owner, nn.ConvTranspose1d)
    return owner.stride[0]
