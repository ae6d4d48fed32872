"""The best of several takes for an HTTP client, made beside whatever else the engine speaks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rt_drama3.best_of import Chosen, duration_sanity, rank
from rt_drama3.speech import Speech, SpeechRequest, SpeechSummary

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3
    from rt_drama3.engine import Engine

InThread = Callable[..., Awaitable[Any]]


async def choose(
    drama: Drama3, engine: Engine, request: SpeechRequest, count: int, in_thread: InThread
) -> Chosen:
    """Makes takes as codes, in half of the engine's places at most, and keeps the best.

    Args:
        drama, engine: that speak.
        request: whose seed is that of the first take.
        count: takes.
        in_thread: runs what takes long.

    Raises:
        RtDrama3Error: one of them failed; the others are stopped, as they are when this is.
    """
    started, most = time.monotonic(), max(1, engine.config.max_streams // 2)
    seed = secrets.randbits(32) if request.seed is None else request.seed
    opened: list[Speech] = []
    try:
        for number in range(count):
            if number >= most:
                await opened[number - most].summary()
            wanted = replace(request, seed=seed + number, audio=False)
            opened.append(await in_thread(engine.open, wanted))
        found = [await speech.summary() for speech in opened]
    finally:
        for speech in opened:
            speech.cancel()

    from rt_drama3.drama3 import Take  # not with this module: it brings torch

    def best(summaries: list[SpeechSummary]) -> Take:
        takes = [
            Take(s.text, s.codes, drama.decode(s.codes), s.sample_rate, s.seed, s.complete)
            for s in summaries
        ]
        return rank(takes, duration_sanity).best

    return Chosen(await in_thread(best, found), started)
