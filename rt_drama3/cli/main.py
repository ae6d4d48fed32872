"""The command line ``rt-drama3``; each command group has a file of its own.

Heavy imports wait until a command runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from rt_drama3 import __version__
from rt_drama3.cli import bench, listening, sinks
from rt_drama3.cli.common import console, show, show_error
from rt_drama3.cli.doctor import doctor
from rt_drama3.cli.model import model_app
from rt_drama3.cli.prepare import prepare
from rt_drama3.cli.serve import serve
from rt_drama3.cli.speak import speak
from rt_drama3.cli.voice import voice_app
from rt_drama3.errors import PipeClosed, RtDrama3Error
from rt_drama3.system.text_io import escape_unprintable

app = typer.Typer(
    name="rt-drama3",
    help="Realtime, self-hosted text to speech with Fish Audio Drama 3.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(speak)
app.command()(doctor)
model_app.command()(prepare)
app.add_typer(model_app, name="model")
app.add_typer(voice_app, name="voice")
app.command()(serve)
bench.register(app)
sinks.register(app)
listening.register(app)


def main() -> None:
    """Runs the command line; an expected error is one sentence and an exit code, not a traceback.

    The code is 1, 141 if the only failure is that the reader of a pipe has exited, and 130 after
    Ctrl-C.
    """
    escape_unprintable()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        app()
    except PipeClosed as error:  # shells report 128 + SIGPIPE for this
        show(str(error))
        sys.exit(141)
    except RtDrama3Error as error:
        show_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"rt-drama3 {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


if __name__ == "__main__":
    main()
