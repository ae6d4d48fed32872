"""The codec of a checkpoint: a file of its own, in one of three formats, or inside the model's."""

from __future__ import annotations

import pickle
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rt_drama3.checkpoint.adapt import codec_entries
from rt_drama3.checkpoint.containers import is_codec
from rt_drama3.checkpoint.files import (
    CODEC,
    CODEC_CONFIG,
    CODEC_SAFETENSORS,
    Files,
    read_codec_config,
    require,
)
from rt_drama3.checkpoint.gguf import scan_gguf
from rt_drama3.checkpoint.matrices import find_matrices
from rt_drama3.checkpoint.opened import Checkpoint
from rt_drama3.checkpoint.tensors import Scan, TensorReader, scan
from rt_drama3.checkpoint.views import view
from rt_drama3.config import CodecConfig
from rt_drama3.errors import CheckpointError

_JOINED = re.compile(r"(.*\.attention)\.(?:w?q|q_proj)\.weight")


@dataclass(frozen=True)
class CodecFile:
    """A codec that was found.

    Attributes:
        where: what messages call it.
        config: its sizes.
        state: its tensors, or what else the file holds.
        settings: contents of its ``codec_config.json``; None if it has the official sizes.
    """

    where: str
    config: CodecConfig
    state: object
    settings: bytes | None


def read_codec(checkpoint: Checkpoint) -> CodecFile:
    """Finds and reads the codec of a checkpoint.

    Raises:
        CheckpointError: it is missing or damaged, or holds anything but plain tensors.
    """
    path = checkpoint.codec_path
    if path is not None and path.is_dir():
        other = Checkpoint(path)
        files, found = other.files, _inside(other) or _own_file(path)
    elif path is not None:
        files, found = Files(path.parent), path
    else:
        files, found = checkpoint.files, _own_file(checkpoint.directory)
        found = _inside(checkpoint) or found
    if found is None:
        raise CheckpointError(
            f"{path or checkpoint.path} has no codec: {CODEC} is missing. Give one with --codec: a "
            "file, a folder, or the hub id of a checkpoint that has one, such as fishaudio/drama-3."
        )
    if CODEC_CONFIG not in files:
        files = checkpoint.files
    config = read_codec_config(files)
    settings = files.read(CODEC_CONFIG) if CODEC_CONFIG in files else None
    if isinstance(found, Scan):
        return CodecFile(str(path or checkpoint.path), config, _tensors(found), settings)
    return CodecFile(str(found), config, read_codec_file(found), settings)


def _inside(checkpoint: Checkpoint) -> Scan | None:
    """The codec in the file of the language model."""
    if not checkpoint.has_weights:
        return None
    found = checkpoint.found
    return found if codec_entries(found.entries) else None


def _own_file(directory: Path) -> Path | None:
    """The codec's own file in a folder."""
    others = sorted(path for path in directory.glob("*.safetensors") if is_codec(path.name))
    names = [directory / CODEC, directory / CODEC_SAFETENSORS, *others]
    return next((path for path in names if path.is_file()), None)


def read_codec_file(path: Path) -> object:
    """Reads a codec's own file. The data of a ``.pth`` is memory-mapped where its format allows it.

    Raises:
        CheckpointError: it is missing or damaged, or holds anything but plain tensors.
    """
    path = require(path.parent, path.name)
    if path.suffix == ".gguf":
        return _tensors(scan_gguf(path))
    if path.suffix == ".safetensors":
        return _tensors(scan(path.parent, [path.name]))
    try:
        mapped = zipfile.is_zipfile(path)
        loaded: object = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise CheckpointError(
            f"{path} cannot be read as plain tensors ({reason}). Download it again."
        ) from error
    return loaded


def _tensors(found: Scan) -> dict[str, Tensor]:
    """The tensors of a codec by their official names, with q, k and v in one."""
    found.require_sound()
    entries = codec_entries(found.entries) or found.entries
    state: dict[str, Tensor] = {}
    with TensorReader(found.directory) as reader:
        for name, stored in find_matrices(entries).stored.items():
            state[name] = view(name, stored).read(reader)
    for name in list(state):
        match = _JOINED.fullmatch(name)
        if match:
            parts = [re.sub(r"q(_proj)?\.weight$", rf"{x}\1.weight", name) for x in "qkv"]
            if all(part in state for part in parts):
                state[f"{match[1]}.wqkv.weight"] = torch.cat([state.pop(part) for part in parts])
    return state
