"""Checkpoint folder -> modules on a device, tensor by tensor.

Peak host memory is what stays resident plus one tensor (or one chunk of a large one): parameters
are allocated on their device and filled region by region; each tensor is read in file order,
checked, converted and dropped. No shard is ever read as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from rt_drama3 import codec as codecs
from rt_drama3.checkpoint.codec_files import read_codec
from rt_drama3.checkpoint.conformance import check_numbers, compare
from rt_drama3.checkpoint.files import CONFIG, check_codec_fits
from rt_drama3.checkpoint.inventory import FP8_BLOCK, HEAD, TensorSpec, inventory
from rt_drama3.checkpoint.opened import Checkpoint, opened
from rt_drama3.checkpoint.placement import Placement, Source, plan
from rt_drama3.checkpoint.tensors import TensorReader
from rt_drama3.checkpoint.views import View
from rt_drama3.codec import Codec
from rt_drama3.config import ModelConfig
from rt_drama3.errors import CheckpointError
from rt_drama3.model import SpeechModel

Progress = Callable[[int, int], None]

CHUNK_BYTES = 32 << 20  # bytes per read of a tensor that is copied row by row
_FP8_CAPABILITY = (8, 9)  # the first CUDA devices with FP8 arithmetic


def read_config(place: Path | Checkpoint) -> ModelConfig:
    """Reads ``config.json``, and from the weights' headers how many experts each layer has.

    Raises:
        CheckpointError: a value is not supported, or a weight file is damaged.
    """
    return opened(place).config


def load_model(
    place: Path | Checkpoint,
    config: ModelConfig,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: Progress | None = None,
    *,
    fp8: bool | None = None,
) -> SpeechModel:
    """Loads the language model.

    Args:
        place: an open checkpoint, or its folder or file.
        config: from ``read_config`` of it.
        device: device of the parameters.
        dtype: dtype of matrices and activations; norms and gates are float32.
        progress: called with bytes done and bytes in all.
        fp8: keep FP8 expert matrices as they are; None keeps them where the device has FP8
            arithmetic. Otherwise they are dequantised here.

    Raises:
        CheckpointError: naming the tensor that is missing, unexpected, of the wrong shape or dtype,
            not finite, or cannot be read.
    """
    device = torch.device(device)
    checkpoint = opened(place)
    views = checkpoint.views
    specs = inventory(config)
    compare(views, specs).require_none(checkpoint.path, checkpoint.advice)
    keep = fp8_fits(config) and (has_fp8(device) if fp8 is None else fp8)
    model = SpeechModel(config, device=device, dtype=dtype, fp8=keep)
    trimmed = views[HEAD].shape != specs[HEAD].shape
    steps = plan(config, fp8=keep, trimmed_head=trimmed)
    with TensorReader(checkpoint.directory) as reader, torch.no_grad():
        _Filler(model, reader, views, specs, progress).fill(steps)
    return model.eval()


def fp8_fits(config: ModelConfig) -> bool:
    """Whether expert matrices can stay in FP8: stored that way, and made of whole blocks."""
    sizes = (config.backbone.hidden_size, config.backbone.expert_ffn)
    return config.fp8_experts and not any(size % FP8_BLOCK for size in sizes)


def has_fp8(device: torch.device) -> bool:
    """Whether a device has FP8 arithmetic."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY


def load_codec(place: Path | Checkpoint, device: torch.device | str, dtype: torch.dtype) -> Codec:
    """Loads the codec, with its encode half if it has one.

    Raises:
        CheckpointError: the file is missing or damaged, holds other tensors than
            ``codec_config.json`` (or the official sizes) requires, or does not fit the model.
    """
    checkpoint = opened(place)
    codec = read_codec(checkpoint)
    if CONFIG in checkpoint.files:
        check_codec_fits(checkpoint.declared, codec.config)
    return codecs.load_codec(codec.config, codec.state, device=device, dtype=dtype)


class _Filler:
    """Carries out placements and counts the bytes."""

    def __init__(
        self,
        model: SpeechModel,
        reader: TensorReader,
        views: Mapping[str, View],
        specs: Mapping[str, TensorSpec],
        progress: Progress | None,
    ) -> None:
        self._parameters = dict(model.named_parameters())
        self._reader = reader
        self._views, self._specs = views, specs
        self._progress = progress
        # Changes run where the parameters are, if that is a CUDA device: others lack float64.
        self._work = model.device if model.device.type == "cuda" else torch.device("cpu")
        self._done = self._total = 0.0

    def fill(self, steps: list[Placement]) -> None:
        steps = sorted(steps, key=lambda step: self._views[step.sources[0].name].place)
        self._total = sum(self._nbytes(source) for step in steps for source in step.sources)
        for step in steps:
            region = self._parameters[step.target][step.index]
            if step.change is None:
                (source,) = step.sources
                for rows, chunk in self._chunks(source):
                    _copy(region[rows], chunk, source.name)
                continue
            tensors = [self._chunk(source, source.rows) for source in step.sources]
            changed = step.change(tensors, region.dtype)
            _copy(region, changed, step.sources[0].name)

    def _nbytes(self, source: Source) -> float:
        """Stored bytes of what a source takes."""
        view = self._views[source.name]
        shape = list(view.shape)
        for dim, part in enumerate((source.rows, source.columns)):
            if part is not None:
                shape[dim] = part.stop - part.start
        return math.prod(shape) * (view.nbytes / view.elements)

    def _chunks(self, source: Source) -> Iterator[tuple[slice, Tensor]]:
        """A source in chunks of up to ``CHUNK_BYTES``, each with its rows in the region."""
        view = self._views[source.name]
        rows = source.rows or slice(0, view.shape[0])
        step = rows.stop - rows.start
        if view.divisible:
            size = view.elements * 4 if view.quantised else view.nbytes
            step = max(1, CHUNK_BYTES * view.shape[0] // max(size, 1))
        for start in range(rows.start, rows.stop, step):
            stop = min(start + step, rows.stop)
            chunk = self._chunk(source, slice(start, stop))
            yield slice(start - rows.start, stop - rows.start), chunk

    def _chunk(self, source: Source, rows: slice | None) -> Tensor:
        view = self._views[source.name]
        chunk = view.read(self._reader, rows, self._work)
        if source.columns is not None:
            chunk = chunk[:, source.columns]
        check_numbers(view.name, chunk, self._specs[source.name].kind)
        self._done += chunk.numel() * (view.nbytes / view.elements)
        if self._progress is not None:
            self._progress(round(self._done), round(self._total))
        return chunk


def _copy(region: Tensor, values: Tensor, name: str) -> None:
    """Fills a region; refuses values out of range of its dtype."""
    assert region.shape == values.shape, name  # copy_ would broadcast
    region.copy_(values)
    if region.dtype == torch.float16 and not bool(region.isfinite().all()):
        raise CheckpointError(
            f"{name} holds values out of range of float16; load with dtype bfloat16 or float32."
        )
