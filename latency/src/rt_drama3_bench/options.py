"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Json: TypeAlias = Annotated[
    Path | None,
    typer.Option("--json", help="Write all samples and the environment to this file."),
]
Html: TypeAlias = Annotated[
    Path | None, typer.Option("--html", help="Write a self-contained HTML report to this file.")
]
Check: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--check/--no-check", help="Exit with code 1 when a judged figure misses its limit."
    ),
]
Timeout: TypeAlias = Annotated[
    float,
    typer.Option(min=0.1, help="Seconds for an utterance; one that takes longer fails."),
]
Model: TypeAlias = Annotated[
    str, typer.Option(help="nano, a checkpoint folder or file, or a hub id (fishaudio/drama-3).")
]
Device: TypeAlias = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Step: TypeAlias = Annotated[
    str, typer.Option("--step-mode", help="compile, eager, auto or cudagraph.")
]
ServedStep: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--step-mode", help="Step mode of the started server: auto, compile, eager or cudagraph."
    ),
]
Times: TypeAlias = Annotated[int, typer.Option(min=1, help="Utterances to measure.")]
BargeIns: TypeAlias = Annotated[int, typer.Option(min=0, help="Utterances to interrupt.")]
Rate: TypeAlias = Annotated[int, typer.Option(min=0, help="Sample rate to request, Hz.")]
Channels: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Channels to assume where the answer states none.")
]
PeerRate: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0, help="Sample rate to request, and to assume where the answer states none, Hz."
    ),
]
Eager: TypeAlias = Annotated[
    bool, typer.Option("--eager", help="Skip the compiled variants; nothing is built.")
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Random seed of the schedule.")]
Url: TypeAlias = Annotated[
    str | None,
    typer.Option(help="A running server, such as http://host:port; default: start one."),
]
Dialect: TypeAlias = Annotated[str, typer.Option(help="native, fish-live, fish-http or openai.")]
KeyEnv: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Environment variable that holds the API key; default: RT_DRAMA3_CLIENT_API_KEY, "
        "FISH_API_KEY or OPENAI_API_KEY."
    ),
]
PeerModel: TypeAlias = Annotated[str | None, typer.Option(help="Model, as the server names it.")]
Voice: TypeAlias = Annotated[str | None, typer.Option(help="Voice, as the server names it.")]
Setting: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", help="Extra field of the request, KEY=JSON; repeatable."),
]
