"""A checkpoint that is open: its files, what its headers say, and its tensors in official form."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from rt_drama3.checkpoint import llama_cpp
from rt_drama3.checkpoint.adapt import HEAD_ORDERS, Adapted, Origin, adapt
from rt_drama3.checkpoint.config_files import parse_model_config
from rt_drama3.checkpoint.containers import AUDIO_CPP, language_model, scan_model
from rt_drama3.checkpoint.experts import KEPT, settle_experts, with_fp8
from rt_drama3.checkpoint.files import CONFIG, Files
from rt_drama3.checkpoint.gguf import GgufScan, read_embedded
from rt_drama3.checkpoint.inventory import EMBED
from rt_drama3.checkpoint.tensors import Scan, TensorReader
from rt_drama3.checkpoint.views import View
from rt_drama3.config import ModelConfig
from rt_drama3.errors import CheckpointError, ConfigError

log = logging.getLogger(__name__)

MLX_TYPE = "fish_drama3"
PREPARED = "rt_drama3.version"  # a value of the files that we write: norms and head are official
_BANK = re.compile(r"\.mlp\.experts\.[a-z]")  # a stack of experts, which no official file has
# Those of config.json whose tensors are recognised.
_METHODS = (
    *("bsgemm-moe", "fp8", "drama3-int4", "gptq", "gptq_marlin", "modelopt"),
    "compressed-tensors",
)


class Checkpoint:
    """A checkpoint whose headers are read when they are needed, and once.

    Args:
        path: a folder, a GGUF file, or a safetensors file.
        codec: folder or file of another codec.
        tensor_map: JSON file that says where tensors are (see ``tensor_map``).
        head_order: order of the rows of a head that has only those that are sampled: one of
            ``HEAD_ORDERS``; None is what the container usually has.

    Raises:
        ConfigError: the order of the head is none of these.
    """

    def __init__(
        self,
        path: Path,
        *,
        codec: Path | None = None,
        tensor_map: Path | None = None,
        head_order: str | None = None,
    ) -> None:
        if head_order not in (None, *HEAD_ORDERS):
            raise ConfigError(f"head order {head_order!r} is not one of {', '.join(HEAD_ORDERS)}.")
        self.path, self.codec_path = path, codec
        self.tensor_map, self.head_order = tensor_map, head_order
        self.directory = path if path.is_dir() else path.parent

    @cached_property
    def found(self) -> Scan:
        """What the headers say; problems are collected there."""
        return scan_model(self.path)

    @cached_property
    def files(self) -> Files:
        """The small files: embedded ones if the config is embedded, or those of the folder."""
        if self.path.is_dir() and not any(self.path.glob("*.gguf")):
            return Files(self.path)
        found = self.found
        if isinstance(found, GgufScan) and CONFIG in found.embedded and found.header:
            path, names = found.header.path, found.embedded
            return Files(path, names, lambda name: read_embedded(found, name))
        return Files(self.directory)

    @cached_property
    def has_weights(self) -> bool:
        """Whether there is a language model."""
        return bool(language_model(self.path))

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """``config.json``.

        Raises:
            CheckpointError: it is missing, or not a JSON object.
        """
        values = self.files.json(CONFIG)
        if not isinstance(values, dict):
            raise CheckpointError(f"{self.files.where(CONFIG)} must be a JSON object.")
        return values

    @cached_property
    def declared(self) -> ModelConfig:
        """The sizes that ``config.json`` declares.

        Raises:
            CheckpointError: a value is not supported.
        """
        return parse_model_config(self.settings, self.files.where(CONFIG))

    @cached_property
    def adapted(self) -> Adapted:
        """The tensors under official names, experts as they are numbered in the files.

        Raises:
            CheckpointError: they do not fit together.
        """
        key = "quantization" if "quantization" in self.settings else "quantization_config"
        with TensorReader(self.directory) as reader:
            return adapt(
                self.found.entries,
                self.declared,
                self.origin,
                reader,
                quantization=self.settings.get(key),
                tensor_map=self.tensor_map,
                head_order=self.head_order,
            )

    @property
    def origin(self) -> Origin:
        """The program whose conventions the tensors follow."""
        found = self.found
        if isinstance(found, GgufScan):
            if found.header and PREPARED in found.header.values:
                return Origin.PREPARED
            known = {llama_cpp.ARCHITECTURE: Origin.LLAMA_CPP, AUDIO_CPP: Origin.AUDIO_CPP}
            return known.get(found.architecture or "", Origin.UNKNOWN)
        if self.settings.get("model_type") == MLX_TYPE:
            return Origin.MLX
        official = EMBED in found.entries and not any(map(_BANK.search, found.entries))
        return Origin.OFFICIAL if official else Origin.UNKNOWN

    @property
    def advice(self) -> str:
        """What to do about tensors that are missing or have no place."""
        quantization = self.settings.get("quantization_config")
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        if method not in (None, *_METHODS):
            return (
                f"config.json calls its quantisation {method!r}, which this version does not know. "
                "Use another form of the checkpoint, such as fishaudio/drama-3."
            )
        if self.origin in (Origin.OFFICIAL, Origin.MLX):
            return (
                "Weights and config.json must come from the same checkpoint; 'rt-drama3 model "
                "info' lists every difference."
            )
        return (
            "If its tensors only have other names, 'rt-drama3 model inspect' lists them, and a "
            "--tensor-map says which is which."
        )

    @cached_property
    def numbered(self) -> tuple[ModelConfig, dict[str, View]]:
        """Sizes and tensors with the experts of each layer from 0; a matrix is one view.

        Raises:
            CheckpointError: the tensors do not fit together.
        """
        adapted = self.adapted
        found = self.found
        metadata = found.metadata
        if isinstance(found, GgufScan) and found.header and KEPT in found.header.values:
            metadata = {KEPT: found.header.string(KEPT)}
        config, views = settle_experts(self.declared, adapted.views, metadata)
        for note in adapted.notes:
            log.warning("%s: %s", self.path, note)
        return config, views

    @cached_property
    def settled(self) -> tuple[ModelConfig, dict[str, View]]:
        """``config`` and ``views``, whatever problems the headers have.

        Raises:
            CheckpointError: the tensors do not fit together.
        """
        return with_fp8(*self.numbered)

    @property
    def config(self) -> ModelConfig:
        """Sizes, with the experts that each layer has in the files.

        Raises:
            CheckpointError: a value is not supported, or the files are damaged.
        """
        if not self.has_weights:
            return self.declared
        self.found.require_sound()
        return self.settled[0]

    @property
    def views(self) -> dict[str, View]:
        """The tensors under official names.

        Raises:
            CheckpointError: they are damaged, or do not fit together.
        """
        self.found.require_sound()
        return self.settled[1]


def opened(place: Path | Checkpoint) -> Checkpoint:
    """The checkpoint of a path; an open one as it is."""
    return place if isinstance(place, Checkpoint) else Checkpoint(place)
