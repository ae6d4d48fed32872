"""``rt-drama3 model``: checkpoints, inspected or made up for tests.

Heavy imports wait until a command runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rt_drama3.cli.common import AsJson, Revision, show
from rt_drama3.errors import RequestError

if TYPE_CHECKING:
    from rt_drama3.checkpoint import CheckpointInfo
    from rt_drama3.checkpoint.memory import MemoryPlan

model_app = typer.Typer(help="Inspect checkpoints, or make tiny ones.", no_args_is_help=True)


@model_app.command()
def info(
    path: Annotated[
        str, typer.Argument(help="nano, a checkpoint folder, or a Hugging Face id.")
    ] = "nano",
    revision: Revision = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Add memory per stream, traffic and minimum time per frame."),
    ] = False,
    streams: Annotated[
        int, typer.Option(min=1, help="Streams for --plan; a stream with guidance counts twice.")
    ] = 1,
    dtype: Annotated[str, typer.Option(help="Dtype for --plan.")] = "bfloat16",
    bandwidth: Annotated[
        float, typer.Option(min=0.001, help="Memory bandwidth for --plan, in GB/s.")
    ] = 1000.0,
    as_json: AsJson = False,
) -> None:
    """Show what a checkpoint contains and what is missing, without loading its weights."""
    from rt_drama3 import checkpoint

    folder = checkpoint.resolve(path, revision)
    found = checkpoint.inspect(folder)
    budget = _budget(folder, streams, dtype) if plan else None
    if as_json:
        facts = dataclasses.asdict(found)
        if budget is not None:
            floor = budget.floor_ms(bandwidth * 1e9)
            facts["plan"] = {**dataclasses.asdict(budget), "floor_ms": floor}
        typer.echo(json.dumps(facts, default=str))
    else:
        console = Console()
        console.print(_info_table(found))
        if budget is not None:
            console.print(_plan_table(budget, bandwidth))
    if found.problems:
        raise typer.Exit(1)


@model_app.command()
def make_tiny(
    directory: Annotated[Path, typer.Argument(help="New or empty folder to write to.")],
    seed: Annotated[int, typer.Option(help="Random seed of the weights.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Config value, such as text_config.num_hidden_layers=8; repeatable.",
        ),
    ] = None,
) -> None:
    """Write a random checkpoint in the exact official layout, for testing loaders."""
    from rt_drama3 import checkpoint

    pairs: list[tuple[str, Any]] = []
    for setting in settings or []:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise RequestError(f"--set {setting!r} is not key=value.")
        try:
            pairs.append((key, json.loads(value)))
        except json.JSONDecodeError:
            pairs.append((key, value))
    checkpoint.make_tiny(directory, seed=seed, settings=pairs)
    show(f"wrote {directory}")


def _budget(folder: Path, streams: int, dtype: str) -> MemoryPlan:
    from rt_drama3 import checkpoint
    from rt_drama3.checkpoint.memory import plan
    from rt_drama3.engine.config import read_engine_config

    config = checkpoint.read_config(folder)
    return plan(
        config,
        dtype=dtype,
        fp8=config.fp8_experts and dtype != "float32",
        context=read_engine_config().context,
        streams=streams,
    )


def _plan_table(budget: MemoryPlan, bandwidth: float) -> Table:
    mega = 1e6
    return _table(
        [
            ("weights", f"{budget.weights / mega:,.1f} MB"),
            ("per stream", f"{budget.stream / mega:,.1f} MB of state"),
            ("resident", f"{budget.resident / mega:,.1f} MB with {budget.streams} streams"),
            (
                "per frame",
                f"{budget.frame / mega:,.1f} MB moved: dense {budget.dense / mega:,.1f}, "
                f"experts {budget.experts / mega:,.1f}, cache {budget.cached / mega:,.1f}, "
                f"DeltaNet state {budget.recurrent / mega:,.1f}",
            ),
            (
                "floor",
                f"{budget.floor_ms(bandwidth * 1e9):.3f} ms per frame at {bandwidth:g} GB/s",
            ),
        ]
    )


def _info_table(info: CheckpointInfo) -> Table:
    problems = [("[red]problem[/red]", problem) for problem in info.problems]
    return _table([*info.rows(), *problems])


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, escape(value))
    return table
