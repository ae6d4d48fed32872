"""Stage 8: a voice in the official layout from the checkpoints, with its notice and its history."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rt_drama3.checkpoint.config_files import parse_codec_config, parse_model_config
from training import tokenizer
from training.codec import codec_json, encodes
from training.codec_layout import (
    HISTORY,
    amplify,
    load_official,
    official_state,
    read_history,
)
from training.codec_model import CodecModel
from training.layout import read_voice, to_official
from training.lexicon import Lexicon
from training.vocabulary import config_json

SETTINGS = "generation_config.json"
LARGEST = 30_000_000  # bytes of a voice in the package
SAMPLING: dict[str, Any] = {
    "fixed_voice": True,
    # Long texts are spoken better in short, independent segments.
    "piece_bytes": 140,
    "remembers_pieces": False,
    "normalize_text": True,
    "temperature": 0.5,
    "head_temperature": 0.4,
    "top_p": 0.9,
    "ras_temperature": 0.5,
    "ras_top_k": 30,
    "ras_top_p": 0.95,
}
_KEPT_OF_CURVES = 60  # lines of each


def export(
    target: Path,
    lexicon: Lexicon,
    language: Path | None,
    decode: Path | None,
    encode: Path | None,
    start: Path | None = None,
    sampling: dict[str, Any] | None = None,
    sizes: tuple[dict[str, Any], dict[str, Any]] | None = None,
    gain: float | None = None,
    keep_settings: bool = False,
) -> int:
    """Writes a voice.

    Args:
        target: folder to write to.
        lexicon: of the tokenizer.
        language, decode, encode: checkpoints; None takes that part from ``start`` (a voice without
            encode half stays without).
        start: voice that parts may be taken from.
        sampling: ``generation_config.json``, if not ``SAMPLING``.
        sizes: ``config.json`` and ``codec_config.json``, if not the nano voice's.
        gain: by which the voice speaks louder than the teacher; None is that of ``start``.
        keep_settings: take ``generation_config.json`` from ``start``, as is done anyway without a
            language model of its own. Settings of an older voice state that it supports neither
            directions nor long segments; the present recipe teaches both.

    Returns:
        Bytes written.

    Raises:
        ValueError: a part is missing, not finite, or the voice is larger than ``LARGEST``.
    """
    target.mkdir(parents=True, exist_ok=True)
    model_sizes, codec_sizes = sizes or (config_json(), codec_json())
    config = parse_model_config(model_sizes)
    if language is not None:
        state = torch.load(language, weights_only=True)["model"]
    elif start is not None:
        state = read_voice(start, config)
    else:
        raise ValueError("a voice needs a language model: give its checkpoint or a voice")
    save_file(_stored(to_official(config, state)), target / "model.safetensors")
    (target / "model.safetensors").chmod(0o644)  # the library makes it private
    codec, codec_sizes = _codec(codec_sizes, decode, encode, start)
    past = read_history(start)
    before = past.get("gain", 1.0)
    gain = before if gain is None else gain
    amplify(codec, gain if decode is not None else gain / before)
    torch.save(_stored(codec), target / "codec.pth")
    settings: dict[str, Any] = sampling or SAMPLING
    if start is not None and (keep_settings or language is None):
        settings = json.loads((start / SETTINGS).read_text(encoding="utf-8"))
    tokenizer.write(target / "tokenizer.json", lexicon, settings.get("reads_directions", True))
    for name, values in (
        ("config.json", model_sizes),
        ("codec_config.json", codec_sizes),
        (SETTINGS, settings),
        (HISTORY, _joined(past, history(language, decode, encode)) | {"gain": gain}),
    ):
        text = json.dumps(values, indent=1, ensure_ascii=False)
        (target / name).write_text(text + "\n", encoding="utf-8")
    _notice(target, start)
    size = sum(path.stat().st_size for path in target.iterdir())
    if size > LARGEST:
        raise ValueError(f"the voice has {size} bytes, more than {LARGEST}")
    return size


def _stored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in bfloat16."""
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} is not finite")
    return {name: value.to(torch.bfloat16).contiguous() for name, value in tensors.items()}


def _codec(
    sizes: dict[str, Any], decode: Path | None, encode: Path | None, start: Path | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The codec's tensors and ``codec_config.json``."""
    sizes = dict(sizes)
    old = torch.load(start / "codec.pth", weights_only=True) if start is not None else {}
    encoder = encode is not None or any(name.startswith("encoder.") for name in old)
    model = CodecModel(parse_codec_config(sizes), encoder=encoder)
    missing = load_official(model, old) if old else list(model.state_dict())
    for checkpoint, half in ((encode, "encode"), (decode, "decode")):
        if checkpoint is not None:
            # A run's checkpoint holds both halves; the other one is not as loud as in the voice.
            state = {
                name: value
                for name, value in torch.load(checkpoint, weights_only=True)["model"].items()
                if encodes(name) == (half == "encode")
            }
            model.load_state_dict(state, strict=False)
            missing = [name for name in missing if name not in state]
    if missing:
        raise ValueError(f"no checkpoint holds {missing[0]} and {len(missing) - 1} more")
    if not encoder:
        for name in ("encoder_dim", "encoder_rates", "encoder_transformer", "pre"):
            del sizes[name]
    return official_state(model), sizes


def _joined(past: dict[str, Any], present: dict[str, Any]) -> dict[str, Any]:
    """Both histories; the one of a run that this one continued is under "before"."""
    for part, run in present.items():
        if part in past:
            run["before"] = past[part]
    return past | present


def history(*checkpoints: Path | None) -> dict[str, Any]:
    """Settings and curves of the runs that a voice comes from."""
    found: dict[str, Any] = {}
    for path in checkpoints:
        if path is None:
            continue
        saved = torch.load(path, weights_only=True)
        curve = path.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()
        step = max(1, -(-len(curve) // _KEPT_OF_CURVES))
        kept = [*curve[:-1:step], *curve[-1:]]
        found[path.stem] = {
            "settings": saved["settings"],
            "steps": saved["step"],
            "minutes": round(saved["elapsed"] / 60, 1),
            "curve": [json.loads(line) for line in kept],
        }
    return found


def _notice(target: Path, start: Path | None) -> None:
    """The teacher's notice, which its licence asks to be kept, and what the voice was made from."""
    files = importlib.metadata.files("hibari-tts") or []
    notice = next((file for file in files if file.name == "NOTICE"), None)
    if notice is not None:
        text = notice.read_text(encoding="utf-8")
        (target / "NOTICE").write_text(NOTICE + text, encoding="utf-8")
    elif start is not None:
        shutil.copy(start / "NOTICE", target / "NOTICE")
    else:
        raise ValueError("the teacher's NOTICE is needed: install training/requirements.txt")


NOTICE = """\
The nano voice of rt_drama3

Trained from scratch on audio synthesized by hibari 0.2.1 (voice "heart"), which is licensed under
the Apache License, Version 2.0; its licence sets no condition on what is made with its output. The
pronunciations in tokenizer.json come from hibari's lexicon. The sentences it read are example
sentences and definitions of WordNet 3.0 (Copyright 2006 by Princeton University; use, copying,
modification and distribution for any purpose permitted) and patterns of this project; none of that
text or audio is part of the voice. See training/ in the project's repository.

The NOTICE of hibari follows.

"""
