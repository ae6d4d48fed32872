"""Which files of a folder are its language model, and what their headers say."""

from __future__ import annotations

import re
from pathlib import Path

from rt_drama3.checkpoint import llama_cpp
from rt_drama3.checkpoint.files import INDEX, SINGLE, require
from rt_drama3.checkpoint.gguf import GgufScan, scan_gguf
from rt_drama3.checkpoint.tensors import Scan, scan
from rt_drama3.errors import CheckpointError

AUDIO_CPP = "audiocpp"
_PROJECTOR = "clip"  # architecture of the second file of llama.cpp's pair
_LOOSE_SHARD = re.compile(r"model-\d+\.safetensors")  # MLX writes no index
_CODEC_FILE = re.compile(r"(?:.*[_-])?codec\.safetensors")


def is_codec(name: str) -> bool:
    """Whether a safetensors file holds a codec, by its name."""
    return _CODEC_FILE.fullmatch(name) is not None


def is_loose_shard(name: str) -> bool:
    """Whether a file is one of several that no index lists."""
    return _LOOSE_SHARD.fullmatch(name) is not None


def language_model(path: Path) -> list[Path]:
    """The files that hold a language model; none if there are none.

    Args:
        path: a folder, or a file of either format.

    Raises:
        CheckpointError: there are several GGUF files, and any may be meant.
    """
    if path.is_file():
        return [path]
    if (path / INDEX).is_file():
        return [path / INDEX]
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    weights = sorted(f for f in path.glob("*.safetensors") if not is_codec(f.name))
    loose = [file for file in weights if is_loose_shard(file.name)]
    if loose or len(weights) == 1:
        return loose or weights
    files = sorted(path.glob("*.gguf"))
    texts = [file for file in files if "mmproj" not in file.name.lower()]
    if len(texts) > 1:
        names = ", ".join(file.name for file in texts)
        raise CheckpointError(
            f"{path} holds several models ({names}); give the file that you mean."
        )
    return texts


def scan_model(path: Path) -> Scan:
    """Reads the headers of a language model, no data. Problems are collected, not raised.

    Args:
        path: a folder, or a file of either format.
    """
    directory = path if path.is_dir() else path.parent
    try:
        files = language_model(path)
    except CheckpointError as error:
        return Scan(directory, problems=[str(error)])
    if files and files[0].suffix == ".gguf":
        return _scan_gguf(require(directory, files[0].name))
    if not files or files[0].name in (INDEX, SINGLE):
        return scan(directory)
    return scan(directory, [file.name for file in files])


def _scan_gguf(path: Path) -> GgufScan:
    found = scan_gguf(path)
    if found.architecture == _PROJECTOR:
        found.problems.append(
            f"{path} is the second file of a pair (mmproj); give the one with the text model."
        )
    elif found.architecture == llama_cpp.ARCHITECTURE:
        _add_projector(found, path)
    elif found.architecture != AUDIO_CPP and not found.problems:
        found.problems.append(
            f"{path} is a model of the architecture {found.architecture!r}; a Drama 3 model is "
            f"{AUDIO_CPP!r} or {llama_cpp.ARCHITECTURE!r}."
        )
    return found


def _add_projector(found: GgufScan, path: Path) -> None:
    """Adds the tensors of the file that llama.cpp keeps the tower and the codec in."""
    others = [scan_gguf(file) for file in sorted(path.parent.glob("*.gguf")) if file != path]
    projectors = [other for other in others if other.architecture == _PROJECTOR]
    if len(projectors) != 1:
        names = ", ".join(other.header.path.name for other in projectors if other.header) or "none"
        found.problems.append(
            f"{path} is the text half of a model. Its other half (mmproj, with tower and codec) "
            f"must be the only one in the same folder; there: {names}."
        )
        return
    (other,) = projectors
    found.problems += other.problems
    for name, entry in other.entries.items():
        if found.entries.setdefault(name, entry) is not entry:
            found.problems.append(f"{name} is in {path} and again in {entry.shard}.")
