"""``rt-drama3 voice steer``: measures a direction as a steering vector.

Heavy imports wait until it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rt_drama3.cli import options as cli_options
from rt_drama3.errors import RequestError

LARGEST_TEXTS = 4 << 20  # bytes

voice_app = typer.Typer(help="Make voices act.", no_args_is_help=True)
console = Console(stderr=True)  # stdout is for results only


@voice_app.callback()
def _voice() -> None:
    """Make voices act."""  # without a second command this keeps the first one's name


@voice_app.command()
def steer(
    name: Annotated[str, typer.Argument(help="What the vector is to be called.")],
    direct: Annotated[
        str, typer.Option(help=r"The direction to measure, such as \[excited] or <whisper>.")
    ],
    texts: Annotated[
        Path, typer.Option(help="Lines to say with and without it; UTF-8, one text each.")
    ],
    layer: Annotated[int, typer.Option(help="Backbone layer whose output is measured, from 0.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where to keep it; default: the data folder's steering.")
    ] = None,
    model: cli_options.Model = "nano",
    revision: cli_options.Revision = None,
    device: cli_options.Device = "auto",
    dtype: cli_options.Dtype = None,
    threads: cli_options.Threads = None,
) -> None:
    """Measures what a direction does inside the model, to steer by it without words.

    The vector is the mean difference of a layer's hidden states between the directed and the plain
    texts. `rt-drama3 speak --steer NAME=STRENGTH` adds it; it fits this model alone.
    """
    lines = _lines(texts)
    from rt_drama3 import drama3
    from rt_drama3.scenes.steering import SteeringStore

    with drama3.load(
        model, device=device, dtype=dtype, revision=revision, threads=threads
    ) as loaded:
        store = loaded.steering if folder is None else SteeringStore(loaded.model, folder)
        target = store.path(name)
        measured = store.measure(loaded.prompts, name, direct, lines, layer)
    measured.save(target)
    console.print(
        f"wrote {target}: {direct} at layer {layer} from {len(lines)} texts, length "
        f"{measured.vector.norm():.3f}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _lines(path: Path) -> list[str]:
    """The texts of a file, one on each line that is not blank."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_TEXTS + 1)
        if len(data) > LARGEST_TEXTS:
            raise RequestError(f"{path} has more than {LARGEST_TEXTS >> 20} MiB; give fewer texts.")
        found = [line.strip() for line in data.decode("utf-8-sig").splitlines()]
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}; check the path.") from error
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{path} is not UTF-8 text (byte {error.start}); convert it first."
        ) from error
    return [line for line in found if line]
