"""``rt-drama3 voice steer``: measures a direction as a steering vector.

Heavy imports wait until the command runs, so that ``--help`` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rt_drama3.cli import common
from rt_drama3.errors import RequestError
from rt_drama3.system.text_io import decode_utf8

LARGEST_TEXTS = 4 << 20  # bytes

voice_app = typer.Typer(help="Steer voices.", no_args_is_help=True)


@voice_app.callback()
def _voice() -> None:
    """Steer voices."""  # with a callback, the only command keeps its name


@voice_app.command()
@common.with_model_options
def steer(
    name: Annotated[str, typer.Argument(help="Name of the steering vector.")],
    direct: Annotated[
        str, typer.Option(help=r"Direction to measure, such as \[excited] or <whisper>.")
    ],
    texts: Annotated[
        Path, typer.Option(help="Texts to compare with and without it: UTF-8, one per line.")
    ],
    layer: Annotated[int, typer.Option(help="Backbone layer to measure at, from 0.")],
    folder: Annotated[
        Path | None, typer.Option(help="Output folder (default: steering in the data folder).")
    ] = None,
    *,
    options: common.ModelOptions,
) -> None:
    """Measure a direction as a steering vector, which applies it without tags in the text.

    The vector is the mean difference of a layer's hidden states between texts with and without the
    direction. Apply it by `rt-drama3 speak --steer NAME=STRENGTH`; it fits only this model.
    """
    lines = _lines(texts)
    from rt_drama3.scenes.steering import SteeringStore

    with options.load() as loaded:
        store = loaded.steering if folder is None else SteeringStore(loaded.model, folder)
        target = store.path(name)
        measured = store.measure(loaded.prompts, name, direct, lines, layer)
    measured.save(target)
    common.show(
        f"wrote {target}: {direct} at layer {layer} from {len(lines)} texts, norm "
        f"{measured.vector.norm():.3f}"
    )


def _lines(path: Path) -> list[str]:
    """Returns the lines of a file that are not blank."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_TEXTS + 1)
        if len(data) > LARGEST_TEXTS:
            raise RequestError(
                f"{path} is over the limit of {LARGEST_TEXTS >> 20} MiB; use fewer texts."
            )
        found = [line.strip() for line in decode_utf8(data).splitlines()]
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}; check the path.") from error
    except ValueError as error:
        raise RequestError(f"{path} {error}.") from error
    return [line for line in found if line]
