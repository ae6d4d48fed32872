"""The backbone: Qwen3.5-style layers of DeltaNet or full attention, each followed by a MoE.

Source: docs/model.md, 4. ``block`` prefills one stream, ``step`` advances every stream by
one row; both take embedded rows and return the final-norm output, which feeds head and tower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from rt_drama3.config import BackboneConfig
from rt_drama3.model.attention import Attention
from rt_drama3.model.delta_net import DeltaNet
from rt_drama3.model.moe import MoE
from rt_drama3.model.ops import parameter, rms_norm
from rt_drama3.model.state import StreamState

# (layer, position of the first row, its output [T, dim]) -> the output for the next layer. Called
# for every layer during prefill: to measure hidden states, or to steer them.
LayerHook: TypeAlias = Callable[[int, int, Tensor], Tensor]


class BackboneLayer(nn.Module):
    """``h += mixer(norm(h)); h += moe(norm(h))``."""

    def __init__(
        self,
        config: BackboneConfig,
        index: int,
        device: torch.device | str,
        dtype: torch.dtype,
        fp8: bool,
    ) -> None:
        super().__init__()
        size, f32 = config.hidden_size, torch.float32
        self.input_norm = parameter(size, device=device, dtype=f32)
        self.post_norm = parameter(size, device=device, dtype=f32)
        self.mixer: Attention | DeltaNet
        if config.layer_types[index] == "full_attention":
            self.mixer = Attention(config.attention, device, dtype)
        else:
            self.mixer = DeltaNet(config, device, dtype)
        self.moe = MoE(config, index, device, dtype, fp8)


class Backbone(nn.Module):
    """All backbone layers and the final norm."""

    def __init__(
        self, config: BackboneConfig, device: torch.device | str, dtype: torch.dtype, fp8: bool
    ) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.norm = parameter(config.hidden_size, device=device, dtype=torch.float32)
        self.layers = nn.ModuleList(
            BackboneLayer(config, i, device, dtype, fp8) for i in range(config.layers)
        )

    def _each_layer(self) -> list[BackboneLayer]:
        return cast(list[BackboneLayer], list(self.layers))

    def block(
        self,
        x: Tensor,
        rope: Tensor,
        state: StreamState,
        slot: int,
        start: int,
        hook: LayerHook | None = None,
    ) -> Tensor:
        """Reads rows ``x [T, dim]`` at positions ``start..`` of slot ``slot``; its caches advance.

        ``rope`` is ``[2, T, rotary/2]`` of those positions; ``hook`` gets the output of every
        layer. Returns the final-norm output ``[T, dim]``.
        """
        full = linear = 0
        for index, layer in enumerate(self._each_layer()):
            normed = rms_norm(x, layer.input_norm, self.eps)
            if isinstance(layer.mixer, Attention):
                keys, values = state.keys[full][slot], state.values[full][slot]
                x = x + layer.mixer.block(normed, rope, keys, values, start)
                full += 1
            else:
                tail, matrix = state.tails[linear][slot], state.matrices[linear][slot]
                x = x + layer.mixer.block(normed, tail, matrix)
                linear += 1
            x = x + layer.moe(rms_norm(x, layer.post_norm, self.eps))
            if hook is not None:
                x = hook(index, start, x)
        return rms_norm(x, self.norm, self.eps)

    def step(
        self, x: Tensor, rope: Tensor, state: StreamState, position: Tensor, mask: Tensor
    ) -> Tensor:
        """One row ``x [B, dim]`` of every stream in ``state`` -> final-norm output ``[B, dim]``.

        ``rope [2, B, rotary/2]``, ``position [B]`` and ``mask [B, 1, 1, length]`` as in
        ``Attention.step``.
        """
        full = linear = 0
        for layer in self._each_layer():
            normed = rms_norm(x, layer.input_norm, self.eps)
            if isinstance(layer.mixer, Attention):
                keys, values = state.keys[full], state.values[full]
                x = x + layer.mixer.step(normed, rope, keys, values, position, mask)
                full += 1
            else:
                x = x + layer.mixer.step(
                    normed, state.tails[linear], state.matrices[linear], state.active
                )
                linear += 1
            x = x + layer.moe(rms_norm(x, layer.post_norm, self.eps))
        return rms_norm(x, self.norm, self.eps)
