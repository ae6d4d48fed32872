"""Which type each tensor of a package gets: what was asked for, and what fits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

from rt_drama3.checkpoint import audio_cpp
from rt_drama3.checkpoint.formats import FORMATS, Format
from rt_drama3.checkpoint.inventory import CODEBOOK_EMBED, EMBED
from rt_drama3.checkpoint.views import View
from rt_drama3.errors import ConfigError

KEEP, FP8 = "keep", "fp8"
TYPES = (
    *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq3_xxs", "iq4_xs", "q8_0", "q4_0"),
    *("bf16", "f16", KEEP),
)
GROUPS = ("experts", "backbone", "tower", "embedding")
# What takes the place of a type whose blocks are longer than a row is, or do not divide it.
_SHORTER = {
    **dict.fromkeys(("q2_k", "q3_k", "iq3_xxs", "iq4_xs"), "q4_0"),
    **dict.fromkeys(("q4_k", "q5_k", "q6_k"), "q8_0"),
    **dict.fromkeys(("q8_0", "q4_0", "nvfp4"), "bf16"),
}
_PLAIN = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Recipe:
    """What a package is made like.

    Attributes:
        experts, backbone, tower, embedding: types of the matrices of these parts: one of ``TYPES``.
            "keep" is the type that each has in the source. The backbone's includes the head's, the
            embedding's that of the table of codebooks.
        head: rows of ``lm_head``: None as in the source; or the number of tokens that can be
            sampled, 4097 of the published model.
        prune: JSON file of the experts of each layer that stay; None is all.
        importance: file of the mean squares that the columns of matrices are multiplied with.

    Raises:
        ConfigError: a type does not exist, or a GGUF file cannot hold it.
    """

    experts: str = "q4_k"
    backbone: str = "q8_0"
    tower: str = "q8_0"
    embedding: str = "q8_0"
    head: int | None = None
    prune: Path | None = None
    importance: Path | None = None

    def __post_init__(self) -> None:
        for group in GROUPS:
            wanted = self.type_of(group)
            if wanted == FP8:
                raise ConfigError(
                    f"{group}: a GGUF file cannot hold {FP8}, since ggml has no such type. Use "
                    "q8_0, which is as large and adds an error of half a percent; the FP8 "
                    "checkpoint itself can be run as it is."
                )
            if wanted not in TYPES:
                raise ConfigError(f"{group}: {wanted!r} is not one of {', '.join(TYPES)}.")

    def type_of(self, group: str) -> str:
        """The type that was asked for."""
        wanted: str = getattr(self, group)
        return wanted

    def options(self) -> dict[str, str]:
        """All settings, for messages and for the file."""
        return {field.name: str(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True)
class Choice:
    """The type of a tensor.

    Attributes:
        format: of the package.
        wanted: what was asked for, if that does not fit.
    """

    format: Format
    wanted: Format | None = None


def group_of(name: str) -> str:
    """The group of an official matrix."""
    if name in (EMBED, CODEBOOK_EMBED):
        return "embedding"
    if ".mlp.experts." in name:
        return "experts"
    return "tower" if name.startswith("audio_decoder") else "backbone"


def choose(view: View, recipe: Recipe) -> Choice:
    """The type of a tensor.

    Args:
        view: of the tensor in the source, or of one of a stack.
        recipe: what was asked for.

    Raises:
        ConfigError: it is to be kept, and ggml has no such type.
    """
    if audio_cpp.is_small(view.name, view.shape):
        return Choice(FORMATS["f32"])
    group = group_of(view.name)
    wanted = recipe.type_of(group)
    format = FORMATS[_kept(view, group) if wanted == KEEP else wanted]
    fitting = format
    while view.shape[-1] % fitting.elements:
        fitting = FORMATS[_SHORTER[fitting.name]]
    return Choice(fitting, None if fitting is format else format)


def _kept(view: View, group: str) -> str:
    """The type of the source."""
    name = view.dtype.lower()
    if view.dtype in _PLAIN or copied(view, name):
        return name
    if name in FORMATS and name != "nvfp4":  # whose factor has no place
        return name
    raise ConfigError(
        f"{group}: {view.name} is stored as {view.dtype}, which ggml has no type for, so it cannot "
        f"be kept. Give a type, such as --{group} q8_0."
    )


def copied(view: View, name: str) -> bool:
    """Whether the rows of a view are already blocks of a type."""
    format = FORMATS.get(name)
    if format is None or format.elements == 1 or view.undo is not None:
        return False
    return all(
        piece.stored.dtype.lower() == name
        and len(piece.stored.parts) == 1
        and piece.stored.columns == view.shape[-1]
        for piece in view.pieces
    )


class Fallbacks:
    """Counts the tensors that got another type than the one asked for."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str, int]] = Counter()

    def add(self, group: str, choice: Choice, columns: int, tensors: int) -> None:
        """Notes the choice for some tensors of a group."""
        if choice.wanted is not None:
            self._counts[group, choice.wanted.name, choice.format.name, columns] += tensors

    def notes(self) -> list[str]:
        """One sentence for each kind."""
        return [
            f"{group}: {count} matrices are stored as {got} instead of {wanted}: their {columns} "
            f"columns are not a multiple of the {FORMATS[wanted].elements} weights of a block"
            for (group, wanted, got, columns), count in self._counts.items()
        ]
