"""Makes a package: checks everything first, then writes, then reports."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import filelock
import torch

from rt_drama3.checkpoint import audio_cpp
from rt_drama3.checkpoint.codec_files import read_codec
from rt_drama3.checkpoint.conformance import compare
from rt_drama3.checkpoint.experts import KEPT
from rt_drama3.checkpoint.files import check_codec_fits
from rt_drama3.checkpoint.gguf import Planned, Writer, logical_names, part_of
from rt_drama3.checkpoint.inventory import inventory
from rt_drama3.checkpoint.opened import PREPARED, Checkpoint
from rt_drama3.checkpoint.prepare.embedded import embedded
from rt_drama3.checkpoint.prepare.errors import ErrorOfTensor, Report, Squares
from rt_drama3.checkpoint.prepare.journal import Identity, Journal
from rt_drama3.checkpoint.prepare.recipe import KEEP, Recipe
from rt_drama3.checkpoint.prepare.targets import ModelTargets, codec_targets
from rt_drama3.checkpoint.prepare.tiles import Target
from rt_drama3.checkpoint.prepare.writing import Progress, write_tensors
from rt_drama3.checkpoint.tokenizer import load_tokenizer
from rt_drama3.errors import CheckpointError, ConfigError
from rt_drama3.system.machine import usable_cores

_VERSION = 1  # of what the same source and options give
_MOST_THREADS = 32


def prepare(
    checkpoint: Checkpoint,
    out: Path,
    recipe: Recipe,
    *,
    licence: Path | None = None,
    threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Writes a checkpoint of any form as one GGUF file with everything in it.

    An interrupted call continues where it was if it is repeated, and the file becomes the same.

    Args:
        checkpoint: the source.
        out: the GGUF file; it appears when it is complete.
        recipe: types and sizes.
        licence: the licence of the weights, if the source does not hold it.
        threads: parts of matrices that are quantised concurrently; None is one for each core.
        force: replace ``out``, and what of it was begun with other options.
        progress: called with bytes done and bytes in all.

    Returns:
        The error of each tensor.

    Raises:
        ConfigError: what is asked for cannot be done.
        CheckpointError: the source is damaged or incomplete; or the file exists, was begun from
            something else, or cannot be written.
    """
    _check_place(checkpoint, out, force=force)
    package = _plan(checkpoint, out, recipe, licence)
    journal = Journal(out.with_name(f"{out.name}.part.json"), package.identity)
    lock = Path(f"{part_of(out)}.lock")
    try:
        with filelock.FileLock(lock, timeout=0):
            try:
                finished = _write(checkpoint, package, journal, out, threads, force, progress)
            finally:
                with contextlib.suppress(OSError):  # on Windows it goes when it is released
                    lock.unlink()
    except filelock.Timeout as error:
        raise CheckpointError(f"{out} is being made by another process; wait for it.") from error
    except OSError as error:
        raise CheckpointError(
            f"{part_of(out)} cannot be written: {error.strerror or error}. What is finished stays; "
            "give the same command again to continue."
        ) from error
    return _report(package, finished, recipe, out)


def _write(
    checkpoint: Checkpoint,
    package: _Package,
    journal: Journal,
    out: Path,
    threads: int | None,
    force: bool,
    progress: Progress | None,
) -> list[Squares]:
    """Writes what is not finished; returns the errors of all tensors."""
    finished = [] if force else _finished(package, journal, out)
    _check_space(package, out)
    if not finished:
        journal.begin()
    with package.writer(out, len(finished)) as writer:
        write_tensors(
            writer,
            package.targets,
            finished,
            journal,
            checkpoint.directory,
            threads=threads or min(usable_cores(), _MOST_THREADS),
            progress=progress,
        )
    journal.remove()
    return finished


@dataclass(frozen=True)
class _Package:
    """What will be written."""

    targets: Sequence[Target]
    planned: Sequence[Planned]
    values: dict[str, Any]
    identity: Identity
    notes: Sequence[str]

    def writer(self, out: Path, finished: int) -> Writer:
        return Writer(out, self.values, self.planned, resume=finished)


def _check_place(checkpoint: Checkpoint, out: Path, *, force: bool) -> None:
    if out.suffix != ".gguf":
        raise ConfigError(f"{out} is not a .gguf file; give a name that ends in .gguf.")
    if not out.parent.is_dir():
        raise ConfigError(
            f"{out} cannot be written: {out.parent} is not a folder; create it first."
        )
    if not out.exists():
        return
    if any(out.samefile(file) for file in _files(checkpoint) if file.exists()):
        raise ConfigError(f"{out} is a file of the source; give another name.")
    if not force:
        raise CheckpointError(f"{out} exists; give another name, or --force to replace it.")


def _files(checkpoint: Checkpoint) -> list[Path]:
    """The files that hold the weights of the source."""
    shards = {entry.shard for entry in checkpoint.found.entries.values()}
    return [checkpoint.directory / shard for shard in sorted(shards)]


def _plan(checkpoint: Checkpoint, out: Path, recipe: Recipe, licence: Path | None) -> _Package:
    """Reads everything but the weights, and decides everything."""
    config, views = checkpoint.numbered
    checkpoint.found.require_sound()
    specs = inventory(replace(config, fp8_experts=False))
    compare(views, specs).require_none(checkpoint.path, checkpoint.advice)
    load_tokenizer(checkpoint.files, config)
    model = ModelTargets(config, views, recipe)
    codec = read_codec(checkpoint)
    check_codec_fits(config, codec.config)
    targets = [*model.targets, *codec_targets(codec.config, codec.state)]

    physical, names = logical_names(
        [f"{target.space}/{target.name}" for target in targets],
        [target.shape for target in targets],
    )
    planned = [
        Planned(name, target.shape, target.format.name.upper())
        for name, target in zip(physical, targets, strict=True)
    ]
    values = audio_cpp.file_values(out.stem, _weight_type(recipe))
    values |= {PREPARED: _VERSION, "rt_drama3.options": json.dumps(recipe.options()), **names}
    if model.kept is not None:
        values[KEPT] = json.dumps(model.kept)
    counts = [len(model.experts(layer)) for layer in range(config.backbone.layers)]
    values |= embedded(checkpoint, codec.settings, counts, licence)

    sources = [*_files(checkpoint), Path(codec.where)]
    header = hashlib.sha256(Writer(out, values, planned).header).hexdigest()
    identity: Identity = {
        "options": recipe.options(),
        "source": {str(path): _stamp(path) for path in sources},
        "file": {
            "importance": None if recipe.importance is None else _digest(recipe.importance),
            "header": header,
        },
        "program": {"version": _VERSION, "torch": torch.__version__},
    }
    return _Package(targets, planned, values, identity, model.notes)


def _weight_type(recipe: Recipe) -> str:
    return "orig" if recipe.experts == KEEP else recipe.experts


def _stamp(path: Path) -> list[int]:
    """What changes with a file."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _finished(package: _Package, journal: Journal, out: Path) -> list[Squares]:
    """The tensors that are on the disk, as far as the unfinished file goes."""
    finished, part = journal.finished(out)[: len(package.targets)], part_of(out)
    size, starts = part.stat().st_size if part.is_file() else 0, package.writer(out, 0).starts
    while finished and starts[len(finished)] > size:
        finished.pop()
    return finished


def _check_space(package: _Package, out: Path) -> None:
    part, starts = part_of(out), package.writer(out, 0).starts
    there = part.stat().st_size if part.is_file() else 0
    needed, free = starts[-1] - there, shutil.disk_usage(out.parent).free
    if needed > free:
        raise CheckpointError(
            f"{out} needs {needed / 1e9:,.2f} GB more, but {out.parent} has {free / 1e9:,.2f} GB "
            "free. Free some, or give another folder."
        )


def _report(package: _Package, finished: Sequence[Squares], recipe: Recipe, out: Path) -> Report:
    report = Report(
        path=str(out),
        nbytes=out.stat().st_size,
        weights=sum(target.elements for target in package.targets),
        options=recipe.options(),
        notes=list(package.notes),
    )
    for target, squares in zip(package.targets, finished, strict=True):
        tensor = ErrorOfTensor(
            name=target.name,
            group=target.group,
            source=target.source,
            type=target.format.name,
            shape=target.shape,
            nbytes=target.nbytes,
            rmse=squares.relative,
            important_rmse=squares.important,
        )
        report.add(tensor, squares)
    return report
