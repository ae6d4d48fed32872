"""Layers of the speech model in the form that training needs; see ``model``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rt_drama3.config import AttentionShape, BackboneConfig, TowerConfig

CHUNK = 32


class Norm(nn.Module):
    """RMS norm in float32; ``weight`` is zero-centred unless ``plain``."""

    def __init__(self, size: int, eps: float, plain: bool = False) -> None:
        super().__init__()
        self.eps, self.shift = eps, 0.0 if plain else 1.0
        self.weight = nn.Parameter(torch.full((size,), 1.0 - self.shift))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.shift + self.weight, self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A matrix without bias."""
    return nn.Linear(inputs, outputs, bias=False)


def rope(rows: int, rotary: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions 0 .. rows - 1, each ``[rows, rotary / 2]``."""
    frequencies = base ** (-torch.arange(0, rotary, 2, device=device).float() / rotary)
    angles = torch.arange(rows, device=device).float()[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, neighbours: bool) -> Tensor:
    """Rotates the first dims of ``[..., rows, dim]``; pairs are neighbours or the two halves."""
    size = 2 * cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    if neighbours:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pair = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        pair = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((pair, rest), -1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal grouped attention over ``[B, heads, T, dim]`` -> ``[B, T, heads * dim]``."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1).to(q.dtype) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class BackboneAttention(nn.Module):
    """Full attention; its first head can be taught where in the text the voice is."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape
        heads, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = linear(shape.dim, 2 * heads)
        self.k_proj = linear(shape.dim, keys)
        self.v_proj = linear(shape.dim, keys)
        self.o_proj = linear(heads, shape.dim)
        self.q_norm = Norm(shape.head_dim, shape.norm_eps)
        self.k_norm = Norm(shape.head_dim, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output ``[B, T, dim]``, and query and key of the first head ``[B, T, head_dim]``."""
        size = self.shape.head_dim
        q, gate = self.q_proj(x).unflatten(-1, (-1, 2 * size)).chunk(2, -1)
        k = self.k_proj(x).unflatten(-1, (-1, size))
        v = self.v_proj(x).unflatten(-1, (-1, size)).transpose(1, 2)
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin, False)
        k = rotate(self.k_norm(k).transpose(1, 2), cos, sin, False)
        read = attend(q, k, v) * torch.sigmoid(gate.flatten(2))
        return self.o_proj(read), q[:, 0], k[:, 0]


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The gated delta rule over whole sequences, in chunks (see ``rt_drama3.model.delta_net``).

    Args:
        q, k, v: float32 ``[B, H, T, dim]``, q already scaled.
        g, beta: float32 ``[B, H, T]``.

    Returns:
        float32 ``[B, H, T, value_dim]``.
    """
    rows = q.shape[2]
    missing = -rows % CHUNK
    q, k, v = (F.pad(t, (0, 0, 0, missing)).unflatten(2, (-1, CHUNK)) for t in (q, k, v))
    g, beta = (F.pad(t, (0, missing)).unflatten(2, (-1, CHUNK)) for t in (g, beta))
    total = g.cumsum(-1)
    # fade[i, j] = exp(G_i - G_j) for j <= i; the upper half must not overflow before the mask
    fade = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()
    written_k, written_v = k * beta.unsqueeze(-1), v * beta.unsqueeze(-1)
    system = ((written_k @ k.transpose(-1, -2)) * fade).tril(-1)
    target = torch.cat((written_v, written_k * total.exp().unsqueeze(-1)), -1)
    solved = torch.linalg.solve_triangular(system, target, upper=False, unitriangular=True)
    values, keys = solved.split((v.shape[-1], k.shape[-1]), -1)
    inside = (q @ k.transpose(-1, -2)) * fade
    reading = q * total.exp().unsqueeze(-1)
    last = total[..., -1:]
    kept = (k * (last - total).exp().unsqueeze(-1)).transpose(-1, -2)
    fading = last.exp().unsqueeze(-1)
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for chunk in range(q.shape[2]):
        corrections = values[:, :, chunk] - keys[:, :, chunk] @ state
        outputs.append(reading[:, :, chunk] @ state + inside[:, :, chunk] @ corrections)
        state = state * fading[:, :, chunk] + kept[:, :, chunk] @ corrections
    return torch.stack(outputs, 2).flatten(2, 3)[:, :, :rows]


class DeltaNet(nn.Module):
    """Gated DeltaNet mixer."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.key_dim, self.value_dim = config.linear_key_dim, config.linear_value_dim
        self.repeat = config.linear_value_heads // config.linear_key_heads
        keys = config.linear_key_heads * self.key_dim
        values = config.linear_value_heads * self.value_dim
        self.widths = (keys, keys, values)
        self.taps = config.conv_kernel
        dim, heads = config.hidden_size, config.linear_value_heads
        self.in_proj_qkv = linear(dim, sum(self.widths))
        self.in_proj_z = linear(dim, values)
        self.in_proj_b = linear(dim, heads)
        self.in_proj_a = linear(dim, heads)
        channels = sum(self.widths)
        self.conv1d = nn.Conv1d(channels, channels, self.taps, groups=channels, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(0.5, 4).log())
        self.dt_bias = nn.Parameter(torch.linspace(-5, -1, heads))
        self.norm = Norm(self.value_dim, config.norm_eps, plain=True)
        self.out_proj = linear(values, dim)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[1]
        projected = F.pad(self.in_proj_qkv(x).float(), (0, 0, self.taps - 1, 0))
        taps = self.conv1d.weight[:, 0]
        convolved = projected[:, :rows] * taps[:, 0]
        for tap in range(1, self.taps):
            convolved = torch.addcmul(convolved, projected[:, tap : tap + rows], taps[:, tap])
        q, k, v = F.silu(convolved).split(self.widths, -1)
        q, k = (_unit(t.unflatten(-1, (-1, self.key_dim))) for t in (q, k))
        q, k = (t.repeat_interleave(self.repeat, 2).transpose(1, 2) for t in (q, k))
        v = v.unflatten(-1, (-1, self.value_dim)).transpose(1, 2)
        beta = torch.sigmoid(self.in_proj_b(x).float()).transpose(1, 2)
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        with torch.autocast(x.device.type, enabled=False):
            read = delta_rule(q * self.key_dim**-0.5, k, v, g.transpose(1, 2), beta)
        gate = F.silu(self.in_proj_z(x).float())
        mixed: Tensor = self.out_proj(self.norm(read.transpose(1, 2)).flatten(2) * gate)
        return mixed


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


class Experts(nn.Module):
    """All experts as one wide SwiGLU; those that the router did not choose are scaled by zero."""

    def __init__(self, config: BackboneConfig, layer: int) -> None:
        super().__init__()
        dim = config.hidden_size
        self.experts, self.chosen = config.experts[layer], config.experts_per_token
        self.inner, self.shared = config.expert_ffn, config.shared_expert_ffn
        width = self.experts * self.inner + self.shared
        self.gate = linear(dim, self.experts)
        self.shared_expert_gate = linear(dim, 1)
        self.gate_proj, self.up_proj = linear(dim, width), linear(dim, width)
        self.down_proj = linear(width, dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Output and how evenly the experts are used (1 at best)."""
        odds = torch.softmax(self.gate(x).float(), -1)
        best, index = odds.topk(self.chosen, -1)
        weights = torch.zeros_like(odds).scatter(-1, index, best / best.sum(-1, keepdim=True))
        used = (weights > 0).float().flatten(0, -2).mean(0) / self.chosen
        balance = self.experts * (used * odds.flatten(0, -2).mean(0)).sum()
        always = torch.sigmoid(self.shared_expert_gate(x).float())
        scale = torch.cat(
            (
                weights.repeat_interleave(self.inner, -1),
                always.expand(*x.shape[:-1], self.shared),
            ),
            -1,
        )
        hidden = F.silu(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(hidden * scale.to(hidden.dtype)), balance


class BackboneLayer(nn.Module):
    """A mixer and its experts, each behind a norm."""

    def __init__(self, config: BackboneConfig, index: int) -> None:
        super().__init__()
        self.full = config.layer_types[index] == "full_attention"
        if self.full:
            self.self_attn = BackboneAttention(config.attention)
        else:
            self.linear_attn = DeltaNet(config)
        self.mlp = Experts(config, index)
        self.input_layernorm = Norm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.norm_eps)


class TowerAttention(nn.Module):
    """Attention of a tower layer."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape
        heads, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.widths = (heads, heads, keys, keys)
        self.wqkv, self.wo = linear(shape.dim, sum(self.widths)), linear(heads, shape.dim)
        self.q_norm = Norm(shape.head_dim, shape.norm_eps)
        self.k_norm = Norm(shape.head_dim, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        size = self.shape.head_dim
        q, gate, k, v = self.wqkv(x).split(self.widths, -1)
        q, k, v = (t.unflatten(-1, (-1, size)).transpose(1, 2) for t in (q, k, v))
        q = rotate(self.q_norm(q), cos, sin, True)
        k = rotate(self.k_norm(k), cos, sin, True)
        y: Tensor = self.wo(attend(q, k, v) * torch.sigmoid(gate))
        return y


class _Block(nn.Module):
    """The transformer inside a tower layer, named as in the checkpoint."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        dim, eps = config.dim, config.norm_eps
        self.attention = TowerAttention(config.attention)
        self.attention_norm, self.ffn_norm = Norm(dim, eps), Norm(dim, eps)
        self.feed_forward = nn.ModuleDict(
            {
                "w1": linear(dim, config.ffn),
                "w2": linear(config.ffn, dim),
                "w3": linear(dim, config.ffn),
            }
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        normed, ffn = self.ffn_norm(x), self.feed_forward
        y: Tensor = ffn["w2"](F.silu(ffn["w1"](normed)) * ffn["w3"](normed))
        return x + y


class TowerLayer(nn.Module):
    """Joins a code of the label to the hidden rows and attends over the timeline."""

    def __init__(self, config: TowerConfig, table: str) -> None:
        super().__init__()
        dim, eps = config.dim, config.norm_eps
        self.table = table
        setattr(self, table, nn.Embedding(config.codebook_size, dim))
        self.enorm, self.hnorm = Norm(dim, eps), Norm(dim, eps)
        self.final_layernorm = Norm(dim, eps)
        self.eh_proj = linear(2 * dim, dim)
        self.transformer_layer = _Block(config)

    def forward(
        self,
        hidden: Tensor,
        code: Tensor,
        audio: Tensor,
        angles: tuple[Tensor, Tensor],
        extra: Tensor | None = None,
    ) -> Tensor:
        """One layer over ``hidden [B, T, dim]``; ``code`` and ``audio [B, T]`` are the label's."""
        embedded = getattr(self, self.table)(code) * audio[..., None]
        if extra is not None:
            embedded = embedded + extra
        x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), -1)).float()
        y: Tensor = self.final_layernorm(self.transformer_layer(x, *angles))
        return y
