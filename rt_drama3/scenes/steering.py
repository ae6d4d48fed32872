"""Steering: directions as vectors, added to the output of one layer during prefill.

A vector is the mean difference of a layer's hidden states between conditional and unconditional
prompts, over the tokens that both share (``text.directions``). Added with some strength to that
layer's output on the rows of the text, it asks for the same delivery without words in the text, at
any strength, and combined with others. The rest of the prompt is unchanged, so a cached voice
prefix serves streams with and without steering.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rt_drama3.config import is_number
from rt_drama3.errors import RequestError
from rt_drama3.model import LayerHook, SpeechModel, StreamState
from rt_drama3.model.weights import Matrix, matrices
from rt_drama3.system.paths import data_dir
from rt_drama3.text.directions import has_directions, shared_tokens, strip_directions
from rt_drama3.text.prompt import PromptBuilder
from rt_drama3.text.rules import check_text, flatten, with_speaker_tag

FORMAT = "rt_drama3_steering_v1"
MAX_FILE = 1 << 20  # bytes; a vector of the full model has 8 KiB
MAX_STRENGTH = 100.0
MAX_VECTORS = 16  # in one request
MAX_TEXTS = 10_000
_VECTOR = "vector"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TAG = re.compile(r"<([A-Za-z][\w-]*)(?:\s[^<>]*)?>")
_SAMPLED = ("embed", "head", "backbone.")
_EXPERT = re.compile(r"\.moe\.(?!router)")  # may be quantised
_SAMPLES = 64  # values per parameter in a fingerprint


@dataclass(frozen=True, eq=False)
class Steering:
    """A measured direction.

    Attributes:
        name: name of the direction.
        layer: backbone layer, from 0, to whose output it is added.
        vector: float32 ``[dim]`` on the host.
        fingerprint: fingerprint of the model that it was measured on.
        direct: the direction as written, such as ``[excited]``.
        texts: number of texts that it was measured with.
    """

    name: str
    layer: int
    vector: Tensor = field(repr=False)
    fingerprint: str
    direct: str = ""
    texts: int = 0

    def save(self, path: Path) -> None:
        """Writes a safetensors file.

        Raises:
            RequestError: the file cannot be written.
        """
        facts = {
            "format": FORMAT,
            "name": self.name,
            "layer": str(self.layer),
            "fingerprint": self.fingerprint,
            "direct": self.direct,
            "texts": str(self.texts),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({_VECTOR: self.vector.float().contiguous()}, path, facts)
        except (OSError, SafetensorError) as error:
            raise RequestError(f"cannot write {path}: {error}; choose another folder.") from error

    @classmethod
    def load(cls, path: Path) -> Steering:
        """Reads a file that ``save`` wrote; ``SteeringStore.find`` checks that it fits a model.

        Raises:
            RequestError: the file cannot be read or is not a steering vector.
        """
        try:
            if path.stat().st_size > MAX_FILE:
                raise RequestError(
                    f"{path} is not a steering vector: it is over {MAX_FILE >> 20} MiB."
                )
            with safe_open(path, framework="pt") as file:
                facts = file.metadata() or {}
                if facts.get("format") != FORMAT or list(file.keys()) != [_VECTOR]:
                    raise RequestError(
                        f"{path} is not a steering vector ({FORMAT}); "
                        "make one with `rt-drama3 voice steer`."
                    )
                vector = file.get_tensor(_VECTOR)
            layer, texts = int(facts["layer"]), int(facts["texts"])
            found = cls(facts["name"], layer, vector, facts["fingerprint"], facts["direct"], texts)
        except OSError as error:
            raise RequestError(f"cannot read {path}: {error.strerror}; check the path.") from error
        except (SafetensorError, KeyError, ValueError) as error:
            raise RequestError(
                f"{path} is damaged ({error}); make it again with `rt-drama3 voice steer`."
            ) from error
        if vector.dtype != torch.float32 or vector.dim() != 1 or not torch.isfinite(vector).all():
            raise RequestError(
                f"{path} is damaged (its vector is {vector.dtype} {list(vector.shape)} or not "
                "finite); make it again with `rt-drama3 voice steer`."
            )
        return found


@torch.inference_mode()
def fingerprint(model: SpeechModel) -> str:
    """Identifies a model by its sizes and samples of all backbone weights except the experts.

    A checkpoint has the same fingerprint on every device and in every dtype: samples are rounded
    to bfloat16, and values too small for float16 count as 0.
    """
    digest = hashlib.sha256()
    sizes = {**dataclasses.asdict(model.config), "dtype": "", "fp8_experts": False}
    digest.update(json.dumps(sizes, sort_keys=True).encode())
    for name, matrix in sorted(matrices(model)):
        if not name.startswith(_SAMPLED) or _EXPERT.search(name):
            continue
        sample = _sample(matrix).to("cpu", torch.bfloat16)
        numbers = torch.where(sample.abs() < 2.0**-14, 0.0, sample.float())
        digest.update(name.encode() + numbers.numpy().tobytes())
    return digest.hexdigest()[:32]


def _sample(matrix: Matrix) -> Tensor:
    """Some numbers of a parameter, the same however it is stored."""
    count = math.prod(matrix.shape)
    places = torch.arange(0, count, max(1, count // _SAMPLES), device=matrix.device)[:_SAMPLES]
    if isinstance(matrix, Tensor):
        return matrix.detach().reshape(-1)[places]
    columns = matrix.shape[-1]
    rows = matrix.looked_up(places // columns)
    return rows.gather(1, (places % columns).unsqueeze(1)).squeeze(1)


class SteeringVectors:
    """The combined steering vectors of a stream, applied by a ``LayerHook`` during prefill.

    Args:
        vectors: one ``[dim]`` per layer, on the model's device.
    """

    def __init__(self, vectors: Mapping[int, Tensor]) -> None:
        self.vectors = dict(vectors)

    def hook(self, text_rows: tuple[int, int]) -> LayerHook:
        """Returns a hook that adds the vectors to prompt rows ``first`` up to ``last``."""
        first, last = text_rows

        def add(layer: int, start: int, x: Tensor) -> Tensor:
            vector = self.vectors.get(layer)
            begin, end = max(first - start, 0), min(last - start, x.shape[0])
            if vector is None or begin >= end:
                return x
            moved = x.clone()
            moved[begin:end] += vector
            return moved

        return add


class SteeringStore:
    """Steering vectors of one model: by name from a folder, from files, or as objects.

    Args:
        model: the model that they must fit.
        folder: folder of the named vectors; None is this user's, looked up on use.
        measurable: whether the model was trained on directions, so that it can be measured.
    """

    def __init__(self, model: SpeechModel, folder: Path | None, measurable: bool = True) -> None:
        self._model = model
        self._measurable = measurable
        self.folder = folder

    @functools.cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the model, computed on first use."""
        return fingerprint(self._model)

    def path(self, name: str) -> Path:
        """Returns the path of a named vector, which need not exist.

        Raises:
            RequestError: the name is invalid.
            ConfigError: this user has no home folder.
        """
        if not _NAME.fullmatch(name):
            raise RequestError(
                f"invalid steering name {name[:80]!r}: use up to 64 letters, digits, - and _, "
                "starting with a letter or digit."
            )
        return (self.folder or data_dir() / "steering") / f"{name}.safetensors"

    def find(self, source: str | Path | Steering) -> Steering:
        """Returns a vector that fits the model.

        Args:
            source: a name, a ``Path`` to a file, or a vector. A string is never a path.

        Raises:
            RequestError: the vector does not exist, is damaged, or belongs to another model.
        """
        if isinstance(source, str):
            path = self.path(source)
            if not path.is_file():
                hint = self._hint(f"make it with `rt-drama3 voice steer {source} --direct ...`")
                raise RequestError(f"there is no steering vector {source!r}; {hint}.")
            source = path
        found = Steering.load(source) if isinstance(source, Path) else source
        if not isinstance(found, Steering):
            raise RequestError(
                f"steering {found!r} is a {type(found).__name__}; use a name, a Path or a Steering."
            )
        back = self._model.config.backbone
        if found.fingerprint != self.fingerprint:
            hint = self._hint("measure it again with `rt-drama3 voice steer` and this model")
            raise RequestError(
                f"steering vector {found.name!r} was measured on another model (fingerprint "
                f"{found.fingerprint[:12]}, this one is {self.fingerprint[:12]}); {hint}."
            )
        if tuple(found.vector.shape) != (back.hidden_size,) or not 0 <= found.layer < back.layers:
            raise RequestError(
                f"steering vector {found.name!r} has shape {list(found.vector.shape)} for layer "
                f"{found.layer}; this model has {back.layers} layers of {back.hidden_size}."
            )
        return found

    def _hint(self, how: str) -> str:
        """Returns a hint for a missing or unfit vector: to measure it, where that is possible."""
        if self._measurable:
            return how
        return (
            "none can be measured for this model, which was not trained on directions: omit "
            "steering, or use a model that follows them"
        )

    def combine(
        self, entries: Iterable[tuple[str | Path | Steering, float]]
    ) -> SteeringVectors | None:
        """Combines (vector, strength) pairs; returns None when nothing is added.

        Vectors of one layer add up; strength 0 is skipped.

        Raises:
            RequestError: a pair cannot be used.
        """
        vectors: dict[int, Tensor] = {}
        for source, strength in check_steering(entries):
            found = self.find(source)
            if strength == 0:
                continue
            moved = strength * found.vector.double()
            vectors[found.layer] = vectors.get(found.layer, torch.zeros(())) + moved
        model = self._model
        ready = {n: v.to(model.device, model.dtype) for n, v in vectors.items()}
        return SteeringVectors(ready) if ready else None

    def measure(
        self, prompts: PromptBuilder, name: str, direct: str, texts: Sequence[str], layer: int
    ) -> Steering:
        """Measures a direction without saving it; see ``measure``."""
        self.path(name)  # refuse invalid names before the work
        vector = measure(self._model, prompts, direct, texts, layer)
        return Steering(name, layer, vector, self.fingerprint, direct, len(texts))


def check_steering(entries: object) -> list[tuple[str | Path | Steering, float]]:
    """Checks the steering of a request; returns its pairs.

    Raises:
        RequestError: it is not a list of pairs, or a strength is not a number within bounds.
    """
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise RequestError(f"steering is a {type(entries).__name__}; use pairs (name, strength).")
    if len(entries) > MAX_VECTORS:
        raise RequestError(f"steering has {len(entries)} pairs; the limit is {MAX_VECTORS}.")
    pairs = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise RequestError(f"entry {number} of steering is not a pair (name, strength).")
        source, strength = entry
        if not is_number(strength) or not -MAX_STRENGTH <= strength <= MAX_STRENGTH:
            raise RequestError(
                f"the strength of entry {number} of steering is {strength!r}; use a number from "
                f"{-MAX_STRENGTH:g} to {MAX_STRENGTH:g} (0 is off, 1 is as measured)."
            )
        pairs.append((source, float(strength)))
    return pairs


def directed(text: str, direct: str) -> str:
    """Returns a text with a direction: ``[excited]`` before it, or ``<whisper>`` around it.

    Raises:
        RequestError: ``direct`` is not a direction.
    """
    tag = _TAG.fullmatch(direct)
    if tag:
        return f"{direct}{text}</{tag[1]}>"
    if strip_directions(direct) != "" or not direct:
        raise RequestError(
            f"--direct {direct!r} is not a direction; write it as [excited] or <whisper>."
        )
    return f"{direct} {text}"


@torch.inference_mode()
def measure(
    model: SpeechModel, prompts: PromptBuilder, direct: str, texts: Sequence[str], layer: int
) -> Tensor:
    """Returns the mean difference that a direction makes to a layer's output.

    The mean is over the tokens after the direction that the texts with and without it share:
    attention is causal, so earlier tokens do not depend on it.

    Args:
        model, prompts: the checkpoint.
        direct: the direction, see ``directed``.
        texts: texts to compare, without directions.
        layer: backbone layer, from 0.

    Returns:
        float32 ``[dim]`` on the host.

    Raises:
        RequestError: the layer does not exist, or a text is unsuitable.
    """
    layers = model.config.backbone.layers
    if not 0 <= layer < layers:
        raise RequestError(f"layer is {layer}; this model has layers 0 to {layers - 1}.")
    if not 0 < len(texts) <= MAX_TEXTS:
        raise RequestError(f"{len(texts)} texts were given; use 1 to {MAX_TEXTS}.")
    if not prompts.reads_directions:
        raise RequestError(
            "this checkpoint was not trained on directions, so there is nothing to measure; use "
            "another one."
        )
    total, count = torch.zeros(model.config.backbone.hidden_size, dtype=torch.float64), 0
    for number, text in enumerate(texts, 1):
        check_text(text, f"text {number}")
        if has_directions(text):
            raise RequestError(f"text {number} already has directions: {text[:60]!r}.")
        tagged = directed(text, direct)
        conditional = prompts.build(tagged)
        unconditional = prompts.unconditional(conditional, tagged)
        if unconditional is None:
            raise RequestError(
                f"{direct} makes no difference to this model's prompt, so there is nothing to "
                "measure; use a direction that it was trained on."
            )
        words = with_speaker_tag(flatten(tagged))
        after = words.index(direct) + len(direct)
        offsets = prompts.tokenizer.encode(words).offsets
        pairs = [
            (i, j) for i, j in shared_tokens(prompts.tokenizer, words) if offsets[i][0] >= after
        ]
        if not pairs:
            continue
        first = conditional.text_rows[0]
        one = _hidden(model, torch.from_numpy(conditional.rows), layer)
        other = _hidden(model, torch.from_numpy(unconditional.rows), layer)
        difference = one[[first + i for i, _ in pairs]].double()
        difference -= other[[first + j for _, j in pairs]].double()
        total += difference.sum(0)
        count += len(pairs)
    if not count:
        raise RequestError("the texts share no tokens with their directed forms; use longer texts.")
    return (total / count).float()


def _hidden(model: SpeechModel, rows: Tensor, layer: int) -> Tensor:
    """Returns the output of a layer for every row of a prompt, ``[T, dim]`` on the host."""
    seen: list[Tensor] = []

    def record(index: int, start: int, x: Tensor) -> Tensor:
        if index == layer:
            seen.append(x.float().cpu())
        return x

    state = StreamState.allocate(model.config, 1, len(rows), model.device, model.dtype)
    model.prefill(rows.to(model.device), state, 0, hook=record)
    return torch.cat(seen)
