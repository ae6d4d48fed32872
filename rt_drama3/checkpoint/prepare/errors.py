"""How far the weights of a package are from those of its source."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any


@dataclass
class Squares:
    """Sums over the weights of a tensor, in float64.

    Attributes:
        error: of the squares of what they are off.
        weight: of their own squares.
        important_error, important_weight: the same times the importance; None without one.
    """

    error: float = 0.0
    weight: float = 0.0
    important_error: float | None = None
    important_weight: float | None = None

    def __add__(self, other: Squares) -> Squares:
        return Squares(
            self.error + other.error,
            self.weight + other.weight,
            _sum(self.important_error, other.important_error),
            _sum(self.important_weight, other.important_weight),
        )

    @property
    def relative(self) -> float:
        """Root mean square error, relative to that of the weights."""
        return _root(self.error, self.weight)

    @property
    def important(self) -> float | None:
        """The same, columns counted by their importance."""
        if self.important_error is None or self.important_weight is None:
            return None
        return _root(self.important_error, self.important_weight)


@dataclass(frozen=True)
class ErrorOfTensor:
    """A tensor of a package.

    Attributes:
        name: official name; experts of a layer are one tensor.
        group: ``experts``, ``backbone``, ``tower``, ``embedding``, ``small`` or ``codec``.
        source: type in the source.
        type: type in the package.
        shape: its shape.
        nbytes: bytes in the package.
        rmse: root mean square error, relative to the root mean square of the weights.
        important_rmse: the same, columns counted by their importance; None without one.
    """

    name: str
    group: str
    source: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    rmse: float
    important_rmse: float | None


@dataclass(frozen=True)
class ErrorOfGroup:
    """The tensors of a group that have the same type.

    Attributes:
        group, type: which.
        tensors: how many.
        nbytes: bytes in the package.
        rmse: of all of them together.
        worst: those with the largest error, the worst first.
    """

    group: str
    type: str
    tensors: int
    nbytes: int
    rmse: float
    worst: tuple[ErrorOfTensor, ...]


@dataclass
class Report:
    """What became of a checkpoint.

    Attributes:
        path: the package.
        nbytes: its size.
        weights: numbers in it.
        options: what was asked for.
        tensors: all of them, in file order.
        notes: what was done otherwise than asked, one sentence each.
    """

    path: str
    nbytes: int
    weights: int
    options: dict[str, str]
    tensors: list[ErrorOfTensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _squares: dict[str, Squares] = field(default_factory=dict)

    def add(self, tensor: ErrorOfTensor, squares: Squares) -> None:
        """Adds a tensor."""
        self.tensors.append(tensor)
        self._squares[tensor.name] = squares

    def groups(self, worst: int = 3) -> list[ErrorOfGroup]:
        """Groups by type, that with the largest error first."""

        def key(tensor: ErrorOfTensor) -> tuple[str, str]:
            return tensor.group, tensor.type

        found = []
        for (group, type_), each in groupby(sorted(self.tensors, key=key), key):
            members = sorted(each, key=lambda tensor: -tensor.rmse)
            total = _total(self._squares[tensor.name] for tensor in members)
            nbytes = sum(tensor.nbytes for tensor in members)
            some = tuple(tensor for tensor in members[:worst] if tensor.rmse)
            found.append(ErrorOfGroup(group, type_, len(members), nbytes, total.relative, some))
        return sorted(found, key=lambda group: -group.rmse)

    def facts(self) -> dict[str, Any]:
        """Everything, for JSON."""
        facts = {key: value for key, value in asdict(self).items() if not key.startswith("_")}
        facts["groups"] = [asdict(group) for group in self.groups()]
        return facts


def _total(squares: Iterable[Squares]) -> Squares:
    total = Squares()
    for one in squares:
        total += Squares(one.error, one.weight)
    return total


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _root(error: float, weight: float) -> float:
    return math.sqrt(error / weight) if weight else math.inf if error else 0.0
