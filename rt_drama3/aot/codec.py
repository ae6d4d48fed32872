"""The codec's decode compiled ahead of time for a CPU, one package per batch size in frames.

A single frame is little work spread over several hundred operators; compiled, it costs about half.
The results agree with the eager form to float rounding, and with one another as docs/engine.md says
of decode batches, so packages may be added while a stream is decoded.
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
    """Decodes through packages; a batch of another size is decoded in parts.

    Args:
        codec: owns the weights.
        sizes: batch sizes to load, in frames, 1 among them; more may be added.

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
        memory, frames, parts = list(state.tensors.values()), codes.shape[2], []
        start = 0
        while start < frames:
            size = max(size for size in self.sizes if size <= frames - start)
            part = codes[:, :, start : start + size].contiguous()
            parts.append(self._packages[size]([*self._weights, *memory, part])[0])
            start += size
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
