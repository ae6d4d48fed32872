"""The small files of a checkpoint folder: JSON settings, read with errors that name the file."""

from __future__ import annotations

import json
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


def read_json(path: Path) -> object:
    """Parses a JSON file.

    Raises:
        CheckpointError: it cannot be read, or is not JSON.
    """
    try:
        return json.loads(decode_utf8(path.read_bytes()))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}). Download it again.") from error


def read_voice_config(directory: Path) -> VoiceConfig:
    """How a checkpoint speaks; without ``generation_config.json`` as Drama 3 does.

    Raises:
        CheckpointError: a value is invalid.
    """
    path = directory / VOICE
    return parse_voice_config(read_json(path), str(path)) if path.is_file() else VoiceConfig()


def read_codec_config(directory: Path) -> CodecConfig:
    """The sizes of the codec; without ``codec_config.json`` those of the official codec.

    Raises:
        CheckpointError: a value is invalid.
    """
    path = directory / CODEC_CONFIG
    return parse_codec_config(read_json(path), str(path)) if path.is_file() else CodecConfig()


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
