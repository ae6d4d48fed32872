"""Options that several commands share: which checkpoint is loaded, and how."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

Model: TypeAlias = Annotated[
    str, typer.Option(help="nano, a checkpoint folder, or a hub id (fishaudio/drama-3).")
]
Revision: TypeAlias = Annotated[str | None, typer.Option(help="Revision of a hub id.")]
Device: TypeAlias = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Dtype: TypeAlias = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16; default: what fits.")
]
Threads: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="CPU threads; default: what is fastest.")
]
