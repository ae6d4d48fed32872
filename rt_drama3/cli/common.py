"""Options, messages and progress bars that several commands share."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn

from rt_drama3.errors import RequestError

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3

MODEL = (
    "nano, a checkpoint folder, a .gguf or .safetensors file, a Hugging Face id "
    "(fishaudio/drama-3), or an id with a file (Jmica/Drama-3-GGUF:NAME.gguf)."
)
Model: TypeAlias = Annotated[str, typer.Option(help=MODEL)]
Codec: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Codec from elsewhere: a file, a folder or a Hugging Face id."),
]
TensorMap: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="JSON file that says where tensors are, for files with unknown names."),
]
HeadOrder: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Rows of a head without the full vocabulary: semantic-eos or eos-semantic."),
]
Revision: TypeAlias = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of a Hugging Face id.")
]
Device: TypeAlias = Annotated[str, typer.Option(help="Compute device: auto, cpu or cuda.")]
Dtype: TypeAlias = Annotated[
    str | None,
    typer.Option(help="float32, bfloat16 or float16 (default: by model size and device)."),
]
Threads: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="CPU compute threads (default: by model size).")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]

console = Console(stderr=True)  # stdout is for results only


@dataclass(frozen=True)
class ModelOptions:
    """What to load, as the options of a command."""

    model: Model = "nano"
    revision: Revision = None
    device: Device = "auto"
    dtype: Dtype = None
    threads: Threads = None
    codec: Codec = None
    tensor_map: TensorMap = None
    head_order: HeadOrder = None

    def load(self, **more: Any) -> Drama3:
        """Loads it; ``more`` are further arguments of ``rt_drama3.load``."""
        from rt_drama3 import drama3

        settings = dict(vars(self))
        return drama3.load(settings.pop("model"), **settings, **more)


def with_model_options(work: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of ``ModelOptions`` in the place of its parameter ``options``."""
    shared = inspect.signature(ModelOptions, eval_str=True).parameters

    @functools.wraps(work)
    def command(**arguments: Any) -> None:
        options = ModelOptions(**{name: arguments.pop(name) for name in shared})
        work(options=options, **arguments)

    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(work, eval_str=True).parameters.values():
        parameters += shared.values() if one.name == "options" else [one]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [one.replace(kind=keyword) for one in parameters]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def show(text: str, style: str | None = None) -> None:
    """Prints a message to stderr, without markup or line breaks."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def show_error(error: Exception) -> None:
    """Prints an error to stderr."""
    console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)


@contextlib.contextmanager
def progress_bar(label: str, *columns: ProgressColumn) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar on stderr inside the block; yields ``update(done, total)``."""
    progress = Progress(
        SpinnerColumn(),
        TextColumn(escape(label)),
        BarColumn(),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = progress.add_task(label, total=None)
    with progress:
        yield lambda done, total: progress.update(task, completed=done, total=total)


def check_folder(path: Path | None, advice: str = "create it first.") -> None:
    """Checks that a file can be created in its folder, before a model is loaded.

    Raises:
        RequestError: the folder does not exist.
    """
    if path is not None and not path.parent.is_dir():
        raise RequestError(f"cannot write {path}: {path.parent} is not a folder; {advice}")


def release_stdout() -> None:
    """Detaches stdout from a closed pipe, which would fail again when the interpreter exits."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
