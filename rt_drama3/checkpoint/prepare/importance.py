"""How much the columns of a matrix count: mean squares of what they are multiplied with.

A safetensors file with one float32 tensor per matrix, called by the matrix's official name:
``[columns]``, or for the experts of a layer, under the name of their stack, ``[experts, columns]``
(docs/prepare.md). A row of zeros belongs to an expert that was never chosen: all its columns count
alike. The metadata has ``format`` ``rt-drama3.importance`` and ``version`` ``1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rt_drama3.errors import CheckpointError

_FORMAT, _VERSION = "rt-drama3.importance", "1"


def write_importance(path: Path, means: Mapping[str, Tensor]) -> None:
    """Writes such a file.

    Args:
        path: of the file.
        means: official name of a matrix, or of a stack of experts -> mean squares.
    """
    tensors = {name: mean.float().contiguous() for name, mean in means.items()}
    save_file(tensors, path, metadata={"format": _FORMAT, "version": _VERSION})


def read_importance(path: Path | None, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Reads such a file.

    Args:
        path: of the file; None gives nothing.
        shapes: official name of every matrix and stack of the model -> what its importance must
            have.

    Returns:
        Name -> float32 importance; matrices that the file does not name are left out.

    Raises:
        CheckpointError: it is another file, or not of this model.
    """
    if path is None:
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            found: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as an importance matrix: {error}.") from error
    if metadata.get("format") != _FORMAT or metadata.get("version") != _VERSION:
        raise CheckpointError(
            f"{path} is not an importance matrix: its metadata must have the format {_FORMAT!r} in "
            f"version {_VERSION}, but there is {metadata or 'none'}."
        )
    for name, values in found.items():
        wanted = shapes.get(name)
        if wanted is None:
            raise CheckpointError(
                f"{path} has importance for {name}, which is not a matrix of this model. It must "
                "have been measured with the same checkpoint."
            )
        if values.dtype != torch.float32 or tuple(values.shape) != wanted:
            raise CheckpointError(
                f"{path}: {name} is {values.dtype} {list(values.shape)}, but float32 "
                f"{list(wanted)} is needed. It must have been measured with the same checkpoint, "
                "before experts are removed."
            )
        if not bool((values.isfinite() & (values >= 0)).all()):
            raise CheckpointError(
                f"{path}: {name} holds numbers that are negative or not finite, which mean squares "
                "cannot be. Measure it again."
            )
    return found
