"""Sparse mixture of experts with a gated shared expert (docs/model.md, 4).

Softmax over all experts in float32, the best k renormalised to sum 1. On a GPU kernels read just
the chosen experts (``kernels``). Elsewhere three equal ways compute them: few experts are all
evaluated and weighted; otherwise each chosen expert multiplies its rows. That needs the choice on
the host, which is free on a CPU, but stops a GPU and cannot be compiled: there, few rows gather
copies of their experts' weights.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rt_drama3.config import BackboneConfig
from rt_drama3.model import kernels
from rt_drama3.model.kernels import registry
from rt_drama3.model.ops import linear, parameter, taken
from rt_drama3.model.weights import Matrix, common_format, fp8_stack, is_plain

GATHER_ROWS = 8  # up to this many rows may gather the weights of the chosen experts


class MoE(nn.Module):
    """The feed-forward of one backbone layer.

    Parameters: ``router [experts + 1, dim]`` whose last row is the shared expert's gate;
    ``gate_up [experts, 2*ffn, dim]`` (gate rows, then up rows), ``down [experts, dim, ffn]``;
    ``shared_gate_up [2*shared, dim]``, ``shared_down [dim, shared]``. With ``fp8`` those of the
    experts are made as FP8 weights.
    """

    router: Matrix
    gate_up: Matrix
    down: Matrix
    shared_gate_up: Matrix
    shared_down: Matrix

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
        self.router = parameter(self.experts + 1, dim, device=device, dtype=dtype)
        if fp8:
            self.gate_up = fp8_stack(self.experts, 2 * ffn, dim, device=device)
            self.down = fp8_stack(self.experts, dim, ffn, device=device)
        else:
            self.gate_up = parameter(self.experts, 2 * ffn, dim, device=device, dtype=dtype)
            self.down = parameter(self.experts, dim, ffn, device=device, dtype=dtype)
        self.shared_gate_up = parameter(2 * shared, dim, device=device, dtype=dtype)
        self.shared_down = parameter(dim, shared, device=device, dtype=dtype)

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
        if self._kernel(x) is not None:
            return self._with_kernels(x)
        chosen, weights, shared = self.route(x)
        if self.experts <= 2 * self.top and is_plain(self.gate_up) and is_plain(self.down):
            routed = self._all_experts(x, chosen, weights)
        elif x.shape[0] <= GATHER_ROWS and not on_host(x):
            routed = self._gathered(x, chosen, weights)
        else:
            routed = self._by_expert(x, chosen, weights)
        return routed + self._shared(x) * shared.to(x.dtype)

    def _kernel(self, x: Tensor) -> registry.Experts | None:
        """What computes all chosen experts of ``x`` in one call; None: plain PyTorch."""
        if is_plain(self.gate_up) and is_plain(self.down):
            return kernels.plain_experts if kernels.usable(x) else None
        format = common_format(self.gate_up, self.down)
        kernel = registry.find(format.name, x) if format is not None else None
        return kernel.experts if kernel is not None else None

    def _shared(self, x: Tensor) -> Tensor:
        return linear(swiglu(linear(x, self.shared_gate_up)), self.shared_down)

    def _with_kernels(self, x: Tensor) -> Tensor:
        if kernels.usable(x):
            chosen, weights, shared = kernels.route(linear(x, self.router), self.top)
        else:
            chosen, weights, shared = self.route(x)
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
        kernel = self._kernel(x)
        assert kernel is not None
        return kernel(x, chosen, weights, self.gate_up, self.down)

    def _all_experts(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        assert isinstance(self.gate_up, Tensor)
        share = torch.zeros(x.shape[0], self.experts, device=x.device).scatter(1, chosen, weights)
        hidden = linear(x, self.gate_up.flatten(0, 1)).unflatten(-1, (self.experts, -1))
        hidden = swiglu(hidden) * share.unsqueeze(-1).to(x.dtype)  # [N, experts, ffn]
        parts = [linear(hidden[:, e], self.down, e) for e in range(self.experts)]
        return torch.stack(parts).sum(0)

    def _gathered(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        gate_up = taken(self.gate_up, chosen, x.dtype)
        hidden = swiglu((gate_up @ x[:, None, :, None]).squeeze(-1))  # [N, top, ffn]
        hidden = hidden * weights.unsqueeze(-1).to(x.dtype)
        down = taken(self.down, chosen, x.dtype)
        return (down @ hidden.unsqueeze(-1)).squeeze(-1).sum(1)

    def _by_expert(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """One product for each expert that was chosen, with the weights where they are."""
        members: defaultdict[int, list[int]] = defaultdict(list)  # (row, expert) pairs by expert
        for pair, expert in enumerate(chosen.flatten().tolist()):
            members[expert].append(pair)
        outputs = x.new_empty(chosen.numel(), x.shape[1])
        for expert, pairs in members.items():
            inputs = x if x.shape[0] == 1 else x[[pair // self.top for pair in pairs]]
            hidden = swiglu(linear(inputs, self.gate_up, expert))
            outputs[pairs] = linear(hidden, self.down, expert)
        # In routing order, so that a row's sum does not depend on the other rows of the block.
        share = weights.unsqueeze(-1).to(x.dtype)
        total: Tensor = (outputs.unflatten(0, (-1, self.top)) * share).sum(1)
        return total


def on_host(x: Tensor) -> bool:
    """Whether the host can read values that follow from ``x`` without waiting for a device."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def swiglu(x: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``[..., 2*ffn]`` whose first half is the gate."""
    gate, up = x.chunk(2, -1)
    product: Tensor = F.silu(gate) * up
    return product
