"""Sources of packages, made once, and what the tests of packages share."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from rt_drama3.checkpoint import (
    Checkpoint,
    load_model,
    load_tokenizer,
    make_tiny,
    read_config,
)
from rt_drama3.checkpoint.prepare import Recipe, Report, prepare
from rt_drama3.checkpoint.tiny_forms import SETTINGS
from rt_drama3.model import SpeechModel
from rt_drama3.text.prompt import PromptBuilder
from tests.checkpoint.conftest import Tensors
from tests.small import GREEDY, solo

SIZES = {
    **SETTINGS,
    "audio_decoder_config.shared_enrichment_layers": 1,
    "audio_decoder_config.num_codebooks": 2,
    "audio_decoder_config.intermediate_size": 128,
    "codec.decoder_dim": 32,
    "codec.post.n_layer": 1,
}
_FOLDER = tempfile.TemporaryDirectory(prefix="rt-drama3-prepare-")  # goes with the process
LAYERS = "model.language_model.layers"
HEAD = "lm_head.weight"


@cache
def source(form: str = "official") -> Path:
    """A tiny checkpoint with rows of 256 weights; tests must not change it.

    ``plain`` is the official one without FP8, of which all other forms are made.
    """
    directory = Path(_FOLDER.name, form)
    official = "official" if form == "plain" else form
    experts: Literal["fp8", "bf16"] = "fp8" if form == "official" else "bf16"
    make_tiny(
        directory, form=official, settings=SIZES, codec="decode", shards=None, experts=experts
    )
    return directory


def packed(out: Path, place: Path | None = None, **more: Any) -> Report:
    """Makes a package of a checkpoint; experts in the type that takes the least time."""
    more = {"experts": "q8_0", **more}
    known = {name: more.pop(name) for name in list(more) if name in Recipe.__dataclass_fields__}
    return prepare(Checkpoint(place or source()), out, Recipe(**known), **more)


def loaded(place: Path) -> SpeechModel:
    return load_model(place, read_config(place), "cpu", torch.float32)


def spoken(model: SpeechModel, out: Path) -> list[list[int]]:
    """Greedy codes of a model, after a prompt of a package's tokenizer."""
    prompts = PromptBuilder(load_tokenizer(Checkpoint(out).files, model.config), model.config)
    rows = torch.from_numpy(prompts.build("A package says the same.").rows)
    return solo(model, rows, GREEDY, 0, 6)


def as_official(tensors: Tensors, counts: list[int], target: Path) -> Path:
    """Numbers in the official layout, in float32, to load without a package."""
    shutil.copytree(source(), target)
    values = json.loads((target / "config.json").read_text())
    values["quantization_config"] = None
    values["text_config"]["num_experts"] = counts
    (target / "config.json").write_text(json.dumps(values))
    save_file({n: t.float().contiguous() for n, t in tensors.items()}, target / "model.safetensors")
    return target


def relative(ours: Tensor, wanted: Tensor) -> float:
    """Root mean square error, relative to the root mean square of what is wanted."""
    wanted = wanted.double()
    return math.sqrt((ours.double() - wanted).square().sum() / wanted.square().sum())
