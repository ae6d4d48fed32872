"""Steering: directions as vectors, added to what one layer puts out while the text is read.

A vector is the mean difference of a layer's hidden states between directed prompts and their
undirected twins, on the tokens that both share (``directions``). Added with some strength to that
layer's output on the rows of the text, it asks for the same delivery without a word in the text,
by degrees, and together with others. Nothing else of the prompt is touched, so a voice that was
read once serves steered and plain streams alike.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rt_drama3.errors import RequestError
from rt_drama3.model import LayerHook, SpeechModel, StreamState
from rt_drama3.text.directions import has_directions, shared_tokens, strip_directions
from rt_drama3.text.prompt import PromptBuilder
from rt_drama3.text.rules import check_text, flatten, with_speaker_tag

FORMAT = "rt_drama3_steering_v1"
LARGEST_FILE = 1 << 20  # bytes; a vector of the full model has 8 KiB
STRONGEST = 100.0
MOST_VECTORS = 16  # in one request
MOST_TEXTS = 10_000
_VECTOR = "vector"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TAG = re.compile(r"<([A-Za-z][\w-]*)(?:\s[^<>]*)?>")
_SAMPLED = ("embed", "head", "backbone.")
_EXPERT = re.compile(r"\.moe\.(?!router)")  # may be kept as float8
_SAMPLES = 64  # numbers of a parameter that go into a fingerprint


@dataclass(frozen=True, eq=False)
class Steering:
    """A measured direction.

    Attributes:
        name: of the direction.
        layer: backbone layer, from 0, whose output it belongs to.
        vector: float32 ``[dim]`` on the host.
        fingerprint: of the model that it was measured on.
        direct: the direction as it was written, such as ``[excited]``.
        texts: how many texts it was measured with.
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
            RequestError: it cannot be written.
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
        """Reads what ``save`` wrote; whether it fits a model is seen when it is used.

        Raises:
            RequestError: the file cannot be read or is none of these.
        """
        try:
            if path.stat().st_size > LARGEST_FILE:
                raise RequestError(
                    f"{path} has more than {LARGEST_FILE >> 20} MiB; that is no steering vector."
                )
            with safe_open(path, framework="pt") as file:
                facts = file.metadata() or {}
                if facts.get("format") != FORMAT or list(file.keys()) != [_VECTOR]:
                    raise RequestError(
                        f"{path} is no steering vector ({FORMAT}); "
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
    """Tells a model from others: its sizes and a sample of everything in the backbone but experts.

    The same checkpoint has the same fingerprint on every device and in every dtype that it is
    loaded in: samples are compared as bfloat16, without numbers too small for float16.
    """
    digest = hashlib.sha256()
    sizes = {**dataclasses.asdict(model.config), "dtype": "", "fp8_experts": False}
    digest.update(json.dumps(sizes, sort_keys=True).encode())
    for name, parameter in sorted(model.named_parameters()):
        if not name.startswith(_SAMPLED) or _EXPERT.search(name):
            continue
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // _SAMPLES)][:_SAMPLES].to("cpu", torch.bfloat16)
        numbers = torch.where(sample.abs() < 2.0**-14, 0.0, sample.float())
        digest.update(name.encode() + numbers.numpy().tobytes())
    return digest.hexdigest()[:32]


class SteeringVectors:
    """Several steering vectors as one ``LayerHook``: what a stream adds while its text is read.

    Args:
        vectors: by layer, each ``[dim]``, on the model's device.
    """

    def __init__(self, vectors: Mapping[int, Tensor]) -> None:
        self.vectors = dict(vectors)

    def hook(self, text_rows: tuple[int, int]) -> LayerHook:
        """Adds the vectors to the rows from the first up to the last of a prompt."""
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
    """Steering vectors for one model: by name from a folder, from files, or as they are.

    Args:
        model: that they must fit.
        folder: where names are looked up.
        measurable: whether the model was taught directions, which vectors are measured from.
    """

    def __init__(self, model: SpeechModel, folder: Path, measurable: bool = True) -> None:
        self._model = model
        self._measurable = measurable
        self.folder = folder
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        """Of the model; made on first use."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self._model)
        return self._fingerprint

    def path(self, name: str) -> Path:
        """Where the vector of a name is, or would be, kept.

        Raises:
            RequestError: no name can be so.
        """
        if not _NAME.fullmatch(name):
            raise RequestError(
                f"steering name {name[:80]!r} cannot be; use up to 64 letters, digits, - and _, a "
                "letter or digit first."
            )
        return self.folder / f"{name}.safetensors"

    def find(self, source: str | Path | Steering) -> Steering:
        """A vector that fits the model.

        Args:
            source: a name, a ``Path`` to a file, or a vector. A string is never a path.

        Raises:
            RequestError: there is none of that name, the file is none of these, or it belongs to
                another model.
        """
        if isinstance(source, str):
            path = self.path(source)
            if not path.is_file():
                remedy = self._remedy(f"make it with `rt-drama3 voice steer {source} --direct ...`")
                raise RequestError(f"there is no steering vector {source!r}; {remedy}.")
            source = path
        found = Steering.load(source) if isinstance(source, Path) else source
        if not isinstance(found, Steering):
            raise RequestError(
                f"steering {found!r} is a {type(found).__name__}; a name, a Path or a Steering is "
                "needed."
            )
        back = self._model.config.backbone
        if found.fingerprint != self.fingerprint:
            remedy = self._remedy("measure it again with `rt-drama3 voice steer` and this model")
            raise RequestError(
                f"steering vector {found.name!r} was measured on another model (fingerprint "
                f"{found.fingerprint[:12]}, this one is {self.fingerprint[:12]}); {remedy}."
            )
        if tuple(found.vector.shape) != (back.hidden_size,) or not 0 <= found.layer < back.layers:
            raise RequestError(
                f"steering vector {found.name!r} has {list(found.vector.shape)} numbers for layer "
                f"{found.layer}; this model has {back.layers} layers of {back.hidden_size}."
            )
        return found

    def _remedy(self, how: str) -> str:
        """What to do about a vector that is missing or does not fit: measure it, where one can."""
        if self._measurable:
            return how
        return (
            "none can be measured for this model, which was taught no directions: leave steering "
            "out, or use a model that reads them"
        )

    def combine(
        self, entries: Iterable[tuple[str | Path | Steering, float]]
    ) -> SteeringVectors | None:
        """What a request with these (vector, strength) pairs adds; None when that is nothing.

        Vectors of one layer add up; one with strength 0 is left out.

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
        """Measures a direction; see ``measure``. It is not yet saved."""
        self.path(name)  # refuses what could not be saved
        vector = measure(self._model, prompts, direct, texts, layer)
        return Steering(name, layer, vector, self.fingerprint, direct, len(texts))


def check_steering(entries: object) -> list[tuple[str | Path | Steering, float]]:
    """Steering of a request as pairs.

    Raises:
        RequestError: it is no list of pairs, or a strength is no number within bounds.
    """
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise RequestError(f"steering is a {type(entries).__name__}; pairs (name, strength) are.")
    if len(entries) > MOST_VECTORS:
        raise RequestError(f"steering has {len(entries)} pairs; at most {MOST_VECTORS} may be.")
    pairs = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise RequestError(f"entry {number} of steering is no pair (name, strength).")
        source, strength = entry
        real = isinstance(strength, numbers.Real) and not isinstance(strength, bool)
        if not real or not math.isfinite(strength) or abs(strength) > STRONGEST:
            raise RequestError(
                f"the strength of entry {number} of steering is {strength!r}; a number from "
                f"{-STRONGEST:g} to {STRONGEST:g} is needed (0 is off, 1 as it was measured)."
            )
        pairs.append((source, float(strength)))
    return pairs


def directed(text: str, direct: str) -> str:
    """A text with a direction: ``[excited]`` in front of it, or ``<whisper>`` around it.

    Raises:
        RequestError: that is no direction.
    """
    tag = _TAG.fullmatch(direct)
    if tag:
        return f"{direct}{text}</{tag[1]}>"
    if strip_directions(direct) != "" or not direct:
        raise RequestError(
            f"--direct {direct!r} is no direction; write it as [excited] or <whisper>."
        )
    return f"{direct} {text}"


@torch.inference_mode()
def measure(
    model: SpeechModel, prompts: PromptBuilder, direct: str, texts: Sequence[str], layer: int
) -> Tensor:
    """The mean difference of a layer's output that a direction makes.

    It is taken over the tokens that the directed texts share with the plain ones and that stand
    behind the direction: those in front of it cannot know of it.

    Args:
        model, prompts: the checkpoint.
        direct: the direction, see ``directed``.
        texts: to say with and without it, without directions of their own.
        layer: backbone layer, from 0.

    Returns:
        float32 ``[dim]`` on the host.

    Raises:
        RequestError: the layer does not exist, or a text cannot be used.
    """
    layers = model.config.backbone.layers
    if not 0 <= layer < layers:
        raise RequestError(f"layer is {layer}; this model has layers 0 to {layers - 1}.")
    if not 0 < len(texts) <= MOST_TEXTS:
        raise RequestError(f"{len(texts)} texts were given; 1 to {MOST_TEXTS} are needed.")
    if not prompts.reads_directions:
        raise RequestError(
            "this checkpoint was taught no directions, so there is nothing to measure; use another."
        )
    total, count = torch.zeros(model.config.backbone.hidden_size, dtype=torch.float64), 0
    for number, text in enumerate(texts, 1):
        check_text(text, f"text {number}")
        if has_directions(text):
            raise RequestError(f"text {number} has directions of its own: {text[:60]!r}.")
        told = directed(text, direct)
        prompt = prompts.build(told)
        twin = prompts.unconditional(prompt, told)
        if twin is None:
            raise RequestError(
                f"{direct} makes no difference to this model's prompt, so there is nothing to "
                "measure; use a direction that it was taught."
            )
        words = with_speaker_tag(flatten(told))
        behind = words.index(direct) + len(direct)
        offsets = prompts.tokenizer.encode(words).offsets
        pairs = [
            (i, j) for i, j in shared_tokens(prompts.tokenizer, words) if offsets[i][0] >= behind
        ]
        if not pairs:
            continue
        one = _hidden(model, torch.from_numpy(prompt.rows), layer)
        other = _hidden(model, torch.from_numpy(twin.rows), layer)
        first = prompt.text_rows[0]
        left = one[[first + i for i, _ in pairs]].double()
        total += (left - other[[first + j for _, j in pairs]].double()).sum(0)
        count += len(pairs)
    if not count:
        raise RequestError("the texts share no token with their directed forms; give longer ones.")
    return (total / count).float()


def _hidden(model: SpeechModel, rows: Tensor, layer: int) -> Tensor:
    """What a layer puts out for every row of a prompt, ``[T, dim]`` on the host."""
    seen: list[Tensor] = []

    def record(index: int, start: int, x: Tensor) -> Tensor:
        if index == layer:
            seen.append(x.float().cpu())
        return x

    state = StreamState.allocate(model.config, 1, len(rows), model.device, model.dtype)
    model.prefill(rows.to(model.device), state, 0, hook=record)
    return torch.cat(seen)
