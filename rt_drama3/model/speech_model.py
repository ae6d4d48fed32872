"""SpeechModel: backbone, tower, embeddings and head of one checkpoint, and how a prompt is read."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rt_drama3.config import ModelConfig
from rt_drama3.model.backbone import Backbone, LayerHook
from rt_drama3.model.ops import lookup, parameter, rope_table
from rt_drama3.model.state import RAS_WINDOW, StreamState
from rt_drama3.model.tower import Tower

PREFILL_CHUNK = 256  # rows per pass: bounds the working memory of a long prompt


class SpeechModel(nn.Module):
    """Everything that turns rows into codes.

    Parameters besides ``backbone`` and ``tower``: ``embed [vocab, dim]``,
    ``codebook_embed [num_codebooks * codes, dim]``, ``head [codes + 1, dim]`` (the semantic band,
    then eos: only those can be sampled). Where a device multiplies with matrices as a checkpoint
    stores them, a ``Weight`` or ``Rows`` takes the place of a parameter.

    Args:
        config: sizes.
        device: device of the (uninitialised) parameters; "meta" allocates none.
        dtype: dtype of matrices and activations.
        fp8: make expert matrices as FP8 weights; the loader puts others in their place, too.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device | str = "meta",
        dtype: torch.dtype = torch.float32,
        fp8: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        back, tower = config.backbone, config.tower
        self.embed = parameter(back.vocab_size, back.hidden_size, device=device, dtype=dtype)
        self.codebook_embed = parameter(
            tower.num_codebooks * tower.codebook_size, tower.dim, device=device, dtype=dtype
        )
        self.head = parameter(config.candidates, back.hidden_size, device=device, dtype=dtype)
        self.backbone = Backbone(back, device, dtype, fp8)
        self.tower = Tower(tower, device, dtype)
        self._ropes: tuple[Tensor, Tensor] | None = None

    @property
    def device(self) -> torch.device:
        return self.head.device

    def ropes(self, context: int) -> tuple[Tensor, Tensor]:
        """Rotary tables ``[2, >= context, rotary/2]`` of backbone and tower, made once."""
        if self._ropes is None or self._ropes[0].shape[1] < context:
            back, tower = self.config.backbone, self.config.tower
            self._ropes = (
                rope_table(context, back.rotary_dim, back.rope_base, self.device),
                rope_table(context, tower.rotary_dim, tower.rope_base, self.device),
            )
        return self._ropes

    def is_audio(self, main: Tensor) -> Tensor:
        """Whether main tokens lie in the semantic band."""
        return (main >= self.config.semantic_start) & (main <= self.config.semantic_end)

    def embed_rows(self, main: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Embeds rows for the backbone and for the tower (docs/model.md, 3).

        Args:
            main: int64 ``[N]``.
            codes: int64 ``[N, num_codebooks]`` inside the codebook.

        Returns:
            The backbone input ``[N, dim]`` and U ``[N, dim]``, the sum of the codebooks that the
            backbone does not see (zero on text rows).
        """
        tower = self.config.tower
        audio = self.is_audio(main).unsqueeze(-1)
        offsets = torch.arange(tower.num_codebooks, device=codes.device) * tower.codebook_size
        split = tower.backbone_codebooks + 1
        # Codebook 0 is never summed: the main token already carries it.
        parts = lookup(self.codebook_embed, (codes + offsets)[:, 1:], self.dtype).float()
        seen, unseen = parts[:, : split - 1].sum(1), parts[:, split - 1 :].sum(1)
        token = lookup(self.embed, main, self.dtype)
        mixed = (token.float() + seen) * split**-0.5
        return (
            torch.where(audio, mixed.to(token.dtype), token),
            (unseen * audio).to(token.dtype),
        )

    def prefill(
        self,
        rows: Tensor,
        state: StreamState,
        slot: int,
        start: int = 0,
        chunk: int = PREFILL_CHUNK,
        hook: LayerHook | None = None,
    ) -> None:
        """Prefills prompt rows into a slot; call again with the next ``start`` to continue.

        The tower needs row p + 1 to process row p, so it lags one row: the latest row stays in
        ``state.hidden`` and is finished by the next call or by the first generated frame.

        Args:
            rows: int64 ``[T, 1 + num_codebooks]``, T >= 1.
            state: its slot must hold exactly ``start`` rows (0 after ``reset``).
            slot: the stream.
            start: position of ``rows[0]``.
            chunk: rows per pass.
            hook: gets, and may change, the output of every backbone layer.
        """
        for first in range(0, rows.shape[0], chunk):
            self._prefill_chunk(rows[first : first + chunk], state, slot, start + first, hook)
        end = start + rows.shape[0]
        state.position[slot] = end
        window = torch.cat((state.recent[slot], rows[-RAS_WINDOW:, 0]))
        state.recent[slot] = window[-RAS_WINDOW:]

    def _prefill_chunk(
        self, rows: Tensor, state: StreamState, slot: int, start: int, hook: LayerHook | None
    ) -> None:
        end = start + rows.shape[0]
        back_rope, tower_rope = self.ropes(state.context)
        main, codes = rows[:, 0], rows[:, 1:]
        x, extra = self.embed_rows(main, codes)
        hidden = self.backbone.block(x, back_rope[:, start:end], state, slot, start, hook)
        # Tower rows start-1 .. end-2, labelled by rows start .. end-1.
        lagging = torch.cat((state.hidden[slot][None], hidden[:-1]))
        lagging_extra = torch.cat((state.extra[slot][None], extra[:-1]))
        labels, labelled, first = codes, self.is_audio(main).unsqueeze(-1), start - 1
        if start == 0:
            lagging, lagging_extra = lagging[1:], lagging_extra[1:]
            labels, labelled, first = labels[1:], labelled[1:], 0
        if lagging.shape[0]:
            self.tower.block(
                lagging,
                lagging_extra,
                labels,
                labelled,
                tower_rope[:, first : end - 1],
                state,
                slot,
                first,
            )
        state.hidden[slot] = hidden[-1]
        state.extra[slot] = extra[-1]
