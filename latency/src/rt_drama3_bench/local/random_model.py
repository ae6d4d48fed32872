"""Models of any size with random weights, made where they are used: sizes count, not speech."""

from __future__ import annotations

import torch
from torch import Tensor

from rt_drama3.config import ModelConfig
from rt_drama3.model import SpeechModel

_FP8_SPREAD = 100.0  # standard deviation of FP8 codes, whose largest is 448


def random_model(
    config: ModelConfig,
    device: torch.device | str,
    dtype: torch.dtype,
    fp8: bool,
    seed: int = 0,
) -> SpeechModel:
    """A model with weights that keep activations near 1 and draws neither flat nor certain.

    Args:
        config: sizes.
        device: where the weights are made; nothing passes through the host.
        dtype: of matrices.
        fp8: experts in float8_e4m3fn with factors.
        seed: same seed and device, same weights.
    """
    model = SpeechModel(config, device, dtype, fp8)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            for part in weight if weight.dim() == 3 else (weight,):  # one expert at a time
                part.copy_(_values(name, part, fp8, generator))
        model.head[-1] *= 0.25  # speech of some length before chance ends it
    return model


def _values(name: str, like: Tensor, fp8: bool, generator: torch.Generator) -> Tensor:
    *_, owner, part = f".{name}".split(".")
    values: Tensor = torch.empty(like.shape, device=like.device)
    if part == "decay":
        return values.uniform_(1, 16, generator=generator)
    if part == "scales":
        columns = like.shape[-1] * 128
        return values.uniform_(0.8, 1.2, generator=generator).mul_(columns**-0.5 / _FP8_SPREAD)
    values.normal_(generator=generator)
    if part == "dt_bias":
        return values - 4
    if like.dim() == 1:
        return 1 + 0.1 * values
    if fp8 and part == "data" and owner in ("gate_up", "down"):
        return values.mul_(_FP8_SPREAD).clamp_(-448, 448)  # beyond, some torch versions give NaN
    if "embed" in part and part != "embed_proj":
        return values
    loud = 3.0 if part in ("head", "heads") else 1.0
    return values.mul_(loud * like.shape[-1] ** -0.5)
