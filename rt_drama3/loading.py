"""load: puts a checkpoint on a device, in the dtype and with the threads that suit it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from rt_drama3 import checkpoint
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.errors import ConfigError, DeviceError
from rt_drama3.model import SpeechModel
from rt_drama3.text.prompt import PromptBuilder

SMALL_MODEL = 50_000_000  # parameters; below, one CPU thread beats several (spin barriers)
FLOAT32_MODEL = 1_000_000_000  # parameters; below, float32 is affordable on a CPU


def load(
    name_or_path: str | Path = "nano",
    *,
    device: str = "auto",
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    threads: int | None = None,
    engine: EngineConfig | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Drama3:
    """Loads a checkpoint.

    Args:
        name_or_path: "nano" (the embedded voice), a folder in the official layout, or a hub id such
            as "fishaudio/drama-3".
        device: "auto" (CUDA when there is one), "cpu" or "cuda" ("cuda:1").
        dtype: of weights and activations; None picks bfloat16 on CUDA and for large models, float32
            for small models on a CPU.
        revision: of a hub id; None is the newest.
        threads: CPU threads of torch that this checkpoint computes with; None picks one for small
            models (faster than several) and torch's own choice for large ones. What the rest of the
            process computes with stays as it is. Ignored on CUDA.
        engine: settings of the engine behind ``generate`` and ``stream``; None reads the
            environment.
        progress: called with (bytes loaded, bytes in all).

    Raises:
        CheckpointError: the checkpoint is missing, incomplete or unsupported.
        ConfigError: ``threads`` is below 1.
        DeviceError: the device does not exist.
    """
    path = checkpoint.resolve(str(name_or_path), revision)
    config = checkpoint.read_config(path)
    where = pick_device(device)
    parameters = sum(p.numel() for p in SpeechModel(config).parameters())
    kind = pick_dtype(dtype, where, parameters)
    if threads is not None and threads < 1:
        raise ConfigError(f"threads is {threads}; at least 1 is needed, or None for a good choice.")
    if where.type == "cpu" and threads is None and parameters < SMALL_MODEL:
        threads = 1
    # The codec first: its file is held whole for a moment, which the language model then outgrows.
    codec = checkpoint.load_codec(path, where, torch.float32 if where.type == "cpu" else kind)
    return Drama3(
        model=checkpoint.load_model(path, config, where, kind, progress),
        codec=codec,
        prompts=PromptBuilder(
            checkpoint.load_tokenizer(path, config), config, checkpoint.read_directions(path)
        ),
        sampling=checkpoint.read_sampling(path),
        fixed_voice=checkpoint.read_fixed_voice(path),
        engine_config=engine,
        segments=checkpoint.read_segments(path),
        threads=threads if where.type == "cpu" else None,
    )


def pick_device(name: str) -> torch.device:
    """Returns the device of that name; "auto" is CUDA where there is one.

    Raises:
        DeviceError: the device is unknown or absent.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device {name!r} is unknown; use auto, cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"device {name!r} is not supported; use auto, cpu or cuda.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {name!r} was asked for, but this torch sees {torch.cuda.device_count()} CUDA "
            "devices; use --device cpu, or install a CUDA build of torch and its driver."
        )
    return device


def pick_dtype(
    wanted: torch.dtype | str | None, device: torch.device, parameters: int
) -> torch.dtype:
    """Returns the wanted dtype, or for None what suits the device and a model of that size.

    Raises:
        DeviceError: the dtype is unknown.
    """
    if wanted is None:
        small = device.type == "cpu" and parameters < FLOAT32_MODEL
        return torch.float32 if small else torch.bfloat16
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    found = named.get(wanted) if isinstance(wanted, str) else wanted
    if found not in named.values():
        raise DeviceError(f"dtype {wanted!r} is not supported; use {', '.join(named)}.")
    assert found is not None
    return found
