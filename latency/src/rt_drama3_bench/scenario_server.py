"""Scenario ``server``: what our server adds to the engine, beside a bare echo of the same bytes."""

from __future__ import annotations

import time

import numpy as np

from rt_drama3_bench import echo, server
from rt_drama3_bench.result import Result, Verdict


def serve(
    result: Result,
    model: str = "nano",
    step_mode: str = "compile",
    streams: int = 1,
    rate: int = 16_000,
    large: int = 0,
) -> None:
    """Runs server and client in two processes, then the echo in two others.

    Args:
        result: takes what is found.
        model, step_mode: of the server.
        streams: that speak at the same time.
        rate: asked for, Hz.
        large: megabytes of a reference that somebody posts meanwhile; 0: nobody does.
    """
    started = time.monotonic()
    found = server.measure(model, step_mode, streams, rate, large=large)
    result.facts["step"] = found.mode
    result.facts["streams"] = found.streams
    result.facts["server and client, seconds"] = time.monotonic() - started
    for figure in found.figures:
        name = _NAMES.get(figure.name, figure.name)
        result.add(name, "ms", figure.samples)
        if figure.target is not None:
            value: float = getattr(figure, figure.judged_by)
            judged = f"{name}, {figure.judged_by}, ms"
            result.verdicts.append(
                Verdict(judged, value, figure.target, detail=f"n {figure.count}")
            )
    floor = echo.measure(found.messages)
    result.add("bare echo of the same messages", "ms", floor)
    added = next(f for f in found.figures if f.name == "added")
    if added.samples and floor:
        own = added.p50 - float(np.median(floor))
        result.facts["added beyond a bare echo, ms"] = own


_NAMES = {
    "added": "added from PCM to the client",
    "barge-in to cancelled": "barge in to its answer",
    "first audio, idle": "first audio of an idle server",
    "  after cancelled": "first audio after a barge-in was answered",
    "  at once": "first audio of a start right behind a cancel",
}
