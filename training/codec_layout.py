"""Converts the codec's training weights to the official tensor names and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.codec_model import CodecModel

HISTORY = "training.json"


def official_state(model: CodecModel) -> dict[str, Tensor]:
    """The checkpoint's tensors: official names, convolutions as weight-norm pairs."""
    official: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if name.startswith("books."):
            _, number, rest = name.split(".", 2)
            kind = "semantic_quantizer.quantizers.0" if number == "0" else ""
            stem = f"quantizer.{kind or f'quantizer.quantizers.{int(number) - 1}'}"
            if rest.endswith("_proj.weight"):
                _pair(
                    official, f"{stem}.{rest[:-7]}", value[:, :, None], (".weight_g", ".weight_v")
                )
            else:
                official[f"{stem}.{rest}"] = value
        elif name.startswith(("decoder.", "encoder.")) and name.endswith("conv.weight"):
            stem = f"{name[:-7]}.parametrizations.weight.original"
            _pair(official, stem, value, ("0", "1"))
        elif name.startswith(("decoder.", "encoder.")):
            official[name] = value
        else:
            official[f"quantizer.{name}"] = value
    return {name: value.contiguous() for name, value in official.items()}


def _pair(official: dict[str, Tensor], stem: str, value: Tensor, ends: tuple[str, str]) -> None:
    official[stem + ends[0]] = torch.linalg.vector_norm(value, dim=(1, 2), keepdim=True)
    official[stem + ends[1]] = value


def load_official(model: CodecModel, official: dict[str, Tensor]) -> list[str]:
    """Fills the model from a checkpoint; returns the parameters that it does not hold."""
    state: dict[str, Tensor] = {}
    for name in model.state_dict():
        stem = name
        if name.startswith("books."):
            _, number, rest = name.split(".", 2)
            kind = "semantic_quantizer.quantizers.0" if number == "0" else ""
            stem = f"quantizer.{kind or f'quantizer.quantizers.{int(number) - 1}'}.{rest}"
        elif not name.startswith(("decoder.", "encoder.")):
            stem = f"quantizer.{name}"
        value = _stored(official, stem)
        if value is not None:
            state[name] = value[..., 0] if rest_is_projection(name) else value
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    return list(missing)


def rest_is_projection(name: str) -> bool:
    """Whether a parameter is stored as a convolution of one tap."""
    return name.startswith("books.") and name.endswith("_proj.weight")


def amplify(official: dict[str, Tensor], gain: float) -> None:
    """Makes a voice louder in place, by its decoder's last convolution."""
    last = max(int(name.split(".")[2]) for name in official if name.startswith("decoder.model."))
    for end in ("parametrizations.weight.original0", "bias"):
        name = f"decoder.model.{last}.conv.{end}"
        official[name] = official[name].float() * gain


def read_history(voice: Path | None) -> dict[str, Any]:
    """How a voice was trained; its ``gain`` says how much louder than the teacher it is."""
    path = None if voice is None else voice / HISTORY
    if path is None or not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _stored(official: dict[str, Tensor], name: str) -> Tensor | None:
    if name in official:
        return official[name].float()
    module = name.removesuffix(".weight")
    for ends in (
        (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
        (".weight_g", ".weight_v"),
    ):
        if module + ends[0] in official:
            gain, value = (official[module + end].float() for end in ends)
            norm: Tensor = torch.linalg.vector_norm(value, dim=(1, 2), keepdim=True)
            return gain * value / norm
    return None
