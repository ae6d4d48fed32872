"""The small files of a checkpoint folder: JSON settings, read with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path

from rt_drama3.checkpoint.config_files import parse_codec_config, parse_sampling
from rt_drama3.config import CodecConfig, ModelConfig, SamplingConfig, SegmentConfig
from rt_drama3.errors import CheckpointError
from rt_drama3.system.text_io import decode_utf8

CONFIG = "config.json"
CODEC_CONFIG = "codec_config.json"
SAMPLING = "generation_config.json"
TOKENIZER = "tokenizer.json"
CODEC = "codec.pth"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHORTEST_SEGMENT = 64  # bytes; a segment must hold a speaker tag and some words

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


def read_sampling(directory: Path) -> SamplingConfig:
    """A checkpoint's sampling defaults; without ``generation_config.json`` those of the model spec.

    Raises:
        CheckpointError: a value is invalid.
    """
    path = directory / SAMPLING
    return parse_sampling(read_json(path), str(path)) if path.is_file() else SamplingConfig()


def read_fixed_voice(directory: Path) -> bool:
    """Whether the checkpoint has one voice and ignores references: its key ``fixed_voice``.

    Raises:
        CheckpointError: it is neither true nor false.
    """
    return _flag(directory / SAMPLING, "fixed_voice", False)


def read_directions(directory: Path) -> bool:
    """Whether the checkpoint understands directions and speaker tags: ``reads_directions``.

    Drama 3 does. A small voice that would read them aloud declares false, and they are left out of
    its prompts.

    Raises:
        CheckpointError: it is neither true nor false.
    """
    return _flag(directory / SAMPLING, "reads_directions", True)


def read_normalizes(directory: Path) -> bool:
    """Whether text is normalised for it unless a request says otherwise: ``normalize_text`` there.

    A voice that was trained on words needs it; Drama 3 reads numbers and signs by itself.

    Raises:
        CheckpointError: it is neither true nor false.
    """
    return _flag(directory / SAMPLING, "normalize_text", False)


def read_segments(directory: Path) -> SegmentConfig:
    """How a long text is divided into segments: ``piece_bytes`` and ``remembers_pieces``.

    A small voice that was trained on single sentences only gets lost in longer text.

    Raises:
        CheckpointError: a value is invalid.
    """
    path, base = directory / SAMPLING, SegmentConfig()
    values = read_json(path) if path.is_file() else {}
    longest = values.get("piece_bytes", base.longest) if isinstance(values, dict) else base.longest
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < SHORTEST_SEGMENT:
        raise CheckpointError(
            f"{path}: piece_bytes is {longest!r}; it must be an integer of at least "
            f"{SHORTEST_SEGMENT}."
        )
    return SegmentConfig(longest, _flag(path, "remembers_pieces", base.remembered))


def _flag(path: Path, name: str, default: bool) -> bool:
    values = read_json(path) if path.is_file() else {}
    value = values.get(name, default) if isinstance(values, dict) else default
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {name} is {value!r}; it must be true or false.")
    return value


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
