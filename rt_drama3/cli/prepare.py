"""``rt-drama3 model prepare``: packages of our own.

Heavy imports wait until the command runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import DownloadColumn, TimeRemainingColumn
from rich.table import Table

from rt_drama3.cli import common

if TYPE_CHECKING:
    from rt_drama3.checkpoint.prepare import Report

_TYPES = "q2_k to q6_k, iq3_xxs, iq4_xs, q8_0, q4_0, bf16, f16 or keep"


def prepare(
    source: Annotated[str, typer.Argument(help=common.MODEL)],
    out: Annotated[Path, typer.Argument(help="GGUF file to write, for --model OUT.")],
    experts: Annotated[str, typer.Option(help=f"Type of the experts: {_TYPES}.")] = "q4_k",
    backbone: Annotated[
        str, typer.Option(help="Type of the backbone's other matrices and the head.")
    ] = "q8_0",
    tower: Annotated[str, typer.Option(help="Type of the tower's matrices.")] = "q8_0",
    embedding: Annotated[
        str, typer.Option(help="Type of the tables of tokens and codebooks.")
    ] = "q8_0",
    head: Annotated[
        int | None,
        typer.Option(min=1, help="Rows of the head: 4097 leaves out those that are never sampled."),
    ] = None,
    prune: Annotated[
        Path | None, typer.Option(help="JSON file of the experts of each layer that stay.")
    ] = None,
    imatrix: Annotated[
        Path | None,
        typer.Option(help="Importance matrix: a safetensors file of mean squared activations."),
    ] = None,
    licence: Annotated[
        Path | None,
        typer.Option("--license", help="Licence of the weights, if the source does not hold it."),
    ] = None,
    revision: common.Revision = None,
    codec: common.Codec = None,
    tensor_map: common.TensorMap = None,
    head_order: common.HeadOrder = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads (default: one for each core).")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace OUT, and what was begun of it with other options."),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="JSON file to write the error of each tensor to.")
    ] = None,
) -> None:
    """Quantise a checkpoint of any form into one GGUF file that carries everything.

    Interrupted, the same command continues where it was. Ends with the error of the weights, the
    largest first.
    """
    from rt_drama3.checkpoint import open_checkpoint
    from rt_drama3.checkpoint.prepare import Recipe
    from rt_drama3.checkpoint.prepare import prepare as make

    # SIGTERM raises SystemExit, so that what is finished is noted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    common.check_folder(report)
    recipe = Recipe(
        experts=experts.lower(),
        backbone=backbone.lower(),
        tower=tower.lower(),
        embedding=embedding.lower(),
        head=head,
        prune=prune,
        importance=imatrix,
    )
    opened = open_checkpoint(
        source, revision, codec=codec, tensor_map=tensor_map, head_order=head_order
    )
    columns = (DownloadColumn(), TimeRemainingColumn())
    try:
        with common.progress_bar(f"preparing {out}", *columns) as update:
            made = make(
                opened,
                out,
                recipe,
                licence=licence,
                threads=threads,
                force=force,
                progress=update,
            )
    except (KeyboardInterrupt, SystemExit):
        common.show("interrupted; the same command continues where it was")
        raise
    if report is not None:
        report.write_text(json.dumps(made.facts(), indent=1) + "\n", encoding="utf-8")
    Console().print(_table(made))
    for note in made.notes:
        common.show(note, "yellow")
    bits = 8 * made.nbytes / made.weights
    common.show(f"wrote {out}: {made.nbytes / 1e9:,.3f} GB, {bits:.2f} bits per weight")


def _table(made: Report) -> Table:
    """Groups and their worst tensors, those with the largest error first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("part", overflow="fold")
    table.add_column("type")
    table.add_column("MB", justify="right")
    table.add_column("error", justify="right")
    for group in made.groups():
        name = f"{group.group}, {group.tensors} tensors"
        size = f"{group.nbytes / 1e6:,.1f}"
        table.add_row(name, group.type, size, f"{group.rmse:.3%}", style="bold")
        for tensor in group.worst:
            size = f"{tensor.nbytes / 1e6:,.1f}"
            name = tensor.name.removeprefix("model.language_model.")
            table.add_row(escape(f"  {name}"), tensor.type, size, f"{tensor.rmse:.3%}")
    return table
