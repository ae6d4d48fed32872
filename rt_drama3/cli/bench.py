"""``rt-drama3 bench``: the commands of the distribution rt-drama3-bench, where it is installed.

This is the only place of the product that knows the benchmark harness.
"""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from rt_drama3.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Adds ``bench``: the commands themselves, or one that reports what to install."""
    if importlib.util.find_spec("rt_drama3_bench") is None:
        anything = {"allow_extra_args": True, "ignore_unknown_options": True}
        app.command("bench", context_settings=anything, add_help_option=False)(_not_installed)
        return
    from rt_drama3_bench.cli import bench_app

    app.add_typer(bench_app, name="bench")


def _not_installed(
    arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Measure latency; needs rt-drama3-bench."""
    raise ConfigError(
        "rt-drama3 bench needs rt-drama3-bench: pip install rt-drama3-bench, or "
        "pip install -e latency in a clone."
    )
