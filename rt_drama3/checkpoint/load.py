"""Checkpoint folder -> modules on a device, tensor by tensor.

Peak host memory is what stays resident plus one tensor (or one chunk of a large one): parameters
are allocated on their device and filled region by region; each tensor is read in file order,
checked, converted and dropped. No shard is ever read as a whole.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from rt_drama3 import codec as codecs
from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.conformance import check_numbers, compare
from rt_drama3.checkpoint.experts import official_entries, with_stored_experts
from rt_drama3.checkpoint.files import (
    CODEC,
    CONFIG,
    check_codec_fits,
    read_codec_config,
    read_json,
    require,
)
from rt_drama3.checkpoint.inventory import FP8_BLOCK, HEAD, TensorSpec, inventory
from rt_drama3.checkpoint.placement import Placement, Source, plan
from rt_drama3.checkpoint.tensors import TORCH_DTYPES, Entry, TensorReader, has_weights, scan
from rt_drama3.codec import Codec
from rt_drama3.config import ModelConfig
from rt_drama3.errors import CheckpointError
from rt_drama3.model import SpeechModel

Progress = Callable[[int, int], None]

CHUNK_BYTES = 32 << 20  # bytes per read of a tensor that is copied row by row
_FP8_CAPABILITY = (8, 9)  # the first CUDA devices with FP8 arithmetic


def read_config(directory: Path) -> ModelConfig:
    """Reads ``config.json``, and from the weights' headers how many experts each layer has.

    Raises:
        CheckpointError: a value is not supported, or a weight file is damaged.
    """
    path = require(directory, CONFIG)
    config = parse_model_config(read_json(path), str(path))
    if not has_weights(directory):
        return config
    found = scan(directory)
    found.require_sound()
    return with_stored_experts(config, found)


def load_model(
    directory: Path,
    config: ModelConfig,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: Progress | None = None,
    *,
    fp8: bool | None = None,
) -> SpeechModel:
    """Loads the language model.

    Args:
        directory: a checkpoint folder.
        config: from ``read_config`` of that folder.
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
    found = scan(directory)
    found.require_sound()
    entries = official_entries(found, config.backbone.layers)
    specs = inventory(config)
    compare(entries, specs).require_none(directory)
    keep = fp8_fits(config) and (has_fp8(device) if fp8 is None else fp8)
    model = SpeechModel(config, device=device, dtype=dtype, fp8=keep)
    trimmed = entries[HEAD].shape != specs[HEAD].shape
    steps = plan(config, fp8=keep, trimmed_head=trimmed)
    with TensorReader(directory) as reader, torch.no_grad():
        _Filler(model, reader, entries, specs, progress).fill(steps)
    return model.eval()


def fp8_fits(config: ModelConfig) -> bool:
    """Whether expert matrices can stay in FP8: stored that way, and made of whole blocks."""
    sizes = (config.backbone.hidden_size, config.backbone.expert_ffn)
    return config.fp8_experts and not any(size % FP8_BLOCK for size in sizes)


def has_fp8(device: torch.device) -> bool:
    """Whether a device has FP8 arithmetic."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY


def load_codec(directory: Path, device: torch.device | str, dtype: torch.dtype) -> Codec:
    """Loads ``codec.pth``, with its encode half if it has one.

    Raises:
        CheckpointError: the file is missing or damaged, holds other tensors than
            ``codec_config.json`` (or the official sizes) requires, or does not fit the model.
    """
    config = read_codec_config(directory)
    if (directory / CONFIG).is_file():
        path = directory / CONFIG
        check_codec_fits(parse_model_config(read_json(path), str(path)), config)
    return codecs.load_codec(config, read_codec_file(directory), device=device, dtype=dtype)


def read_codec_file(directory: Path) -> object:
    """Loads ``codec.pth``. Its data is memory-mapped where the file's format allows it.

    Raises:
        CheckpointError: it is missing or damaged, or holds anything but plain tensors.
    """
    path = require(directory, CODEC)
    try:
        mapped = zipfile.is_zipfile(path)
        loaded: object = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise CheckpointError(
            f"{path} cannot be read as plain tensors ({reason}). Download it again."
        ) from error
    return loaded


class _Filler:
    """Carries out placements and counts the bytes."""

    def __init__(
        self,
        model: SpeechModel,
        reader: TensorReader,
        entries: Mapping[str, Entry],
        specs: Mapping[str, TensorSpec],
        progress: Progress | None,
    ) -> None:
        self._parameters = dict(model.named_parameters())
        self._reader = reader
        self._entries, self._specs = entries, specs
        self._progress = progress
        # Changes run where the parameters are, if that is a CUDA device: others lack float64.
        self._work = model.device if model.device.type == "cuda" else torch.device("cpu")
        self._done = self._total = 0

    def fill(self, steps: list[Placement]) -> None:
        order = {name: i for i, name in enumerate(self._entries)}
        steps = sorted(steps, key=lambda step: order[step.sources[0].name])
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

    def _nbytes(self, source: Source) -> int:
        entry = self._entries[source.name]
        shape = list(entry.shape)
        for dim, part in enumerate((source.rows, source.columns)):
            if part is not None:
                shape[dim] = part.stop - part.start
        return math.prod(shape) * TORCH_DTYPES[entry.dtype].itemsize

    def _chunks(self, source: Source) -> Iterator[tuple[slice, Tensor]]:
        """A source in chunks of up to ``CHUNK_BYTES``, each with its rows in the region."""
        entry = self._entries[source.name]
        rows = source.rows or slice(0, entry.shape[0])
        step = max(1, CHUNK_BYTES * entry.shape[0] // max(entry.nbytes, 1))
        for start in range(rows.start, rows.stop, step):
            stop = min(start + step, rows.stop)
            chunk = self._chunk(source, slice(start, stop))
            yield slice(start - rows.start, stop - rows.start), chunk

    def _chunk(self, source: Source, rows: slice | None) -> Tensor:
        entry = self._entries[source.name]
        chunk = self._reader.read(entry, rows)
        if source.columns is not None:
            chunk = chunk[:, source.columns]
        chunk = chunk.to(self._work)
        check_numbers(entry.name, chunk, self._specs[source.name].kind)
        self._done += chunk.numel() * chunk.element_size()
        if self._progress is not None:
            self._progress(self._done, self._total)
        return chunk


def _copy(region: Tensor, values: Tensor, name: str) -> None:
    """Fills a region; refuses values out of range of its dtype."""
    assert region.shape == values.shape, name  # copy_ would broadcast
    region.copy_(values)
    if region.dtype == torch.float16 and not bool(region.isfinite().all()):
        raise CheckpointError(
            f"{name} holds values out of range of float16; load with dtype bfloat16 or float32."
        )
