"""``rt-drama3 model``: checkpoints, inspected or made up for tests.

Heavy imports wait until a command runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rt_drama3.cli import common
from rt_drama3.errors import RequestError

if TYPE_CHECKING:
    from rt_drama3.checkpoint import Checkpoint, CheckpointInfo

Where: TypeAlias = Annotated[str, typer.Argument(help=common.MODEL)]

model_app = typer.Typer(help="Inspect checkpoints, or make tiny ones.", no_args_is_help=True)


@model_app.command()
def info(
    path: Where = "nano",
    revision: common.Revision = None,
    codec: common.Codec = None,
    tensor_map: common.TensorMap = None,
    head_order: common.HeadOrder = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Add what becomes of its matrices on a device, memory per stream, traffic and "
            "minimum time per frame.",
        ),
    ] = False,
    streams: Annotated[
        int, typer.Option(min=1, help="Streams for --plan; a stream with guidance counts twice.")
    ] = 1,
    device: Annotated[
        str, typer.Option(help="Device for --plan: auto, cpu or cuda, which need not be there.")
    ] = "auto",
    dtype: Annotated[
        str | None, typer.Option(help="Dtype for --plan; otherwise what suits device and model.")
    ] = None,
    bandwidth: Annotated[
        float, typer.Option(min=0.001, help="Memory bandwidth for --plan, in GB/s.")
    ] = 1000.0,
    as_json: common.AsJson = False,
) -> None:
    """Show what a checkpoint contains and what is missing, without loading its weights."""
    from rt_drama3 import checkpoint

    opened = checkpoint.open_checkpoint(
        path, revision, codec=codec, tensor_map=tensor_map, head_order=head_order
    )
    found = checkpoint.inspect(opened)
    planned = None
    if plan and not found.problems:
        planned = _Plan(opened, found, streams, device, dtype)
    if as_json:
        facts = dataclasses.asdict(found)
        if planned is not None:
            facts["plan"] = planned.facts(bandwidth)
        typer.echo(json.dumps(facts, default=str))
    else:
        console = Console()
        console.print(_info_table(found))
        if planned is not None:
            console.print(planned.table(bandwidth))
    if found.problems:
        raise typer.Exit(1)


@model_app.command("inspect")
def inspect_tensors(
    path: Where = "nano",
    revision: common.Revision = None,
    tensor_map: common.TensorMap = None,
    head_order: common.HeadOrder = None,
    as_json: common.AsJson = False,
) -> None:
    """List every stored tensor with its type, its shape and the tensors of the model it stands for.

    Ends with the tensors of the model that are missing. A file that names tensors in another way
    needs a --tensor-map; this shows both sides of it.
    """
    from rt_drama3 import checkpoint

    opened = checkpoint.open_checkpoint(
        path, revision, tensor_map=tensor_map, head_order=head_order
    )
    listing = checkpoint.list_tensors(opened)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(listing)))
    else:
        for tensor in listing.tensors:
            typer.echo(f"{tensor.name}  {tensor.dtype} {tensor.shape}  {tensor.slot or '?'}")
        for name in listing.missing:
            typer.echo(f"missing: {name}")
        for problem in listing.problems:
            common.show(problem, "red")
    if listing.missing or listing.problems or not all(t.slot for t in listing.tensors):
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
    form: Annotated[
        str,
        typer.Option(
            help="official, int4, nvfp4, ct-nvfp4, ct-int4, mlx3 to mlx8, gguf-TYPE (gguf-q4_k), "
            "llamacpp, comfy, or pruned-masked, -listed, -renumbered or -uniform."
        ),
    ] = "official",
) -> None:
    """Write a random checkpoint in the official layout or another form, for testing loaders."""
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
    checkpoint.make_tiny(directory, seed=seed, settings=pairs, form=form)
    common.show(f"wrote {directory}")


class _Plan:
    """What a checkpoint will need on a device."""

    def __init__(
        self,
        opened: Checkpoint,
        found: CheckpointInfo,
        streams: int,
        device: str,
        dtype: str | None,
    ) -> None:
        import torch

        from rt_drama3.checkpoint.memory import plan
        from rt_drama3.checkpoint.residence import residence
        from rt_drama3.engine.config import read_engine_config
        from rt_drama3.loading import pick_device, pick_dtype

        where = torch.device(device) if device == "cuda" else pick_device(device)
        kind = pick_dtype(dtype, where, found.parameters)
        codec = found.codec.parameters if found.codec else 0
        self.groups = residence(opened, where, kind, codec=codec)
        self.device, self.dtype = where.type, str(kind).removeprefix("torch.")
        plain = residence(opened, where, kind, keep=False)
        budget = plan(
            opened.config,
            dtype=self.dtype,
            context=read_engine_config().context,
            streams=streams,
        )
        # Matrices that stay as they are stored are read as that.
        saved = {name: plain[name].nbytes - self.groups[name].nbytes for name in plain}
        share = self.groups["experts"].nbytes / plain["experts"].nbytes
        self.weights = sum(group.nbytes for group in self.groups.values())
        self.budget = dataclasses.replace(
            budget,
            weights=budget.weights - sum(saved[name] for name in saved if name != "codec"),
            dense=budget.dense - sum(saved[name] for name in ("backbone", "tower", "head")),
            experts=round(budget.experts * share),
        )

    def facts(self, bandwidth: float) -> dict[str, Any]:
        """Everything, for JSON."""
        facts = dataclasses.asdict(self.budget)
        groups = {
            name: {"stored": dict(group.stored), "resident": dict(group.resident)}
            for name, group in self.groups.items()
        }
        facts |= {"floor_ms": self.budget.floor_ms(bandwidth * 1e9), "groups": groups}
        return facts | {"device": self.device, "dtype": self.dtype, "all_weights": self.weights}

    def table(self, bandwidth: float) -> Table:
        """Everything, for people."""
        from rt_drama3.checkpoint.info import size

        mega, budget = 1e6, self.budget
        rows = [("device", f"{self.device}, {self.dtype}")]
        for name, group in self.groups.items():
            stored = ", ".join(f"{kind} {size(n)}" for kind, n in group.stored.items())
            held = ", ".join(f"{size(n)} {kind}" for kind, n in group.resident.items())
            rows.append((name, f"{stored} in the files; in memory {held}" if stored else held))
        rows += [
            ("weights", f"{self.weights / mega:,.1f} MB, codec included"),
            ("per stream", f"{budget.stream / mega:,.1f} MB of state"),
            ("resident", f"{self.resident / mega:,.1f} MB with {budget.streams} streams"),
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
        return _table(rows)

    @property
    def resident(self) -> int:
        """Bytes of weights and the state of all streams."""
        return self.weights + self.budget.streams * self.budget.stream


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
