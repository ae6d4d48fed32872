"""What streams carry from row to row: static tensors, one slot per stream, and snapshots of a slot.

Everything is allocated once and updated in place, so that a captured step can read and write it at
fixed addresses. Slots are the leading dimension; a step over B streams works on ``view(0, B)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from rt_drama3.config import ModelConfig

RAS_WINDOW = 16  # latest main tokens that repetition-aware sampling compares with


@dataclass
class StreamState:
    """Caches and row state of ``slots`` streams.

    Attributes:
        keys, values: per full-attention layer ``[slots, kv_heads, context, head_dim]``.
        tower_keys, tower_values: the same per tower layer.
        tails: per DeltaNet layer ``[slots, conv_dim, kernel - 1]``.
        matrices: per DeltaNet layer float32 ``[slots, value_heads, key_dim, value_dim]``.
        hidden: ``[slots, dim]``, final-norm output of the latest row.
        extra: ``[slots, dim]``, U of the latest row (docs/model.md, 3).
        position: int64 ``[slots]``, rows in the backbone caches; the tower has one fewer.
        recent: int64 ``[slots, 16]``, latest main tokens, oldest first, -1 where none.
        active: bool ``[slots]``, whether a step advances the slot; the others (free, being
            prefilled, paused) are computed along in the batch but keep their state.
    """

    keys: list[Tensor]
    values: list[Tensor]
    tower_keys: list[Tensor]
    tower_values: list[Tensor]
    tails: list[Tensor]
    matrices: list[Tensor]
    hidden: Tensor
    extra: Tensor
    position: Tensor
    recent: Tensor
    active: Tensor

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        slots: int,
        context: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> StreamState:
        """Allocates zeroed state for ``slots`` streams of up to ``context`` rows each."""
        back, tower = config.backbone, config.tower

        def zeros(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, device=device, dtype=kind)

        def caches(layers: int) -> list[Tensor]:
            shape = (slots, back.kv_heads, context, back.head_dim)
            return [zeros(*shape) for _ in range(layers)]

        linear = sum(kind == "linear_attention" for kind in back.layer_types)
        full = back.layers - linear
        matrix = (slots, back.linear_value_heads, back.linear_key_dim, back.linear_value_dim)
        return cls(
            keys=caches(full),
            values=caches(full),
            tower_keys=caches(tower.layers),
            tower_values=caches(tower.layers),
            tails=[zeros(slots, back.linear_conv_dim, back.conv_kernel - 1) for _ in range(linear)],
            matrices=[zeros(*matrix, kind=torch.float32) for _ in range(linear)],
            hidden=zeros(slots, back.hidden_size),
            extra=zeros(slots, back.hidden_size),
            position=zeros(slots, kind=torch.int64),
            recent=torch.full((slots, RAS_WINDOW), -1, device=device, dtype=torch.int64),
            active=zeros(slots, kind=torch.bool),
        )

    @property
    def context(self) -> int:
        """Rows that a slot can hold."""
        return self.tower_keys[0].shape[2]

    @property
    def slots(self) -> int:
        return self.position.shape[0]

    def _cached(self) -> Iterator[Tensor]:
        """Tensors with a row (context) dimension."""
        for group in (self.keys, self.values, self.tower_keys, self.tower_values):
            yield from group

    def _whole(self) -> Iterator[Tensor]:
        """Tensors without one."""
        yield from self.tails
        yield from self.matrices
        yield from (self.hidden, self.extra, self.position, self.recent, self.active)

    def tensors(self) -> list[Tensor]:
        """Every tensor, in a fixed order."""
        return [*self._cached(), *self._whole()]

    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def view(self, start: int, end: int) -> StreamState:
        """Returns a view of slots ``start .. end - 1``; shares memory."""
        parts: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            parts[field.name] = (
                [t[start:end] for t in value] if isinstance(value, list) else value[start:end]
            )
        return StreamState(**parts)

    def reset(self, slot: int) -> None:
        """Resets a slot. Cached rows stay but are masked until overwritten."""
        for tensor in self._whole():
            tensor[slot].zero_()
        self.recent[slot].fill_(-1)

    def scrub(self, slot: int) -> None:
        """Clears a slot whose values are not finite: a NaN in a masked row would still spread."""
        self.reset(slot)
        for tensor in self._cached():
            tensor[slot].zero_()

    def move(self, source: int, target: int, rows: int) -> None:
        """Copies a stream of ``rows`` rows into another slot."""
        for tensor in self._cached():
            tensor[target, :, :rows] = tensor[source, :, :rows]
        for tensor in self._whole():
            tensor[target] = tensor[source]

    def snapshot(self, slot: int, rows: int) -> Snapshot:
        """Copies the state of a stream that holds ``rows`` rows."""
        return Snapshot(
            rows,
            [t[slot, :, :rows].clone() for t in self._cached()],
            [t[slot].clone() for t in self._whole()],
        )

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Puts a snapshot of the same model into a slot."""
        for tensor, saved in zip(self._cached(), snapshot.cached, strict=True):
            tensor[slot, :, : snapshot.rows] = saved
        for tensor, saved in zip(self._whole(), snapshot.whole, strict=True):
            tensor[slot] = saved


@dataclass(frozen=True)
class Snapshot:
    """One stream's state after its first ``rows`` rows."""

    rows: int
    cached: list[Tensor]
    whole: list[Tensor]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.cached, *self.whole))
