"""The small files of a checkpoint folder: JSON settings, read with errors that name the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path

from rt_drama3.checkpoint.config_files import parse_codec_config, parse_voice_config
from rt_drama3.config import CodecConfig, ModelConfig, VoiceConfig
from rt_drama3.errors import CheckpointError
from rt_drama3.system.text_io import decode_utf8

CONFIG = "config.json"
CODEC_CONFIG = "codec_config.json"
VOICE = "generation_config.json"
TOKENIZER = "tokenizer.json"
CODEC = "codec.pth"
CODEC_SAFETENSORS = "codec.safetensors"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_LFS_POINTER = b"version https://git-lfs"


def require(directory: Path, name: str) -> Path:
    """Returns the path of a required file.

    Raises:
        CheckpointError: it is missing, or is a Git LFS pointer instead of the file.
    """
    path = directory / name
    if not path.is_file():
        raise CheckpointError(
            f"{directory}: {name} is missing. Download the checkpoint again, with all files in one "
            "folder."
        )
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    if start == _LFS_POINTER:
        raise CheckpointError(
            f"{path} is a Git LFS pointer, not the file itself. Run 'git lfs pull' in that folder, "
            "or download the file from its page."
        )
    return path


class Files:
    """The small files of a checkpoint: in its folder, or embedded in its only file.

    Args:
        path: the folder, or the file that they are embedded in.
        embedded: names of the embedded files.
        read: reads one of them.
    """

    def __init__(
        self,
        path: Path,
        embedded: Collection[str] = (),
        read: Callable[[str], bytes] | None = None,
    ) -> None:
        self.path = path
        self._embedded, self._read = embedded, read

    def __contains__(self, name: str) -> bool:
        return name in self._embedded if self._read else (self.path / name).is_file()

    def names(self) -> list[str]:
        """The names of all files, in order."""
        if self._read:
            return sorted(self._embedded)
        return sorted(path.name for path in self.path.iterdir() if path.is_file())

    def where(self, name: str) -> str:
        """What messages call a file."""
        return f"{self.path} ({name})" if self._read else str(self.path / name)

    def read(self, name: str) -> bytes:
        """The contents of a file.

        Raises:
            CheckpointError: it is missing, or cannot be read.
        """
        if self._read:
            if name not in self._embedded:
                raise CheckpointError(
                    f"{name} is missing in {self.path}. Convert the model again with its files, or "
                    "use another form of it."
                )
            return self._read(name)
        path = require(self.path, name)
        try:
            return path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error

    def json(self, name: str) -> object:
        """Parses a JSON file.

        Raises:
            CheckpointError: it is missing, cannot be read, or is not JSON.
        """
        return _parsed(self.read(name), self.where(name))


Place = Path | Files  # a folder, or the files of a checkpoint that is open


def files_of(place: Place) -> Files:
    """The files of a folder; those of an open checkpoint as they are."""
    return place if isinstance(place, Files) else Files(place)


def read_json(path: Path) -> object:
    """Parses a JSON file.

    Raises:
        CheckpointError: it cannot be read, or is not JSON.
    """
    try:
        return _parsed(path.read_bytes(), str(path))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def _parsed(data: bytes, where: str) -> object:
    try:
        return json.loads(decode_utf8(data))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not valid JSON ({error}). Download it again.") from error


def _optional(place: Place, name: str) -> tuple[object, str]:
    """The parsed file, {} if it is not there, and what messages call it."""
    files = files_of(place)
    return (files.json(name) if name in files else {}), files.where(name)


def read_voice_config(place: Place) -> VoiceConfig:
    """How a checkpoint speaks; without ``generation_config.json`` as Drama 3 does.

    Raises:
        CheckpointError: a value is invalid.
    """
    return parse_voice_config(*_optional(place, VOICE))


def read_codec_config(place: Place) -> CodecConfig:
    """The sizes of the codec; without ``codec_config.json`` those of the official codec.

    Raises:
        CheckpointError: a value is invalid.
    """
    return parse_codec_config(*_optional(place, CODEC_CONFIG))


def check_codec_fits(model: ModelConfig, codec: CodecConfig) -> None:
    """Refuses a codec that cannot decode the model's codes.

    The residual codebooks may be smaller than the tower's heads: the official ones are, and the
    codec clamps (docs/model.md, 8.2).

    Raises:
        CheckpointError: the number of codebooks or the size of the semantic codebook differs.
    """
    for what, ours, theirs in (
        ("codebooks", model.num_codebooks, codec.num_codebooks),
        ("codes in the first codebook", model.tower.codebook_size, codec.semantic_codebook_size),
    ):
        if ours != theirs:
            raise CheckpointError(
                f"The model has {ours} {what}, but its codec has {theirs}: {CODEC_CONFIG} does not "
                f"match {CONFIG}. Without {CODEC_CONFIG} the codec has the official sizes."
            )
