"""Checkpoint folder -> modules on a device."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from rt_drama3 import codec as codecs
from rt_drama3.checkpoint.codec_files import read_codec
from rt_drama3.checkpoint.conformance import compare
from rt_drama3.checkpoint.files import CONFIG, check_codec_fits
from rt_drama3.checkpoint.filling import Filler, Progress, allocate
from rt_drama3.checkpoint.inventory import inventory
from rt_drama3.checkpoint.layouts import Keep, layout_of
from rt_drama3.checkpoint.opened import Checkpoint, opened
from rt_drama3.codec import Codec
from rt_drama3.config import LARGEST_COMPILED, ModelConfig
from rt_drama3.errors import ConfigError
from rt_drama3.model import SpeechModel
from rt_drama3.model.kernels import native, registry


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
    keep: bool | None = None,
    mapped: bool = False,
) -> SpeechModel:
    """Loads the language model.

    Args:
        place: an open checkpoint, or its folder or file.
        config: from ``read_config`` of it.
        device: device of the parameters.
        dtype: dtype of matrices and activations; norms and gates are float32.
        progress: called with bytes done and bytes in all.
        keep: which quantised matrices stay as they are stored: None those that the device has a
            kernel for (``model.kernels.registry``; on a CPU, in models of more than a billion
            numbers), True all that can, False none. The others become plain numbers here.
        mapped: on a CPU, let experts that stay as they are stored also stay in their file, where
            one matrix of all experts of a layer lies there in one piece. Their numbers are not
            checked, and the file must not change as long as the model is used.

    Raises:
        ConfigError: experts are to stay mapped for another device than a CPU.
        CheckpointError: naming the tensor that is missing, unexpected, of the wrong shape or dtype,
            not finite, or cannot be read.
    """
    device = torch.device(device)
    checkpoint = opened(place)
    views = checkpoint.views
    specs = inventory(config)
    compare(views, specs).require_none(checkpoint.path, checkpoint.advice)
    if mapped and device.type != "cpu":
        raise ConfigError(f"experts can stay mapped on a CPU, not on {device}; load without.")
    layout = layout_of(views, config, dtype, keeper(keep, device, config), apart=mapped)
    model, parts = allocate(layout, device, checkpoint.directory if mapped else None)
    Filler(parts, checkpoint.directory, views, specs, progress, device).fill(layout.steps)
    return model.eval()


def keeper(keep: bool | None, device: torch.device, config: ModelConfig) -> Keep:
    """Which formats stay as they are stored; see ``load_model``.

    On a CPU they do in large models alone: smaller ones are compiled, from plain matrices.
    """
    if keep is not None:
        return lambda format, use: keep
    if device.type == "cpu":
        numbers = sum(math.prod(spec.shape) for spec in inventory(config).values())
        if numbers <= LARGEST_COMPILED or not native.load():
            return lambda format, use: False
    return lambda format, use: registry.reads(format, device, use)


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
