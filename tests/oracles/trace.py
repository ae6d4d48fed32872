"""What a model does for one prompt, written down so that two implementations can be compared.

``Trace`` is the record, ``our_trace`` makes ours: the model runs as it is, and what flows past is
copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rt_drama3 import graph_step
from rt_drama3.config import SamplingConfig
from rt_drama3.graph_step import FrameStep
from rt_drama3.model import SpeechModel, StreamState


@dataclass(frozen=True)
class Trace:
    """What a model did for one prompt, raw: no frame is held back or dropped.

    Attributes:
        hidden: float32 ``[T, dim]``, final-norm output of every prompt row.
        state: caches after the prompt, by name, in the shapes of ``StreamState``.
        main: int64 ``[frames]``; eos, where it was reached, comes last.
        codes: int64 ``[frames, num_codebooks]``.
        main_logits: float32 ``[frames, candidates]``.
        head_logits: float32 ``[frames, num_codebooks - 1, codes]``.
    """

    hidden: Tensor
    state: dict[str, Tensor]
    main: Tensor
    codes: Tensor
    main_logits: Tensor
    head_logits: Tensor

    @property
    def margin(self) -> float:
        """The smallest distance between the best two logits of any draw."""
        pairs = [t.topk(2, -1).values for t in (self.main_logits, self.head_logits)]
        return min(float((pair[..., 0] - pair[..., 1]).min()) for pair in pairs)


def our_trace(
    model: SpeechModel,
    rows: npt.NDArray[np.int64],
    frames: int,
    sampling: SamplingConfig,
    seed: int = 0,
) -> Trace:
    """Reads a prompt ``[T, 1 + num_codebooks]`` and makes frames until eos or ``frames``."""
    step = FrameStep(model, 1, len(rows) + frames, frames)
    step.state.reset(0)
    with torch.inference_mode(), _recorded_hidden(model) as hidden:
        model.prefill(torch.from_numpy(rows), step.state, 0)
    state = _named_state(model, step.state, len(rows))
    step.configure(0, sampling, seed)
    main, codes = [], []
    with _recorded_logits() as logits:
        for frame in range(frames):
            step.run(1, step.length_for(len(rows) + frame + 1))
            main.append(int(step.output.main[0]))
            codes.append(step.output.codes[0].clone())
            if main[-1] == model.config.eos:
                break
    per_frame = model.config.num_codebooks
    drawn = [logits[i : i + per_frame] for i in range(0, len(logits), per_frame)]
    return Trace(
        hidden=torch.cat(hidden),
        state=state,
        main=torch.tensor(main),
        codes=torch.stack(codes),
        main_logits=torch.stack([f[0] for f in drawn]),
        head_logits=torch.stack([torch.stack(f[1:]) for f in drawn]),
    )


def _named_state(model: SpeechModel, state: StreamState, rows: int) -> dict[str, Tensor]:
    """Copies of slot 0 after ``rows`` rows; the tower lags one row."""
    named: dict[str, Tensor] = {}
    full = linear = 0
    for i, kind in enumerate(model.config.backbone.layer_types):
        if kind == "full_attention":
            named[f"backbone {i} keys"] = state.keys[full][0, :, :rows]
            named[f"backbone {i} values"] = state.values[full][0, :, :rows]
            full += 1
        else:
            named[f"backbone {i} tail"] = state.tails[linear][0]
            named[f"backbone {i} matrix"] = state.matrices[linear][0]
            linear += 1
    for i, (keys, values) in enumerate(zip(state.tower_keys, state.tower_values, strict=True)):
        named[f"tower {i} keys"] = keys[0, :, : rows - 1]
        named[f"tower {i} values"] = values[0, :, : rows - 1]
    return {name: tensor.clone() for name, tensor in named.items()}


@contextmanager
def _recorded_hidden(model: SpeechModel) -> Iterator[list[Tensor]]:
    """Every output of the backbone's prefill, in order."""
    parts: list[Tensor] = []
    plain = model.backbone.block

    def record(*args: Any) -> Tensor:
        parts.append(plain(*args))
        return parts[-1]

    with mock.patch.object(model.backbone, "block", record):
        yield parts


@contextmanager
def _recorded_logits() -> Iterator[list[Tensor]]:
    """Logits of every draw, in order: main and heads of one frame, then the next frame."""
    logits: list[Tensor] = []

    def recorder(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def record(values: Tensor, *args: Any) -> Tensor:
            logits.append(values[0].clone())
            return plain(values, *args)

        return record

    with (
        mock.patch.object(graph_step, "draw_main", recorder(graph_step.draw_main)),
        mock.patch.object(graph_step, "draw_head", recorder(graph_step.draw_head)),
    ):
        yield logits
