"""The small files of a checkpoint folder: JSON settings, read with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path

from rt_drama3.checkpoint.config_files import parse_codec_config, parse_sampling
from rt_drama3.config import CodecConfig, ModelConfig, SamplingConfig, SegmentConfig
from rt_drama3.errors import CheckpointError

CONFIG = "config.json"
CODEC_CONFIG = "codec_config.json"
SAMPLING = "generation_config.json"
TOKENIZER = "tokenizer.json"
CODEC = "codec.pth"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHORTEST_PIECE = 64  # bytes; a piece must hold a speaker tag and some words

_LFS_POINTER = b"version https://git-lfs"


def require(directory: Path, name: str) -> Path:
    """The path of a file that must be there.

    Raises:
        CheckpointError: it is missing, or is a Git LFS pointer in place of the file.
    """
    path = directory / name
    if not path.is_file():
        raise CheckpointError(
            f"{directory}: {name} is missing. Download the checkpoint again, all files in one "
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
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}). Download it again.") from error


def read_sampling(directory: Path) -> SamplingConfig:
    """A checkpoint's own sampling defaults; without ``generation_config.json`` those of the law.

    Raises:
        CheckpointError: a value cannot work.
    """
    path = directory / SAMPLING
    return parse_sampling(read_json(path), str(path)) if path.is_file() else SamplingConfig()


def read_fixed_voice(directory: Path) -> bool:
    """Whether the checkpoint speaks in one voice whatever the references: ``fixed_voice`` there.

    Raises:
        CheckpointError: it is neither true nor false.
    """
    return _flag(directory / SAMPLING, "fixed_voice", False)


def read_directions(directory: Path) -> bool:
    """Whether directions and speaker tags mean something to it: ``reads_directions`` there.

    They do to Drama 3. A small voice that would say them aloud declares false, and its prompts
    then go without them.

    Raises:
        CheckpointError: it is neither true nor false.
    """
    return _flag(directory / SAMPLING, "reads_directions", True)


def read_segments(directory: Path) -> SegmentConfig:
    """How much text it speaks at a time: ``piece_bytes`` and ``remembers_pieces`` there.

    A small voice that was taught single sentences only loses its way in more.

    Raises:
        CheckpointError: a value cannot work.
    """
    path, base = directory / SAMPLING, SegmentConfig()
    values = read_json(path) if path.is_file() else {}
    longest = values.get("piece_bytes", base.longest) if isinstance(values, dict) else base.longest
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < SHORTEST_PIECE:
        raise CheckpointError(
            f"{path}: piece_bytes is {longest!r}, but a whole number from {SHORTEST_PIECE} up is "
            "needed."
        )
    return SegmentConfig(longest, _flag(path, "remembers_pieces", base.remembered))


def _flag(path: Path, name: str, default: bool) -> bool:
    values = read_json(path) if path.is_file() else {}
    value = values.get(name, default) if isinstance(values, dict) else default
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {name} is {value!r}, but true or false is needed.")
    return value


def read_codec_config(directory: Path) -> CodecConfig:
    """Sizes of the codec; without ``codec_config.json`` those of the official codec.

    Raises:
        CheckpointError: a value cannot work.
    """
    path = directory / CODEC_CONFIG
    return parse_codec_config(read_json(path), str(path)) if path.is_file() else CodecConfig()


def check_codec_fits(model: ModelConfig, codec: CodecConfig) -> None:
    """Refuses a codec that cannot decode the model's codes.

    The residual codebooks may be smaller than the tower's heads: the official ones are, and the
    codec clamps (docs/model.md, 8.2).

    Raises:
        CheckpointError: another number of codebooks or another semantic codebook.
    """
    for what, ours, theirs in (
        ("codebooks", model.num_codebooks, codec.num_codebooks),
        ("codes in the first codebook", model.tower.codebook_size, codec.semantic_codebook_size),
    ):
        if ours != theirs:
            raise CheckpointError(
                f"The model has {ours} {what}, its codec {theirs}: {CODEC_CONFIG} does not belong "
                f"to {CONFIG}. Without {CODEC_CONFIG} the codec has the official sizes."
            )
