"""Direction: what directs one stream inside the engine, and the earlier takes that it follows.

A guided piece of text is read twice, with its directions and without, into two slots side by side.
A take that came as text alone is spoken first, by a stream of its own that nobody hears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from rt_drama3.errors import RequestError
from rt_drama3.model import LayerHook
from rt_drama3.scenes.steering import SteeringVectors
from rt_drama3.scenes.takes import PreviousTake
from rt_drama3.text.prompt import Prompt

if TYPE_CHECKING:
    from rt_drama3.engine.stream import EngineStream

Codes = npt.NDArray[np.int64]
NOWHERE = (0, 0)


@dataclass(eq=False)
class Direction:
    """How a stream is directed.

    Attributes:
        guidance: strength, 0 is off.
        push: what is added while a text is read.
        takes: earlier takes behind the one that is spoken first, if any.
        first: the stream that speaks a take which came as text alone; None once it is done.
        inner: this stream is such a one itself.
        turns: earlier takes as (text, codes), as far as they are known.
        settled: all of them are.
        pair: it holds two slots.
        twin: undirected prompt of the present piece, int64 ``[T, 1 + num_codebooks]`` on the
            device; None where the piece is not guided.
        text_rows, twin_text_rows: where the text stands in both prompts, first to before last.
        twin_read: rows of the twin read so far, the common ones among them.
    """

    guidance: float = 0.0
    push: SteeringVectors | None = None
    takes: Sequence[PreviousTake] = ()
    first: EngineStream | None = None
    inner: bool = False
    turns: list[tuple[str, Codes]] = field(default_factory=list)
    settled: bool = False
    pair: bool = False
    twin: torch.Tensor | None = None
    text_rows: tuple[int, int] = NOWHERE
    twin_text_rows: tuple[int, int] = NOWHERE
    twin_read: int = 0

    @property
    def width(self) -> int:
        """Slots that the present piece needs."""
        return 1 if self.twin is None else 2

    @property
    def fork(self) -> int:
        """Rows at the beginning that both prompts have in common; 0 without a twin."""
        return 0 if self.twin is None else self.text_rows[0]

    @property
    def twin_unread(self) -> int:
        """Rows of the twin that are still to be read."""
        return 0 if self.twin is None else len(self.twin) - self.twin_read

    def begin(self, prompt: Prompt, twin: Prompt | None, device: torch.device) -> int:
        """Takes the prompts of the next piece; returns the rows of the longer one."""
        self.text_rows, self.twin_read = prompt.text_rows, 0
        self.twin = None if twin is None else torch.from_numpy(twin.rows).to(device)
        self.twin_text_rows = NOWHERE if twin is None else twin.text_rows
        return max(len(prompt.rows), 0 if twin is None else len(twin.rows))

    def watch(self, twin: bool = False) -> LayerHook | None:
        """What looks on while one of the prompts is read."""
        if self.push is None:
            return None
        return self.push.hook(self.twin_text_rows if twin else self.text_rows)

    def adopt(self) -> None:
        """Takes over what the first stream, which has ended, spoke and knew.

        Raises:
            RequestError: it spoke nothing.
            RtDrama3Error: what it failed of.
        """
        first, self.first = self.first, None
        assert first is not None
        if first.failure is not None:
            raise first.failure
        text = first.request.text
        if not first.spoken:
            raise RequestError(
                f"the earlier take {text[:60]!r} has nothing to speak; give one with words."
            )
        codes = np.concatenate([codes for _, codes in first.spoken], axis=1)
        self.turns = [*first.direction.turns, (text, codes)]
