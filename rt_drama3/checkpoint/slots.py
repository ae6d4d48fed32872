"""Every stored tensor of a checkpoint, next to the tensors of the model that it stands for."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from rt_drama3.checkpoint.adapt import codec_entries
from rt_drama3.checkpoint.conformance import compare
from rt_drama3.checkpoint.inventory import inventory
from rt_drama3.checkpoint.opened import Checkpoint, opened
from rt_drama3.errors import CheckpointError

CODEC, UNUSED = "codec", "not needed"
_EXPERT = re.compile(r"(?<=\.experts\.)\d+(?=\.)")


@dataclass(frozen=True)
class StoredTensor:
    """A stored tensor.

    Attributes:
        name: in the file; of a GGUF file the logical name.
        dtype: its type.
        shape: as stored.
        slot: the official tensor that it is or belongs to, several of them with ranges; "codec",
            "not needed", or None if the model has no place for it.
    """

    name: str
    dtype: str
    shape: list[int]
    slot: str | None


@dataclass
class Listing:
    """All of them.

    Attributes:
        tensors: in file order.
        missing: official tensors that nothing stands for.
        problems: what else is wrong, one sentence each.
    """

    tensors: list[StoredTensor] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def list_tensors(place: Path | Checkpoint) -> Listing:
    """Lists the tensors of a checkpoint; what is wrong with it becomes part of the result."""
    checkpoint = opened(place)
    listing = Listing(problems=list(checkpoint.found.problems))
    entries = checkpoint.found.entries
    slots: defaultdict[str, list[str]] = defaultdict(list)
    try:
        adapted = checkpoint.adapted
        config, views = checkpoint.settled
    except CheckpointError as error:
        listing.problems.append(str(error))
    else:
        specs = inventory(config)
        for view in views.values():
            for entry in view.entries:
                if view.name in specs:
                    slots[entry.name].append(view.name)
        slots |= {name: [UNUSED] for name in adapted.unused}
        differences = compare(views, specs)
        listing.missing = list(differences.missing)
        listing.problems += differences.misfits
    slots |= {entry.name: [CODEC] for entry in codec_entries(entries).values()}
    listing.tensors = [
        StoredTensor(name, entry.dtype, list(entry.shape), _slot(slots.get(name, [])))
        for name, entry in entries.items()
    ]
    return listing


def _slot(names: list[str]) -> str | None:
    """Official names in short: those of a stack of experts as one."""
    by_pattern: defaultdict[str, list[int]] = defaultdict(list)
    for name in dict.fromkeys(names):
        match = _EXPERT.search(name)
        by_pattern[_EXPERT.sub("{}", name)].append(int(match[0]) if match else 0)
    shown = []
    for pattern, numbers in by_pattern.items():
        first, last = min(numbers), max(numbers)
        shown.append(pattern.format(first if first == last else f"{first}..{last}"))
    return ", ".join(shown) or None
