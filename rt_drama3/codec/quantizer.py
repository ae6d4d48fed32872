"""Codes to latents and back: one semantic codebook, then residual ones (docs/model.md, 8.2).

The official file has ten little modules; here their tables lie side by side, so that decoding is
one look-up and one matrix product. Everything stays float32: it is small, and the codec's choice
between near codes should not depend on the dtype of the large matrices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rt_drama3.codec.weights import Device, by_frame, weight
from rt_drama3.config import CodecConfig


def codebook_sizes(config: CodecConfig) -> list[int]:
    """Rows of each codebook, the semantic one first."""
    return [config.semantic_codebook_size] + [config.residual_codebook_size] * (
        config.num_codebooks - 1
    )


class Quantizer(nn.Module):
    """The codebooks with their projections.

    Parameters: ``codebooks`` [rows of all codebooks, codebook_dim]; ``out`` [latent, num_codebooks
    * codebook_dim]; ``out_bias`` [num_codebooks, latent]; and with an encode half ``into``
    [num_codebooks, codebook_dim, latent] and ``into_bias`` [num_codebooks, codebook_dim].
    """

    def __init__(self, config: CodecConfig, *, encoder: bool, device: Device = None) -> None:
        super().__init__()
        count, dim, latent = config.num_codebooks, config.codebook_dim, config.latent
        self.sizes = codebook_sizes(config)
        self.dim = dim
        f32 = torch.float32
        self.codebooks = weight(sum(self.sizes), dim, device=device, dtype=f32)
        self.out = weight(latent, count * dim, device=device, dtype=f32)
        self.out_bias = weight(count, latent, device=device, dtype=f32)
        if encoder:
            self.into = weight(count, dim, latent, device=device, dtype=f32)
            self.into_bias = weight(count, dim, device=device, dtype=f32)
        sizes = torch.tensor(self.sizes)
        self.register_buffer("last", (sizes - 1)[:, None].to(device), persistent=False)
        starts = (sizes.cumsum(0) - sizes)[:, None]
        self.register_buffer("starts", starts.to(device), persistent=False)
        self.last: Tensor
        self.starts: Tensor

    def decode(self, codes: Tensor) -> Tensor:
        """Maps int64 codes [batch, num_codebooks, frames] to latents [batch, frames, latent].

        Codes outside their codebook are clamped: the language model may draw a residual code
        beyond the codebook's size, and only the codec clamps it.
        """
        rows = torch.minimum(codes.clamp(min=0), self.last) + self.starts
        vectors = F.embedding(rows.transpose(1, 2), self.codebooks)  # [batch, frames, count, dim]
        return by_frame(vectors.flatten(2), self.out, self.out_bias.sum(0), rate=1)

    def encode(self, latents: Tensor) -> Tensor:
        """Maps latents [batch, frames, latent] to int64 codes [batch, num_codebooks, frames].

        Each stage projects what the earlier ones left, takes the row of its codebook that is
        nearest once both sides are normalised, and subtracts that row's (unnormalised) vector.
        """
        residual = latents.float()
        codes = []
        for stage, table in enumerate(self.codebooks.split(self.sizes)):
            query = F.linear(residual, self.into[stage], self.into_bias[stage])
            unit = F.normalize(table, dim=1)
            # argmin |q - c|^2 with |q| constant; |c| is 1, or 0 for an empty row.
            nearness = 2 * F.normalize(query, dim=-1) @ unit.T - unit.square().sum(1)
            code = nearness.argmax(dim=-1)
            out = self.out[:, stage * self.dim : (stage + 1) * self.dim]
            residual = residual - F.linear(F.embedding(code, table), out, self.out_bias[stage])
            codes.append(code)
        return torch.stack(codes, dim=1)
