"""The speech model in the form that training needs: whole sequences in parallel, with gradients.

The mathematics is that of ``rt_drama3.model`` (docs/model.md, 4 and 5); parameters keep the
names of the official checkpoint, except that the experts of a layer lie side by side in one matrix
and are all evaluated (``layout`` splits and joins them). A test holds both forms equal.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rt_drama3.config import ModelConfig
from training.layers import BackboneLayer, Norm, TowerLayer, linear, rope

_SMALL_OUTPUTS = ("o_proj", "out_proj", "down_proj", "wo.", "w2.")


class Batch(NamedTuple):
    """Sequences and their labels, which are the rows after them; B sequences of T rows.

    Attributes:
        main: int64 ``[B, T]``, main token of each row.
        codes: int64 ``[B, T, books]``, 0 where the row is text.
        audio: bool ``[B, T]``, whether the row is audio.
        next_main, next_codes, next_audio: the same one row later, never corrupted.
        target: bool ``[B, T]``, whether the label is learned: audio and the end of a turn.
        text_at: bool ``[B, T, T]``, the rows of text spoken in the label's frame; all false where
            alignment is not taught.
    """

    main: Tensor
    codes: Tensor
    audio: Tensor
    next_main: Tensor
    next_codes: Tensor
    next_audio: Tensor
    target: Tensor
    text_at: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


class Losses(NamedTuple):
    """Mean losses of a batch, in nats: each codebook, alignment, and expert balance (at best 1)."""

    books: tuple[Tensor, ...]
    alignment: Tensor
    balance: Tensor


class LanguageModel(nn.Module):
    """Backbone and tower of one checkpoint config."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        back, tower = config.backbone, config.tower
        dim = back.hidden_size
        self.embed_tokens = nn.Embedding(back.vocab_size, dim)
        self.layers = nn.ModuleList(BackboneLayer(back, i) for i in range(back.layers))
        self.norm = Norm(dim, back.norm_eps)
        self.lm_head = linear(dim, back.vocab_size)
        self.codebook_embeddings = nn.Embedding(tower.num_codebooks * tower.codebook_size, dim)
        self.shared = nn.ModuleList(
            TowerLayer(tower, "semantic_embedding") for _ in range(tower.shared_layers)
        )
        self.residual = nn.ModuleList(
            TowerLayer(tower, "codebook_embedding") for _ in range(tower.num_codebooks - 1)
        )
        self.heads = nn.ModuleList(
            linear(dim, tower.codebook_size) for _ in range(tower.num_codebooks - 1)
        )
        self._initialise()

    def _initialise(self) -> None:
        for name, weight in self.named_parameters():
            if "embed" in name:
                nn.init.normal_(weight, std=0.5)
            elif weight.dim() == 2:
                std = 0.7 / math.sqrt(weight.shape[1])
                small = any(part in name for part in _SMALL_OUTPUTS)
                nn.init.normal_(weight, std=std * (0.4 if small else 1.0))
            elif "conv1d" in name:
                nn.init.normal_(weight, std=0.1)
                weight.data[..., -1] += 0.7

    def _codes(self, codes: Tensor, first: int, last: int) -> Tensor:
        """Sum of the embeddings of codebooks ``first .. last - 1``."""
        size = self.config.tower.codebook_size
        books = torch.arange(first, last, device=codes.device) * size
        table: Tensor = self.codebook_embeddings(codes[..., first:last] + books)
        return table.sum(-2)

    def backbone(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """Final-norm output, the aligning head's query and key, mean balance of the experts."""
        back = self.config.backbone
        known = self.config.tower.backbone_codebooks  # codes that the backbone sees
        x = self.embed_tokens(batch.main)
        if known:
            spoken = (x + self._codes(batch.codes, 1, 1 + known)) * (1 + known) ** -0.5
            x = torch.where(batch.audio[..., None], spoken, x)
        shape = back.attention
        cos, sin = rope(x.shape[1], shape.rotary_dim, shape.rope_base, x.device)
        first: tuple[Tensor, Tensor] | None = None
        balances = []
        for layer in cast(list[BackboneLayer], list(self.layers)):
            normed = layer.input_layernorm(x)
            if layer.full:
                mixed, query, key = layer.self_attn(normed, cos, sin)
                first = first or (query, key)
            else:
                mixed = layer.linear_attn(normed)
            x = x + mixed
            added, balance = layer.mlp(layer.post_attention_layernorm(x))
            x = x + added
            balances.append(balance)
        assert first is not None
        return self.norm(x), first, torch.stack(balances).mean()

    def tower(self, hidden: Tensor, batch: Batch) -> list[Tensor]:
        """Hidden rows that codebooks 1, 2, ... are read from, each ``[B, T, dim]``."""
        tower = self.config.tower
        first = 1 + tower.backbone_codebooks
        extra = self._codes(batch.codes, first, tower.num_codebooks) * batch.audio[..., None]
        shape = tower.attention
        angles = rope(hidden.shape[1], shape.rotary_dim, shape.rope_base, hidden.device)
        x = hidden
        for number, layer in enumerate(self.shared):
            code = batch.next_codes[..., 0]
            x = layer(x, code, batch.next_audio, angles, extra if number == 0 else None)
        found = []
        for book, layer in enumerate(self.residual):
            x = layer(x, batch.next_codes[..., book], batch.next_audio, angles)
            found.append(x)
        return found

    def main_logits(self, hidden: Tensor) -> Tensor:
        """Scores of the semantic codes, then of the end of the turn: ``[..., 513]``."""
        start, end = self.config.semantic_start, self.config.semantic_end
        rows = [self.lm_head.weight[start : end + 1], self.lm_head.weight[self.config.eos :][:1]]
        return F.linear(hidden, torch.cat(rows))

    def losses(self, batch: Batch) -> Losses:
        """Cross entropies of the learned labels."""
        hidden, (query, key), balance = self.backbone(batch)
        size = self.config.semantic_end + 1 - self.config.semantic_start
        wanted = torch.where(batch.next_audio, batch.next_codes[..., 0], size)
        logits = self.main_logits(hidden[batch.target])
        books = [F.cross_entropy(logits.float(), wanted[batch.target])]
        audio = batch.next_audio & batch.target
        for book, x in enumerate(self.tower(hidden, batch)):
            logits = self.heads[book](x[audio])
            books.append(F.cross_entropy(logits.float(), batch.next_codes[audio][:, book + 1]))
        return Losses(tuple(books), _alignment(query, key, batch), balance)


def _alignment(query: Tensor, key: Tensor, batch: Batch) -> Tensor:
    """How little of the aligning head's attention lies on the text being spoken."""
    taught = batch.text_at.any(-1) & batch.next_audio
    if not bool(taught.any()):
        return query.new_zeros(())
    scores = (query.float() @ key.float().transpose(1, 2)) * query.shape[-1] ** -0.5
    future = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
    scores = scores.masked_fill(future, -1e4)[taught]
    spoken = scores.masked_fill(~batch.text_at[taught], -1e4)
    missing = torch.logsumexp(scores, -1) - torch.logsumexp(spoken, -1)
    return missing.clamp(max=12).mean()
