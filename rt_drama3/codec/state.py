"""Explicit streaming state: what the codec keeps of the past of each stream.

Modules with a past (convolutions, window attention) keep no state of their own. They read it from
a dict of tensors that is passed along with the signal, and update those tensors in place. Shapes
never change, so a step can be compiled, exported, or captured in a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = dict[str, Tensor]
"""Name of a stateful module -> its memory; dimension 0 of every tensor counts the streams."""


class StreamModule(nn.Module):
    """A module with one tensor of memory per stream, found in a ``State`` under ``key``."""

    key: str = ""

    def new_memory(self, batch: int) -> Tensor | None:
        """Returns the initial memory of ``batch`` streams, or None if nothing is kept."""
        raise NotImplementedError


def name_memories(root: nn.Module) -> None:
    """Gives every ``StreamModule`` under ``root`` its module path as the key of its memory."""
    for name, module in root.named_modules():
        if isinstance(module, StreamModule):
            module.key = name


def new_state(root: nn.Module, batch: int) -> State:
    """Returns initial memory for every ``StreamModule`` under ``root``."""
    state: State = {}
    for module in root.modules():
        if isinstance(module, StreamModule):
            memory = module.new_memory(batch)
            if memory is not None:
                state[module.key] = memory
    return state


class CodecState:
    """The decoder's memory of a batch of streams, each at its own position.

    Attributes:
        tensors: the memory by module path; zeros are the initial state. Dimension 0 is the
            stream. Tensors stay at the same address for the life of the object.
        batch: number of streams.
    """

    def __init__(self, tensors: State, batch: int) -> None:
        self.tensors = tensors
        self.batch = batch

    @torch.inference_mode()
    def reset(self, stream: int | None = None) -> None:
        """Resets one stream, or all."""
        for tensor in self.tensors.values():
            (tensor if stream is None else tensor[stream]).zero_()

    def clone(self) -> CodecState:
        """Returns an independent copy, to continue the same stream in two ways."""
        return CodecState({key: t.clone() for key, t in self.tensors.items()}, self.batch)

    def bytes(self) -> int:
        """Memory held, in bytes."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())
