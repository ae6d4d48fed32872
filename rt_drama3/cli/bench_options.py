"""Options that several scenarios of ``rt-drama3 bench`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Json: TypeAlias = Annotated[
    Path | None, typer.Option("--json", help="Write everything here, with the environment.")
]
Html: TypeAlias = Annotated[
    Path | None, typer.Option("--html", help="Draw a report: one page, nothing to fetch.")
]
Check: TypeAlias = Annotated[
    bool, typer.Option("--check", help="Exit code 1 when a judged figure misses its limit.")
]
Step: TypeAlias = Annotated[
    str, typer.Option("--step-mode", help="compile, eager, auto or cudagraph.")
]
ServedStep: TypeAlias = Annotated[
    str | None, typer.Option("--step-mode", help="Of the server: auto, compile, eager, cudagraph.")
]
Times: TypeAlias = Annotated[int, typer.Option(min=1, help="Utterances that are measured.")]
BargeIns: TypeAlias = Annotated[int, typer.Option(min=0, help="Utterances that are interrupted.")]
Rate: TypeAlias = Annotated[int, typer.Option(min=0, help="Sample rate to ask for, Hz.")]
Eager: TypeAlias = Annotated[
    bool, typer.Option("--eager", help="Leave the compiled side out: nothing is built.")
]
Url: TypeAlias = Annotated[
    str | None, typer.Option(help="A server that runs already, such as http://host:port.")
]
Dialect: TypeAlias = Annotated[str, typer.Option(help="native, fish-live, fish-http or openai.")]
KeyEnv: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Environment variable with the key; default: RT_DRAMA3_CLIENT_API_KEY, FISH_API_KEY "
        "or OPENAI_API_KEY."
    ),
]
PeerModel: TypeAlias = Annotated[str | None, typer.Option(help="As the server names it.")]
Voice: TypeAlias = Annotated[str | None, typer.Option(help="As the server names it.")]
Setting: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", help="A further field of the request, KEY=JSON; repeatable."),
]
