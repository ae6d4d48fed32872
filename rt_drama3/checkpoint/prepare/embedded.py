"""The small files that a package carries: settings, tokenizer, licence and notice."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rt_drama3.checkpoint.files import CODEC_CONFIG, CONFIG, TOKENIZER, VOICE
from rt_drama3.checkpoint.gguf import embedded_files, embedded_texts
from rt_drama3.checkpoint.opened import Checkpoint
from rt_drama3.errors import CheckpointError, ConfigError

_LICENCE = re.compile(r"(?:.*[-_.])?(?:licen[cs]e|copying|notice)s?(?:[-_.].*)?", re.IGNORECASE)
_OTHERS = (
    *(VOICE, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    "README.md",
)


def embedded(
    checkpoint: Checkpoint,
    codec_settings: bytes | None,
    counts: Sequence[int],
    licence: Path | None,
) -> dict[str, Any]:
    """The values that embed the files.

    Args:
        checkpoint: the source.
        codec_settings: contents of ``codec_config.json``, if the codec has one.
        counts: experts of each layer of the package.
        licence: the licence of the weights, if the source does not hold it.

    Raises:
        CheckpointError: a file is missing; above all, a licence.
        ConfigError: a licence is given, and the source has one.
    """
    files = checkpoint.files
    found = {CONFIG: _settings(checkpoint, counts), TOKENIZER: files.read(TOKENIZER)}
    found |= {name: files.read(name) for name in _OTHERS if name in files}
    if codec_settings is not None:
        found[CODEC_CONFIG] = codec_settings
    found |= _licences(checkpoint, licence)
    try:
        return embedded_texts(found)
    except UnicodeDecodeError:
        return embedded_files(found)


def _settings(checkpoint: Checkpoint, counts: Sequence[int]) -> bytes:
    """``config.json`` with the experts of the package, and without what it is not quantised as."""
    values = dict(checkpoint.settings)
    for key in ("quantization", "quantization_config"):
        values.pop(key, None)
    values["model_type"] = "fish_omni"
    alike = len(set(counts)) == 1
    experts = counts[0] if alike else list(counts)
    values["text_config"] = {**values["text_config"], "num_experts": experts}
    return (json.dumps(values, indent=2) + "\n").encode()


def _licences(checkpoint: Checkpoint, licence: Path | None) -> dict[str, bytes]:
    """Licence and notices of the source, which a copy of the weights has to come with."""
    files = checkpoint.files
    found = {name: files.read(name) for name in files.names() if _LICENCE.fullmatch(name)}
    if licence is None:
        if not found:
            raise CheckpointError(
                f"{checkpoint.path} has neither a LICENSE nor a NOTICE, and a package must carry "
                "the licence of its weights. Give it with --license FILE; that of Drama 3 is in "
                "fishaudio/drama-3."
            )
        return found
    if found:
        raise ConfigError(
            f"--license {licence} is given, but {checkpoint.path} has {', '.join(found)}, which "
            "the package carries; omit it."
        )
    try:
        return {"LICENSE": licence.read_bytes()}
    except OSError as error:
        raise CheckpointError(f"{licence} cannot be read: {error.strerror or error}.") from error
