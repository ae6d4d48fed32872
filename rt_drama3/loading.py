"""LoadedModel: a checkpoint on a device, in the dtype and with the threads that suit it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rt_drama3 import checkpoint
from rt_drama3.checkpoint.residence import residence
from rt_drama3.codec import Codec
from rt_drama3.config import LARGEST_COMPILED, ModelConfig, SamplingConfig, SegmentConfig
from rt_drama3.errors import ConfigError, DeviceError
from rt_drama3.model import SpeechModel
from rt_drama3.scenes.references import References
from rt_drama3.scenes.steering import SteeringStore
from rt_drama3.system.machine import compute_cores, memory
from rt_drama3.text.prompt import PromptBuilder

log = logging.getLogger(__name__)

SMALL_MODEL = 50_000_000  # parameters; below, one CPU thread beats several (spin barriers)
FLOAT32_MODEL = 1_000_000_000  # parameters; below, float32 is affordable on a CPU


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A checkpoint on a device: what the engine speaks with. A plain value, without threads.

    Attributes:
        model: backbone and tower.
        codec: codes to PCM, and back when it has its encode half.
        prompts: text to rows.
        sampling: the checkpoint's defaults.
        references: audio to codes.
        steering: vectors that fit the model.
        segments: how much text is spoken at a time, and remembered.
        threads: CPU threads to compute with; None is torch's choice.
    """

    model: SpeechModel
    codec: Codec
    prompts: PromptBuilder
    sampling: SamplingConfig
    references: References
    steering: SteeringStore
    segments: SegmentConfig = field(default_factory=SegmentConfig)
    threads: int | None = None

    @property
    def config(self) -> ModelConfig:
        """Shapes of the model."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Of model and codec."""
        return self.model.device


def pick_threads(parameters: int, most: int) -> int:
    """Picks the number of CPU threads for a model: one if it is small, or else all that may run.

    Args:
        parameters: number of parameters of the model.
        most: torch's own choice, which disregards CPU quotas.
    """
    return 1 if parameters < SMALL_MODEL else min(most, compute_cores())


def load_model(
    name_or_path: str | Path = "nano",
    *,
    device: str = "auto",
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    threads: int | None = None,
    codec: str | Path | None = None,
    tensor_map: str | Path | None = None,
    head_order: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Loads a checkpoint; arguments and errors are those of ``rt_drama3.load``."""
    found = checkpoint.open_checkpoint(
        name_or_path, revision, codec=codec, tensor_map=tensor_map, head_order=head_order
    )
    config = found.config
    where = pick_device(device)
    parameters = sum(p.numel() for p in SpeechModel(config).parameters())
    kind = pick_dtype(dtype, where, parameters)
    if threads is not None and threads < 1:
        raise ConfigError(f"threads is {threads}; at least 1 is needed, or None for a good choice.")
    if where.type == "cpu" and threads is None:
        threads = pick_threads(parameters, torch.get_num_threads())
    # The codec first: its file is held whole for a moment, which the language model then outgrows.
    spoken = checkpoint.load_codec(found, where, torch.float32 if where.type == "cpu" else kind)
    mapped = parameters > LARGEST_COMPILED and exceeds_memory(found, where, kind)
    model = checkpoint.load_model(found, config, where, kind, progress, mapped=mapped)
    voice = checkpoint.read_voice_config(found.files)
    tokenizer = checkpoint.load_tokenizer(found.files, config)
    threads = threads if where.type == "cpu" else None
    return LoadedModel(
        model=model,
        codec=spoken,
        prompts=PromptBuilder(tokenizer, config, voice.reads_directions, voice.normalizes),
        sampling=voice.sampling,
        references=References(spoken, voice.fixed_voice, threads),
        steering=SteeringStore(model, None, voice.reads_directions),
        segments=voice.segments,
        threads=threads,
    )


def exceeds_memory(found: checkpoint.Checkpoint, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a model for a CPU needs more than the free memory: its experts then stay mapped."""
    free = memory().free
    if device.type != "cpu" or free is None:
        return False
    needed = sum(group.nbytes for group in residence(found, device, dtype).values())
    if needed <= free:
        return False
    log.warning(
        "the model needs %.1f GB and %.1f GB of memory are free: experts that can be used as they "
        "are stored stay in their file, and are read when they are chosen",
        needed / 1e9,
        free / 1e9,
    )
    return True


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
