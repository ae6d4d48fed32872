"""Sparse mixture of experts with a gated shared expert (docs/model.md, 4).

Softmax over all experts in float32, the best k renormalised to sum 1. On a GPU kernels read just
the chosen experts (``kernels``). Elsewhere three equal ways compute them, by sizes alone: few
experts are all evaluated and weighted (cheaper than gathering their weights), few rows gather the
weights of their experts, many rows are grouped by expert.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rt_drama3.config import BackboneConfig
from rt_drama3.model import kernels
from rt_drama3.model.ops import linear, parameter

FP8_BLOCK = 128
GATHER_ROWS = 8  # up to this many rows the chosen experts' weights are gathered


class MoE(nn.Module):
    """The feed-forward of one backbone layer.

    Parameters: ``router [experts + 1, dim]`` whose last row is the shared expert's gate;
    ``gate_up [experts, 2*ffn, dim]`` (gate rows, then up rows), ``down [experts, dim, ffn]``;
    ``shared_gate_up [2*shared, dim]``, ``shared_down [dim, shared]``. With ``fp8`` the expert
    matrices are float8_e4m3fn and ``gate_up_scale``/``down_scale`` hold one float32 factor per
    128x128 block.
    """

    def __init__(
        self,
        config: BackboneConfig,
        layer: int,
        device: torch.device | str,
        dtype: torch.dtype,
        fp8: bool = False,
    ) -> None:
        super().__init__()
        dim, ffn, shared = config.hidden_size, config.expert_ffn, config.shared_expert_ffn
        self.experts = config.experts[layer]
        self.top = min(config.experts_per_token, self.experts)
        kind = torch.float8_e4m3fn if fp8 else dtype
        self.router = parameter(self.experts + 1, dim, device=device, dtype=dtype)
        self.gate_up = parameter(self.experts, 2 * ffn, dim, device=device, dtype=kind)
        self.down = parameter(self.experts, dim, ffn, device=device, dtype=kind)
        self.shared_gate_up = parameter(2 * shared, dim, device=device, dtype=dtype)
        self.shared_down = parameter(dim, shared, device=device, dtype=dtype)
        self.gate_up_scale: nn.Parameter | None = None
        self.down_scale: nn.Parameter | None = None
        if fp8:
            blocks, wide = dim // FP8_BLOCK, ffn // FP8_BLOCK
            f32 = torch.float32
            self.gate_up_scale = parameter(self.experts, 2 * wide, blocks, device=device, dtype=f32)
            self.down_scale = parameter(self.experts, blocks, wide, device=device, dtype=f32)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Routes ``x [N, dim]``.

        Returns:
            Expert ids ``[N, top]``, their weights float32 ``[N, top]``, the shared expert's gate
            ``[N, 1]``.
        """
        logits = linear(x, self.router).float()
        weights, chosen = torch.softmax(logits[:, :-1], -1).topk(self.top, -1)
        shared = torch.sigmoid(logits[:, -1:])
        return chosen, weights / weights.sum(-1, keepdim=True), shared

    def forward(self, x: Tensor) -> Tensor:
        """``x [N, dim]`` -> ``[N, dim]``."""
        if kernels.usable(x):
            return self._with_kernels(x)
        chosen, weights, shared = self.route(x)
        if self.experts <= 2 * self.top and self.gate_up_scale is None:
            routed = self._all_experts(x, chosen, weights)
        elif x.shape[0] <= GATHER_ROWS:
            routed = self._gathered(x, chosen, weights)
        else:
            routed = self._grouped(x, chosen, weights)
        return routed + self._shared(x) * shared.to(x.dtype)

    def _shared(self, x: Tensor) -> Tensor:
        return linear(swiglu(linear(x, self.shared_gate_up)), self.shared_down)

    def _with_kernels(self, x: Tensor) -> Tensor:
        chosen, weights, shared = kernels.route(linear(x, self.router), self.top)
        products = self.products(x, chosen, weights)
        if x.shape[0] <= kernels.FEW_ROWS:
            # One by one, in routing order: eager and compiled then round alike, and a compiler
            # makes it one pass together with what follows.
            routed: Tensor = products[:, 0]
            for slot in range(1, self.top):
                routed = routed + products[:, slot]
        else:
            routed = products.sum(1)
        total: Tensor = routed + self._shared(x) * shared
        return total.to(x.dtype)

    def products(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Weighted output of every chosen expert; see ``kernels.experts``."""
        gate_up, down = (self.gate_up, self.gate_up_scale), (self.down, self.down_scale)
        found: Tensor = kernels.experts(x, chosen, weights, *gate_up, *down)
        return found

    def _all_experts(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        share = torch.zeros(x.shape[0], self.experts, device=x.device).scatter(1, chosen, weights)
        hidden = linear(x, self.gate_up.flatten(0, 1)).unflatten(-1, (self.experts, -1))
        hidden = swiglu(hidden) * share.unsqueeze(-1).to(x.dtype)  # [N, experts, ffn]
        parts = [linear(hidden[:, e], self.down[e]) for e in range(self.experts)]
        return torch.stack(parts).sum(0)

    def _gathered(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        gate_up = self._matrix("gate_up", chosen, x.dtype)
        hidden = swiglu((gate_up @ x[:, None, :, None]).squeeze(-1))  # [N, top, ffn]
        hidden = hidden * weights.unsqueeze(-1).to(x.dtype)
        down = self._matrix("down", chosen, x.dtype)
        return (down @ hidden.unsqueeze(-1)).squeeze(-1).sum(1)

    def _grouped(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        order = chosen.flatten().argsort(stable=True)
        rows = order // self.top
        counts = chosen.flatten().bincount(minlength=self.experts).tolist()
        inputs, share = x[rows], weights.flatten()[order, None].to(x.dtype)
        outputs = torch.empty_like(inputs)
        start = 0
        for expert, count in enumerate(counts):
            if not count:
                continue
            part = slice(start, start + count)
            hidden = swiglu(linear(inputs[part], self._matrix("gate_up", expert, x.dtype)))
            outputs[part] = linear(hidden, self._matrix("down", expert, x.dtype))
            start += count
        # Each row gathers its own results in routing order, so the sum does not depend on the
        # other rows of the block.
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=order.device)
        result: Tensor = (outputs * share)[back].unflatten(0, (-1, self.top)).sum(1)
        return result

    def _matrix(self, name: str, experts: int | Tensor, dtype: torch.dtype) -> Tensor:
        """The matrix of an expert, or those of several, in ``dtype``."""
        scale: Tensor | None = getattr(self, f"{name}_scale")
        weight: Tensor = getattr(self, name)[experts]
        return dequantize(weight, None if scale is None else scale[experts], dtype)


def swiglu(x: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``[..., 2*ffn]`` whose first half is the gate."""
    gate, up = x.chunk(2, -1)
    product: Tensor = F.silu(gate) * up
    return product


def dequantize(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``W[i, j] = float(q[i, j]) * scale[i // 128, j // 128]`` over the last two dims.

    Despite the checkpoint's name ``weight_scale_inv`` the factor multiplies (docs/model.md,
    2.2). Sizes that are not multiples of 128 use the part of the last block that exists. Without a
    scale the weight is only cast.
    """
    if scale is None:
        return weight.to(dtype)
    rows, columns = weight.shape[-2:]
    if rows % FP8_BLOCK == 0 and columns % FP8_BLOCK == 0:
        blocks = weight.float().unflatten(-1, (-1, FP8_BLOCK)).unflatten(-3, (-1, FP8_BLOCK))
        blocks.mul_(scale.float()[..., :, None, :, None])
        whole: Tensor = blocks.flatten(-4, -3).flatten(-2, -1).to(dtype)
        return whole
    factor = scale.float().repeat_interleave(FP8_BLOCK, -2).repeat_interleave(FP8_BLOCK, -1)
    return (weight.float() * factor[..., :rows, :columns]).to(dtype)
