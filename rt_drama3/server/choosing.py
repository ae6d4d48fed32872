"""The best of several takes for an HTTP client, made beside whatever else the engine speaks."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rt_drama3.engine.speech import Speech, SpeechRequest, SpeechSummary
from rt_drama3.scenes.best_of import Chosen, decoded, duration_sanity, rank

if TYPE_CHECKING:
    from rt_drama3.drama3 import Drama3, Take
    from rt_drama3.engine.engine import Engine

InThread = Callable[..., Awaitable[Any]]


async def choose(
    drama: Drama3,
    engine: Engine,
    request: SpeechRequest,
    count: int,
    in_thread: InThread,
    in_turn: InThread,
) -> Chosen:
    """Makes takes as codes, in half of the engine's places at most, and keeps the best.

    Args:
        drama, engine: that speak.
        request: whose seed is that of the first take.
        count: takes.
        in_thread: runs what takes longer than the event loop may be held.
        in_turn: runs what takes seconds, one at a time: decoding all takes of a request does, and
            must not keep the threads that open everybody's streams.

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
            opened.append(await _open(engine, wanted, in_thread))
        found = [await speech.summary() for speech in opened]
    finally:
        for speech in opened:
            speech.cancel()

    def best(summaries: list[SpeechSummary]) -> Take:
        return rank([decoded(drama, summary) for summary in summaries], duration_sanity).best

    return Chosen(await in_turn(best, found), started)


async def _open(engine: Engine, wanted: SpeechRequest, in_thread: InThread) -> Speech:
    """Opens a stream; who is cancelled meanwhile leaves none behind."""
    opening: asyncio.Future[Speech] = asyncio.ensure_future(in_thread(engine.open, wanted))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_abandon)
        raise


def _abandon(opening: asyncio.Future[Speech]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().cancel()
