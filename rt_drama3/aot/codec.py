"""The codec's decode compiled ahead of time for a CPU, one package per group size.

A single frame is little work spread over several hundred operators; compiled, it costs about half.
The results agree with the eager form to float rounding, so a stream may change over at any group.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rt_drama3.aot.packages import Run, compile_package, load_package, package_path
from rt_drama3.codec import Codec, CodecState
from rt_drama3.config import CodecConfig

_SOURCES = ("aot/codec.py", "aot/packages.py", "codec")


def codec_package(config: CodecConfig, dtype: torch.dtype, frames: int) -> Path:
    """Where the package for groups of ``frames`` frames of one stream is, or would be, kept."""
    facts = {"config": dataclasses.asdict(config), "dtype": str(dtype)}
    return package_path(f"codec-{frames}", facts, _SOURCES)


class _Exportable(nn.Module):
    """``Codec.forward`` with weights and memory as inputs."""

    def __init__(self, codec: Codec, names: list[str], memory: list[str]) -> None:
        super().__init__()
        self._names, self._memory = names, memory
        self._codec = [codec]  # in a list, so that its weights are not this module's

    def forward(self, weights: list[Tensor], memory: list[Tensor], codes: Tensor) -> Tensor:
        named = dict(zip(self._names, weights, strict=True))
        state = dict(zip(self._memory, memory, strict=True))
        pcm: Tensor = functional_call(self._codec[0], named, (codes, state))
        return pcm


def _weights(codec: Codec) -> dict[str, Tensor]:
    """The tensors that decoding reads, by name."""
    decode_half = Codec(codec.config, encoder=False, device="meta")
    names = [name for name, _ in (*decode_half.named_parameters(), *decode_half.named_buffers())]
    every = dict((*codec.named_parameters(), *codec.named_buffers()))
    return {name: every[name] for name in names}


def build_codec(config: CodecConfig, dtype: torch.dtype, frames: int, path: Path) -> None:
    """Compiles decoding in groups of ``frames`` frames of one stream."""
    codec = Codec(config, encoder=False, device="cpu", dtype=dtype)
    state = codec.new_state(1).tensors
    codes = torch.zeros(1, config.num_codebooks, frames, dtype=torch.int64)
    weights = _weights(codec)
    for parameter in codec.parameters():
        parameter.data.zero_()
    module = _Exportable(codec, list(weights), list(state))
    inputs = (list(weights.values()), list(state.values()), codes)
    compile_package(module, inputs, None, path)


class CompiledCodec:
    """Decodes groups of some sizes through packages, the others eagerly.

    Args:
        codec: whose weights are used.
        sizes: group sizes to load; more may be added.

    Raises:
        RuntimeError: a package is missing or does not load.
    """

    def __init__(self, codec: Codec, sizes: tuple[int, ...]) -> None:
        self._codec = codec
        self._weights = list(_weights(codec).values())
        self._packages: dict[int, Run] = {}
        for size in sizes:
            self.add(size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Group sizes that run compiled, ascending."""
        return tuple(sorted(self._packages))

    def add(self, size: int) -> None:
        """Loads the package of a group size."""
        path = codec_package(self._codec.config, self._codec.decoder.dtype, size)
        self._packages[size] = load_package(path)

    def decode_step(self, codes: Tensor, state: CodecState) -> Tensor:
        """The next frames of one stream; see ``Codec.decode_step``."""
        run = self._packages.get(codes.shape[2])
        if run is None or codes.shape[0] != 1:
            return self._codec.decode_step(codes, state)
        return run([*self._weights, *state.tensors.values(), codes.contiguous()])[0]
