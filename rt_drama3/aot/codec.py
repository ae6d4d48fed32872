"""The codec's decode compiled ahead of time for a CPU, one package per batch size in frames.

A single frame is little work spread over several hundred operators; compiled, it costs about half.
The results agree with the eager form to float rounding, so a stream may switch at any batch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn

from rt_drama3.aot.packages import Packages, compile_package, package_path
from rt_drama3.codec import Codec, CodecState
from rt_drama3.config import CodecConfig

_SOURCES = ("aot/codec.py", "aot/packages.py", "codec")


def codec_package(config: CodecConfig, dtype: torch.dtype, frames: int) -> Path:
    """Returns the path of the package for batches of ``frames`` frames of one stream."""
    facts = {"config": dataclasses.asdict(config), "dtype": str(dtype)}
    return package_path(f"codec-{frames}", facts, _SOURCES)


class _Unit(nn.Module):
    """``Codec.forward`` with a flat list as memory."""

    def __init__(self, codec: Codec, memory: list[str]) -> None:
        super().__init__()
        self.codec, self._memory = codec, memory

    def forward(self, memory: list[Tensor], codes: Tensor) -> Tensor:
        pcm: Tensor = self.codec(codes, dict(zip(self._memory, memory, strict=True)))
        return pcm


def _weights(codec: Codec) -> dict[str, Tensor]:
    """The tensors that decoding reads, by name."""
    decode_half = Codec(codec.config, encoder=False, device="meta")
    names = [name for name, _ in (*decode_half.named_parameters(), *decode_half.named_buffers())]
    every = dict((*codec.named_parameters(), *codec.named_buffers()))
    return {f"codec.{name}": every[name] for name in names}


def build_codec(config: CodecConfig, dtype: torch.dtype, frames: int, path: Path) -> None:
    """Compiles decoding for one stream in batches of ``frames`` frames."""
    codec = Codec(config, encoder=False, device="cpu", dtype=dtype)
    for parameter in codec.parameters():
        parameter.data.zero_()
    memory = codec.new_state(1).tensors
    codes = torch.zeros(1, config.num_codebooks, frames, dtype=torch.int64)
    unit, inputs = _Unit(codec, list(memory)), (list(memory.values()), codes)
    compile_package(unit, _weights(codec), inputs, None, path)


class CompiledCodec(Packages):
    """Decodes batches of some sizes through packages, and the others eagerly.

    Args:
        codec: owns the weights.
        sizes: batch sizes to load, in frames; more may be added.

    Raises:
        RuntimeError: a package is missing or does not load.
    """

    def __init__(self, codec: Codec, sizes: tuple[int, ...]) -> None:
        self._codec = codec
        self._weights = list(_weights(codec).values())
        dtype = codec.decoder.dtype
        super().__init__(lambda frames: codec_package(codec.config, dtype, frames), sizes)

    def decode_step(self, codes: Tensor, state: CodecState) -> Tensor:
        """Decodes the next frames of one stream; see ``Codec.decode_step``."""
        run = self._packages.get(codes.shape[2])
        if run is None or codes.shape[0] != 1:
            return self._codec.decode_step(codes, state)
        return run([*self._weights, *state.tensors.values(), codes.contiguous()])[0]
