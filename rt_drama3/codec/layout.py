"""Which tensors of the official ``codec.pth`` make up which parameter of ``Codec``.

One table serves loading, the inventory, and random checkpoints: a ``Slot`` per parameter of ours,
naming its official ``Source`` tensors and how they combine (docs/model.md, 8.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from rt_drama3.codec.blocks import DILATIONS
from rt_drama3.codec.quantizer import codebook_sizes
from rt_drama3.config import CodecConfig, WindowTransformerConfig


class Spelling(Enum):
    """How a tensor is stored: as it is, as a weight-norm pair with one of two names, or folded."""

    PLAIN = ("",)
    PARAMETRIZED = (".parametrizations.weight.original0", ".parametrizations.weight.original1")
    OLD = (".weight_g", ".weight_v")
    FOLDED = (".weight",)


@dataclass(frozen=True)
class Source:
    """One official tensor; of a weight-norm pair, ``name`` is the module and ``shape`` that of v.

    ``mean`` and ``std`` describe the values of a random checkpoint whose signals stay in a healthy
    range from end to end.
    """

    name: str
    shape: tuple[int, ...]
    spelling: Spelling = Spelling.PLAIN
    mean: float = 0.0
    std: float = 1.0

    def stored(self, spelling: Spelling | None = None) -> dict[str, tuple[int, ...]]:
        """Names and shapes in the file; for a pair the gain ``g`` comes first."""
        suffixes = (spelling or self.spelling).value
        if len(suffixes) == 1:
            return {self.name + suffixes[0]: self.shape}
        gain = (self.shape[0],) + (1,) * (len(self.shape) - 1)
        return {self.name + suffixes[0]: gain, self.name + suffixes[1]: self.shape}


@dataclass(frozen=True)
class Slot:
    """One parameter of ``Codec``: ``build(*sources)`` in float32 gives its value."""

    target: str
    sources: tuple[Source, ...]
    build: Callable[..., Tensor]
    encode_half: bool = False


def _same(value: Tensor) -> Tensor:
    return value


def _stack(*values: Tensor) -> Tensor:
    return torch.stack(values)


def _rows(*values: Tensor) -> Tensor:
    return torch.cat(values)


def _vector(name: str, size: int, mean: float = 0.0, std: float = 0.02) -> Source:
    return Source(name, (size,), mean=mean, std=std)


def _matrix(name: str, rows: int, columns: int) -> Source:
    return Source(name, (rows, columns), std=columns**-0.5)


def _snake(target: str, official: str, channels: int) -> Iterator[Slot]:
    alpha = Source(f"{official}.alpha", (1, channels, 1), mean=1.0, std=0.2)
    yield Slot(f"{target}.alpha", (alpha,), lambda a: a[0])
    yield Slot(f"{target}.scale", (alpha,), lambda a: 1.0 / (a[0] + 1e-9))


def _conv(
    target: str, official: str, shape: tuple[int, int, int], gain: float = 1.0
) -> Iterator[Slot]:
    std = gain * (shape[1] * shape[2]) ** -0.5
    kernel = Source(f"{official}.conv", shape, Spelling.PARAMETRIZED, std=std)
    bias = _vector(f"{official}.conv.bias", shape[0])
    yield Slot(f"{target}.weight", (kernel,), _same)
    yield Slot(f"{target}.bias", (bias,), lambda b: b[:, None])


def _transposed(target: str, official: str, channels: int, out: int, rate: int) -> Iterator[Slot]:
    def by_sample(kernel: Tensor) -> Tensor:
        """[in, out, 2 * rate] to [out * rate, in, 2], the older input first."""
        taps = kernel.view(channels, out, 2, rate).flip(2)
        return taps.permute(1, 3, 0, 2).reshape(out * rate, channels, 2)

    shape, std = (channels, out, 2 * rate), (2 * channels) ** -0.5
    kernel = Source(f"{official}.conv", shape, Spelling.PARAMETRIZED, std=std)
    bias = _vector(f"{official}.conv.bias", out)
    yield Slot(f"{target}.weight", (kernel,), by_sample)
    yield Slot(f"{target}.bias", (bias,), lambda b: b.repeat_interleave(rate)[:, None])


def _unit(target: str, official: str, channels: int) -> Iterator[Slot]:
    yield from _snake(f"{target}.snake_in", f"{official}.block.0", channels)
    yield from _conv(f"{target}.wide", f"{official}.block.1", (channels, channels, 7))
    yield from _snake(f"{target}.snake_out", f"{official}.block.2", channels)
    # A quiet branch: twelve units in a row must not blow up the signal.
    yield from _conv(f"{target}.point", f"{official}.block.3", (channels, channels, 1), gain=0.3)


def _convnext(target: str, official: str, dim: int) -> Iterator[Slot]:
    taps = Source(f"{official}.dwconv.conv.weight", (dim, 1, 7), std=7**-0.5)
    gamma = _vector(f"{official}.gamma", dim, mean=0.3, std=0.1)
    down = _matrix(f"{official}.pwconv2.weight", dim, 4 * dim)
    down_bias = _vector(f"{official}.pwconv2.bias", dim)
    yield Slot(f"{target}.taps", (taps,), lambda w: w[:, 0].T)
    yield Slot(f"{target}.taps_bias", (_vector(f"{official}.dwconv.conv.bias", dim),), _same)
    yield Slot(f"{target}.norm", (_vector(f"{official}.norm.weight", dim, 1.0, 0.1),), _same)
    yield Slot(f"{target}.norm_bias", (_vector(f"{official}.norm.bias", dim),), _same)
    yield Slot(f"{target}.up", (_matrix(f"{official}.pwconv1.weight", 4 * dim, dim),), _same)
    yield Slot(f"{target}.up_bias", (_vector(f"{official}.pwconv1.bias", 4 * dim),), _same)
    yield Slot(f"{target}.down", (gamma, down), lambda g, w: g[:, None] * w)
    yield Slot(f"{target}.down_bias", (gamma, down_bias), lambda g, b: g * b)


def _upsample(target: str, official: str, dim: int, factor: int) -> Iterator[Slot]:
    kernel = Source(f"{official}.0.conv.weight", (dim, dim, factor), std=dim**-0.5)
    bias = _vector(f"{official}.0.conv.bias", dim)
    yield Slot(f"{target}.spread", (kernel,), lambda w: w.permute(2, 1, 0).flatten(0, 1))
    yield Slot(f"{target}.spread_bias", (bias,), lambda b: b.repeat(factor))
    yield from _convnext(f"{target}.block", f"{official}.1", dim)


def _downsample(target: str, official: str, dim: int, factor: int) -> Iterator[Slot]:
    kernel = Source(f"{official}.0.conv.weight", (dim, dim, factor), std=(dim * factor) ** -0.5)
    yield Slot(f"{target}.merge", (kernel,), lambda w: w.transpose(1, 2).flatten(1))
    yield Slot(f"{target}.merge_bias", (_vector(f"{official}.0.conv.bias", dim),), _same)
    yield from _convnext(f"{target}.block", f"{official}.1", dim)


def _transformer(
    target: str, official: str, dim: int, sizes: WindowTransformerConfig
) -> Iterator[Slot]:
    inner = sizes.heads * sizes.head_dim

    def pairs_to_halves(qkv: Tensor) -> Tensor:
        """Inside every query and key head, rotary rows 0, 2, 4 .. come first, then 1, 3, 5 .."""
        heads = qkv[: 2 * inner].view(2 * sizes.heads, sizes.head_dim // 2, 2, dim)
        return torch.cat((heads.transpose(1, 2).reshape(2 * inner, dim), qkv[2 * inner :]))

    def scaled(gamma: Tensor, matrix: Tensor) -> Tensor:
        return gamma[:, None] * matrix

    for layer in range(sizes.layers):
        ours, theirs = f"{target}.layers.{layer}", f"{official}.layers.{layer}"
        for norm in ("attention_norm", "ffn_norm"):
            gain = _vector(f"{theirs}.{norm}.weight", dim, 1.0, 0.1)
            yield Slot(f"{ours}.{norm}", (gain,), _same)
        qkv = _matrix(f"{theirs}.attention.wqkv.weight", 3 * inner, dim)
        yield Slot(f"{ours}.qkv", (qkv,), pairs_to_halves)
        scale = _vector(f"{theirs}.attention_layer_scale.gamma", dim, 0.3, 0.1)
        out = _matrix(f"{theirs}.attention.wo.weight", dim, inner)
        yield Slot(f"{ours}.out", (scale, out), scaled)
        gate = _matrix(f"{theirs}.feed_forward.w1.weight", sizes.ffn, dim)
        up = _matrix(f"{theirs}.feed_forward.w3.weight", sizes.ffn, dim)
        yield Slot(f"{ours}.ffn_up", (gate, up), _rows)
        scale = _vector(f"{theirs}.ffn_layer_scale.gamma", dim, 0.3, 0.1)
        down = _matrix(f"{theirs}.feed_forward.w2.weight", dim, sizes.ffn)
        yield Slot(f"{ours}.ffn_down", (scale, down), scaled)
    yield Slot(f"{target}.norm", (_vector(f"{official}.norm.weight", dim, 1.0, 0.1),), _same)


def _quantizer(config: CodecConfig) -> Iterator[Slot]:
    names = ["quantizer.semantic_quantizer.quantizers.0"]
    names += [f"quantizer.quantizer.quantizers.{i}" for i in range(config.num_codebooks - 1)]
    dim, latent = config.codebook_dim, config.latent
    books = tuple(
        Source(f"{name}.codebook.weight", (size, dim))
        for name, size in zip(names, codebook_sizes(config), strict=True)
    )

    def projection(part: str, rows: int, columns: int) -> tuple[Source, ...]:
        shape, std = (rows, columns, 1), columns**-0.5
        return tuple(Source(f"{n}.{part}", shape, Spelling.OLD, std=std) for n in names)

    def biases(part: str, size: int) -> tuple[Source, ...]:
        return tuple(_vector(f"{n}.{part}.bias", size) for n in names)

    def side_by_side(*kernels: Tensor) -> Tensor:
        return torch.cat([kernel[:, :, 0] for kernel in kernels], dim=1)

    def stacked(*kernels: Tensor) -> Tensor:
        return torch.stack([kernel[:, :, 0] for kernel in kernels])

    yield Slot("quantizer.codebooks", books, _rows)
    yield Slot("quantizer.out", projection("out_proj", latent, dim), side_by_side)
    yield Slot("quantizer.out_bias", biases("out_proj", latent), _stack)
    yield Slot("quantizer.into", projection("in_proj", dim, latent), stacked, True)
    yield Slot("quantizer.into_bias", biases("in_proj", dim), _stack, True)


def _decoder(config: CodecConfig) -> Iterator[Slot]:
    latent, channels = config.latent, config.decoder_dim
    yield from _transformer("decoder.post", "quantizer.post_module", latent, config.post)
    for i, factor in enumerate(config.upsample):
        yield from _upsample(f"decoder.upsample.{i}", f"quantizer.upsample.{i}", latent, factor)
    yield from _conv("decoder.first", "decoder.model.0", (channels, latent, 7))
    for i, rate in enumerate(config.decoder_rates):
        ours, theirs, half = f"decoder.blocks.{i}", f"decoder.model.{i + 1}.block", channels // 2
        yield from _snake(f"{ours}.snake", f"{theirs}.0", channels)
        yield from _transposed(f"{ours}.raise_rate", f"{theirs}.1", channels, half, rate)
        for unit in range(len(DILATIONS)):
            yield from _unit(f"{ours}.units.{unit}", f"{theirs}.{unit + 2}", half)
        channels = half
    end = len(config.decoder_rates) + 1
    yield from _snake("decoder.snake", f"decoder.model.{end}", channels)
    yield from _conv("decoder.last", f"decoder.model.{end + 1}", (1, channels, 7), gain=0.1)


def _encoder(config: CodecConfig) -> Iterator[Slot]:
    latent, channels, blocks = config.latent, config.encoder_dim, len(config.encoder_rates)
    yield from _conv("encoder.first", "encoder.block.0", (channels, 1, 7))
    for i, rate in enumerate(config.encoder_rates):
        ours, theirs, twice = f"encoder.blocks.{i}", f"encoder.block.{i + 1}.block", 2 * channels
        for unit in range(len(DILATIONS)):
            yield from _unit(f"{ours}.units.{unit}", f"{theirs}.{unit}", channels)
        yield from _snake(f"{ours}.snake", f"{theirs}.3", channels)
        yield from _conv(f"{ours}.lower_rate", f"{theirs}.4", (twice, channels, 2 * rate))
        channels = twice
    if config.encoder_transformer is not None:
        theirs = f"encoder.block.{blocks}.block.5"
        yield from _transformer("encoder.transformer", theirs, channels, config.encoder_transformer)
    yield from _snake("encoder.snake", f"encoder.block.{blocks + 1}", channels)
    yield from _conv("encoder.last", f"encoder.block.{blocks + 2}", (latent, channels, 3))
    for i, factor in enumerate(reversed(config.upsample)):
        ours, theirs = f"encoder.downsample.{i}", f"quantizer.downsample.{i}"
        yield from _downsample(ours, theirs, latent, factor)
    if config.pre is not None:
        yield from _transformer("encoder.pre", "quantizer.pre_module", latent, config.pre)


def codec_slots(config: CodecConfig) -> list[Slot]:
    """Every parameter of a codec with both halves."""
    encoder = [Slot(s.target, s.sources, s.build, True) for s in _encoder(config)]
    return [*_quantizer(config), *_decoder(config), *encoder]
