"""mlx-audio's Drama 3 as oracle of the whole model: one checkpoint, its own converter, float32.

Nothing here computes a model: its converter, prompt builder, prefill, step and sampler run as they
are. Only three things are set from outside: weights are widened to float32 after loading, random
draws are decided by a given table of uniform numbers, and what flows past is written down.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import torch
from mlx_audio.lm.models.qwen3_5 import Qwen3_5TextModel
from mlx_audio.tts.models.fish_drama3 import Model, ModelConfig, drama3
from mlx_audio.tts.models.fish_drama3.convert import EXPERT, convert
from tokenizers import Tokenizer
from torch import Tensor

from rt_drama3.config import SamplingConfig
from tests.oracles.trace import Trace

# Compiling is only a fusion of the same operations, and on a CPU it calls a C++ compiler.
mx.disable_compile()

Codes = npt.NDArray[np.int64]
ORACLE_WINDOW = drama3.RAS_WINDOW
GREEDY = {"temperature": 1.0, "top_k": 1, "top_p": 1.0}  # its temperature is never quite 0
Turn = tuple[str, Codes]  # a text and its code grid [num_codebooks, frames]


class MlxDrama3:
    """mlx-audio's model of a checkpoint in the official layout.

    Args:
        checkpoint: its folder.
        workdir: a folder that does not exist yet, for the converted checkpoint.
    """

    def __init__(self, checkpoint: Path, workdir: Path) -> None:
        _convert(checkpoint, workdir)
        self.model = Model(ModelConfig.from_dict(json.loads((workdir / "config.json").read_text())))
        weights: dict[str, mx.array] = {}
        for shard in sorted(workdir.glob("*.safetensors")):
            weights.update(mx.load(str(shard)))
        widened = {k: v.astype(mx.float32) for k, v in self.model.sanitize(weights).items()}
        self.model.load_weights(list(widened.items()), strict=True)
        self.model.eval()
        self.model.tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))

    def rows(
        self, text: str, references: Sequence[Turn], history: Sequence[Turn]
    ) -> tuple[Codes, int]:
        """The prompt ``[T, 1 + num_codebooks]`` and the number of rows of its system block."""
        turns = [
            [(said, mx.array(codes)) for said, codes in group] for group in (references, history)
        ]
        rows, system = self.model.build_frames(turns[0], turns[1], text)
        return np.array(rows).astype(np.int64), system

    def trace(
        self,
        rows: Codes,
        system_rows: int,
        frames: int,
        sampling: SamplingConfig,
        noise: npt.NDArray[np.float32] | None = None,
    ) -> Trace:
        """Reads a prompt and makes frames until eos or ``frames``.

        Args:
            rows: ``[T, 1 + num_codebooks]``.
            system_rows: leading rows that are read on their own, as for a cached voice.
            frames: how many at most.
            sampling: temperature, top_p, top_k and whether the repetition-aware redraw is on; the
                oracle has one temperature for all draws.
            noise: float32 ``[frames, draws]``; None is greedy.
        """
        prompt = mx.array(rows.astype(np.int32))
        hidden, state, caches = self._read(prompt, system_rows)
        settings = (sampling.temperature, sampling.top_k, sampling.top_p)
        if noise is None:
            settings, noise = tuple(GREEDY.values()), np.zeros((0, 0), np.float32)
        step_hidden, frame = mx.array(hidden[None, -1:].numpy()), prompt[None, -1:]
        nothing = mx.full((drama3.RAS_WINDOW,), -1, dtype=mx.int32)
        window = prompt[-drama3.RAS_WINDOW :, 0]
        main, codes = [], []
        with _recorded_logits() as logits, _scripted_draws(noise):
            for _ in range(frames):
                recent = window if sampling.repetition_aware else nothing
                frame, step_hidden, window, token = self.model._step(
                    step_hidden, frame, recent, caches, *settings
                )
                main.append(token.item())
                codes.append(np.array(frame[0, 0, 1:]))
                if main[-1] == self.model.eos_id:
                    break
        drawn = [logits[i : i + self._draws] for i in range(0, len(logits), self._draws)]
        return Trace(
            hidden=hidden,
            state=state,
            main=torch.tensor(main),
            codes=torch.from_numpy(np.stack(codes).astype(np.int64)),
            main_logits=torch.stack([f[0] for f in drawn]),
            head_logits=torch.stack([torch.stack(f[2:]) for f in drawn]),
        )

    def speak(
        self,
        pieces: Sequence[str],
        sampling: SamplingConfig,
        noise: npt.NDArray[np.float32] | None = None,
    ) -> Codes:
        """Codes ``[num_codebooks, frames]`` of its own ``generate`` for a text cut into pieces.

        ``noise`` None is greedy; otherwise ``[frames, draws]`` for a text of one piece.
        """
        recorder = _CodeRecorder()
        self.model.codec = recorder
        settings = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
        if noise is None:
            settings, noise = GREEDY, np.zeros((0, 0), np.float32)
        split = mock.patch.object(drama3, "split_text", return_value=list(pieces))
        with split, _scripted_draws(noise):
            for _ in self.model.generate(" ".join(pieces), **settings):
                pass
        return np.concatenate(recorder.codes, 1)

    @property
    def _draws(self) -> int:
        return 2 + self.model.num_codebooks - 1  # main, redraw, heads

    def _read(self, prompt: mx.array, system_rows: int) -> tuple[Tensor, dict[str, Tensor], Any]:
        caches = (self.model.backbone.make_cache(), self.model.tower.make_cache())
        with _recorded_hidden() as parts:
            self.model._prefill(prompt, caches, 0, system_rows)
            self.model._prefill(prompt, caches, system_rows, len(prompt))
        return torch.cat(parts), self._state(caches), caches

    def _state(self, caches: tuple[list[Any], list[Any]]) -> dict[str, Tensor]:
        """Copies of the caches, brought to the shapes that ``StreamState`` has."""
        backbone, tower = caches
        state: dict[str, Tensor] = {}
        for i, (layer, cache) in enumerate(zip(self.model.backbone.layers, backbone, strict=True)):
            if layer.is_linear:
                state[f"backbone {i} tail"] = _tensor(cache[0])[0].t()
                state[f"backbone {i} matrix"] = _tensor(cache[1])[0].transpose(-1, -2)
            else:
                keys, values = cache.state
                state[f"backbone {i} keys"] = _tensor(keys)[0]
                state[f"backbone {i} values"] = _tensor(values)[0]
        rotary = self.model.tower.shared_layers[0].transformer_layer.attention.rotary_dims
        for i, cache in enumerate(tower):
            keys, values = (_tensor(t)[0] for t in cache.state)
            pairs, rest = keys[..., :rotary], keys[..., rotary:]
            state[f"tower {i} keys"] = torch.cat((pairs[..., ::2], pairs[..., 1::2], rest), -1)
            state[f"tower {i} values"] = values
        return state


class _CodeRecorder:
    """Stands in for the codec and keeps the codes it is given."""

    sample_rate, frame_length = 44_100, 2048

    def __init__(self) -> None:
        self.codes: list[Codes] = []

    def reset_streaming_state(self) -> None:
        self.codes.clear()

    def streaming_step(self, codes: mx.array) -> mx.array:
        self.codes.append(np.array(codes[0]).astype(np.int64))
        return mx.zeros((1, 1, 1))


def _convert(checkpoint: Path, workdir: Path) -> None:
    """Runs the oracle's converter, which takes FP8 experts only.

    Experts that are bfloat16 already need no conversion: the converter gets the checkpoint without
    them, and they are added to its result, stacked as it stacks them.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    if config.get("quantization_config") is not None:
        convert(checkpoint, workdir, codec=False)
        return
    tensors: dict[str, mx.array] = {}
    for shard in checkpoint.glob("*.safetensors"):
        tensors.update(mx.load(str(shard)))
    stacks: dict[str, dict[int, mx.array]] = {}
    for name in [name for name in tensors if EXPERT.fullmatch(name)]:
        layer, expert, part, _ = EXPERT.fullmatch(name).groups()
        stack = f"backbone.model.layers.{layer}.mlp.switch_mlp.{part}_proj.weight"
        stacks.setdefault(stack, {})[int(expert)] = tensors.pop(name)
    rest = workdir.with_name(f"{workdir.name}-without-experts")
    rest.mkdir()
    shutil.copy(checkpoint / "config.json", rest)
    mx.save_safetensors(str(rest / "model.safetensors"), tensors)
    index = {"weight_map": dict.fromkeys(tensors, "model.safetensors")}
    (rest / "model.safetensors.index.json").write_text(json.dumps(index))
    convert(rest, workdir, codec=False)
    experts = {name: mx.stack([parts[e] for e in sorted(parts)]) for name, parts in stacks.items()}
    mx.save_safetensors(str(workdir / "experts.safetensors"), experts)


def kept_logits(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float, keep_crossing: bool
) -> Tensor:
    """Scaled logits of the candidates that mlx-audio's sampler would draw from, best first."""
    seen: list[Tensor] = []

    def categorical(masked: mx.array) -> mx.array:
        seen.append(_tensor(masked)[0])
        return mx.zeros(masked.shape[:-1], dtype=mx.int32)

    with mock.patch.object(mx.random, "categorical", categorical):
        mx.eval(
            drama3.sample_top_k_top_p(
                mx.array(logits[None].numpy()), temperature, top_k, top_p, keep_crossing
            )
        )
    return seen[0][torch.isfinite(seen[0])]


def _tensor(array: mx.array) -> Tensor:
    return torch.from_numpy(np.array(array))


@contextmanager
def _recorded_hidden() -> Iterator[list[Tensor]]:
    """Every output ``[T, dim]`` of the backbone, in order."""
    parts: list[Tensor] = []
    plain = Qwen3_5TextModel.__call__

    def record(self: Qwen3_5TextModel, *args: Any, **kwargs: Any) -> mx.array:
        hidden = plain(self, *args, **kwargs)
        parts.append(_tensor(hidden)[0])
        return hidden

    with mock.patch.object(Qwen3_5TextModel, "__call__", record):
        yield parts


@contextmanager
def _recorded_logits() -> Iterator[list[Tensor]]:
    """Logits of every draw, in order: main, redraw, heads of one frame, then the next frame."""
    logits: list[Tensor] = []
    plain = drama3.sample_top_k_top_p

    def record(values: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        logits.append(_tensor(values)[0])
        return plain(values, *args, **kwargs)

    with mock.patch.object(drama3, "sample_top_k_top_p", record):
        yield logits


@contextmanager
def _scripted_draws(noise: npt.NDArray[np.float32]) -> Iterator[None]:
    """Decides draw after draw by the inverse of its cumulative distribution at ``noise``, and when
    that is used up by the best candidate.
    """
    numbers = chain(noise.astype(np.float64).flatten(), repeat(0.0))

    def categorical(masked: mx.array) -> mx.array:
        values = np.array(masked)[0].astype(np.float64)
        total = np.exp(values - values.max()).cumsum()
        kept = int(np.isfinite(values).sum())
        rank = min(int((total <= next(numbers) * total[-1]).sum()), kept - 1)
        return mx.array([rank])

    with mock.patch.object(mx.random, "categorical", categorical):
        yield
