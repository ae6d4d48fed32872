"""The codec once more, as plainly as the notes state it: one shot, float64, official tensor names.

No streaming, no folding ahead of time, no re-ordering: what ``rt_drama3.codec`` computes cleverly
is computed here the slow way, so that the two share nothing but the mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from rt_drama3.config import CodecConfig, WindowTransformerConfig


class PlainCodec:
    """One-shot codec over an official state dict (weight-norm pairs and all)."""

    def __init__(self, config: CodecConfig, state: Mapping[str, Tensor]) -> None:
        self.config = config
        self.state = {name: value.double() for name, value in state.items()}

    def decode(self, codes: Tensor) -> Tensor:
        """Maps codes [batch, num_codebooks, frames] to PCM [batch, samples]."""
        config = self.config
        z = torch.zeros(())
        for i, name in enumerate(self._quantizers()):
            table = self.state[f"{name}.codebook.weight"]
            rows = table[codes[:, i].clamp(0, len(table) - 1)].transpose(1, 2)
            z = z + self._project(f"{name}.out_proj", rows)
        z = self._transformer("quantizer.post_module", z, config.post)
        for i, factor in enumerate(config.upsample):
            kernel, bias = self._plain(f"quantizer.upsample.{i}.0.conv")
            z = F.conv_transpose1d(z, kernel, bias, stride=factor)
            z = self._convnext(f"quantizer.upsample.{i}.1", z)
        x = self._conv("decoder.model.0", z)
        for i, rate in enumerate(config.decoder_rates):
            block = f"decoder.model.{i + 1}.block"
            kernel = self._normed(f"{block}.1.conv")
            bias = self.state[f"{block}.1.conv.bias"]
            x = F.conv_transpose1d(self._snake(f"{block}.0", x), kernel, bias, stride=rate)
            x = self._units(block, x[..., :-rate], first=2)
        end = len(config.decoder_rates) + 1
        x = self._conv(f"decoder.model.{end + 1}", self._snake(f"decoder.model.{end}", x))
        return torch.tanh(x)[:, 0]

    def encode(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Maps PCM [samples] to codes and runner-up margins, each [num_codebooks, frames].

        The margin is how much nearer the chosen code is than the second best (squared distance).
        """
        config = self.config
        padding = -samples.shape[0] % config.frame_samples
        x = self._conv("encoder.block.0", F.pad(samples.double(), (0, padding))[None, None])
        for i, rate in enumerate(config.encoder_rates):
            block = f"encoder.block.{i + 1}.block"
            x = self._units(block, x, first=0)
            x = self._conv(f"{block}.4", self._snake(f"{block}.3", x), stride=rate)
        end = len(config.encoder_rates)
        if config.encoder_transformer is not None:
            name = f"encoder.block.{end}.block.5"
            x = self._transformer(name, x, config.encoder_transformer)
        z = self._conv(f"encoder.block.{end + 2}", self._snake(f"encoder.block.{end + 1}", x))
        for i, factor in enumerate(reversed(config.upsample)):
            kernel, bias = self._plain(f"quantizer.downsample.{i}.0.conv")
            z = F.conv1d(z, kernel, bias, stride=factor)
            z = self._convnext(f"quantizer.downsample.{i}.1", z)
        if config.pre is not None:
            z = self._transformer("quantizer.pre_module", z, config.pre)
        codes, margins = [], []
        for name in self._quantizers():
            table = self.state[f"{name}.codebook.weight"]
            query = F.normalize(self._project(f"{name}.in_proj", z)[0].T, dim=1)
            distance = torch.cdist(query, F.normalize(table, dim=1)).square()
            best = distance.topk(2, largest=False)
            codes.append(best.indices[:, 0])
            margins.append(best.values[:, 1] - best.values[:, 0])
            z = z - self._project(f"{name}.out_proj", table[codes[-1]].T[None])
        return torch.stack(codes), torch.stack(margins)

    def _quantizers(self) -> list[str]:
        rest = range(self.config.num_codebooks - 1)
        first = "quantizer.semantic_quantizer.quantizers.0"
        return [first, *(f"quantizer.quantizer.quantizers.{i}" for i in rest)]

    def _plain(self, name: str) -> tuple[Tensor, Tensor]:
        return self.state[f"{name}.weight"], self.state[f"{name}.bias"]

    def _normed(self, name: str) -> Tensor:
        gain = self.state[f"{name}.parametrizations.weight.original0"]
        value = self.state[f"{name}.parametrizations.weight.original1"]
        return gain * value / value.square().sum((1, 2), keepdim=True).sqrt()

    def _project(self, name: str, x: Tensor) -> Tensor:
        gain, value = self.state[f"{name}.weight_g"], self.state[f"{name}.weight_v"]
        kernel = gain * value / value.square().sum((1, 2), keepdim=True).sqrt()
        return F.conv1d(x, kernel, self.state[f"{name}.bias"])

    def _conv(self, name: str, x: Tensor, stride: int = 1, dilation: int = 1) -> Tensor:
        kernel = self._normed(f"{name}.conv")
        padding = (kernel.shape[2] - 1) * dilation + 1 - stride
        bias = self.state[f"{name}.conv.bias"]
        return F.conv1d(F.pad(x, (padding, 0)), kernel, bias, stride=stride, dilation=dilation)

    def _snake(self, name: str, x: Tensor) -> Tensor:
        alpha = self.state[f"{name}.alpha"]
        return x + torch.sin(alpha * x) ** 2 / (alpha + 1e-9)

    def _units(self, block: str, x: Tensor, first: int) -> Tensor:
        for i, dilation in enumerate((1, 3, 9)):
            unit = f"{block}.{first + i}.block"
            y = self._conv(f"{unit}.1", self._snake(f"{unit}.0", x), dilation=dilation)
            x = x + self._conv(f"{unit}.3", self._snake(f"{unit}.2", y))
        return x

    def _convnext(self, name: str, x: Tensor) -> Tensor:
        kernel, bias = self._plain(f"{name}.dwconv.conv")
        y = F.conv1d(F.pad(x, (6, 0)), kernel, bias, groups=x.shape[1]).transpose(1, 2)
        y = F.layer_norm(y, y.shape[-1:], *self._plain(f"{name}.norm"), eps=1e-6)
        y = F.linear(
            F.gelu(F.linear(y, *self._plain(f"{name}.pwconv1"))), *self._plain(f"{name}.pwconv2")
        )
        return x + (y * self.state[f"{name}.gamma"]).transpose(1, 2)

    def _transformer(self, name: str, x: Tensor, sizes: WindowTransformerConfig) -> Tensor:
        x = x.transpose(1, 2)  # [batch, time, dim]
        time = x.shape[1]
        table = self._rotary_table(time, sizes.head_dim)
        i, j = torch.arange(time)[:, None], torch.arange(time)
        visible = (j <= i) & (j > i - sizes.window)
        for layer in range(sizes.layers):
            part = f"{name}.layers.{layer}"
            y = self._rms_norm(f"{part}.attention_norm", x)
            qkv = F.linear(y, self.state[f"{part}.attention.wqkv.weight"])
            heads = qkv.view(*qkv.shape[:2], 3, sizes.heads, sizes.head_dim).permute(2, 0, 3, 1, 4)
            query, key = _turn(heads[0], table), _turn(heads[1], table)
            scores = query @ key.transpose(-1, -2) / sizes.head_dim**0.5
            seen = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ heads[2]
            y = F.linear(seen.transpose(1, 2).flatten(2), self.state[f"{part}.attention.wo.weight"])
            x = x + y * self.state[f"{part}.attention_layer_scale.gamma"]
            y = self._rms_norm(f"{part}.ffn_norm", x)
            w1, w2, w3 = (self.state[f"{part}.feed_forward.w{n}.weight"] for n in (1, 2, 3))
            y = F.linear(F.silu(F.linear(y, w1)) * F.linear(y, w3), w2)
            x = x + y * self.state[f"{part}.ffn_layer_scale.gamma"]
        return self._rms_norm(f"{name}.norm", x).transpose(1, 2)

    def _rms_norm(self, name: str, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        return x * scale * self.state[f"{name}.weight"]

    def _rotary_table(self, time: int, dim: int) -> Tensor:
        """Complex [time, dim / 2], rounded as the reference stores it."""
        frequencies = 1.0 / (self.config.rope_base ** (torch.arange(0, dim, 2).float() / dim))
        angles = torch.outer(torch.arange(time).float(), frequencies)
        dtype = getattr(torch, self.config.rope_table_dtype)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return torch.complex(cos.double(), sin.double())


def _turn(x: Tensor, table: Tensor) -> Tensor:
    """Rotates the interleaved pairs of [batch, heads, time, dim]."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * table).flatten(-2)
