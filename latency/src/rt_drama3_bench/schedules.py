"""When requests are due: fixed before the run, so that a slow server cannot slow its own test down.

A client that waits for an answer before it asks again leaves out just the requests that would have
been slow (coordinated omission). Here every request has its moment; what it waits for counts from
there, whether the client or the server is late.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

TEXTS = (
    "Of course.",
    "Let me look that up for you.",
    "Thank you for calling. Your order has been shipped and should arrive on Monday.",
    "I can move your appointment to Thursday at ten, or to Friday in the afternoon. Which one "
    "would you like?",
    "There are three ways to get there. The train is the fastest. The bus is the cheapest. And if "
    "you like to walk, the path by the river takes about half an hour.",
)


@dataclass(frozen=True)
class ScheduledRequest:
    """One request.

    Attributes:
        at: seconds since the beginning.
        caller: number of the caller; its next request ends the one before, as a barge-in.
        text: to be spoken.
        cut_after: seconds of audio that are heard before the listener interrupts; None: none does.
    """

    at: float
    caller: int
    text: str
    cut_after: float | None = None


def fixed(rate: float, seconds: float, texts: Sequence[str] = TEXTS) -> list[ScheduledRequest]:
    """Evenly spaced requests, each from a caller of its own."""
    count = int(rate * seconds + 1e-9)
    return [
        ScheduledRequest(number / rate, number, texts[number % len(texts)])
        for number in range(count)
    ]


def poisson(
    rate: float, seconds: float, seed: int = 0, texts: Sequence[str] = TEXTS
) -> list[ScheduledRequest]:
    """Independent requests with a mean rate per second."""
    draw = random.Random(seed)
    found: list[ScheduledRequest] = []
    at = draw.expovariate(rate)
    while at < seconds:
        found.append(ScheduledRequest(at, len(found), draw.choice(texts)))
        at += draw.expovariate(rate)
    return found


def turns(
    callers: int,
    seconds: float,
    seed: int = 0,
    barge_in: float = 0.3,
    pause: tuple[float, float] = (1.0, 4.0),
    texts: Sequence[str] = TEXTS,
) -> list[ScheduledRequest]:
    """Conversations: every caller listens to an answer, or interrupts it, then speaks, repeatedly.

    Args:
        callers: at the same time; they begin within the first pause.
        seconds: in which turns begin.
        seed: random seed.
        barge_in: share of the answers that are interrupted, somewhere between a tenth and all of
            what they should last.
        pause: seconds that a caller speaks, evenly distributed.
        texts: of the answers.
    """
    found: list[ScheduledRequest] = []
    for caller in range(callers):
        draw = random.Random(f"{seed}/{caller}")
        at = draw.uniform(0, pause[0])
        while at < seconds:
            text = draw.choice(texts)
            cut = draw.uniform(0.1, 1.0) * lasts(text) if draw.random() < barge_in else None
            found.append(ScheduledRequest(at, caller, text, cut))
            at += (lasts(text) if cut is None else cut) + draw.uniform(*pause)
    return sorted(found, key=lambda due: (due.at, due.caller))


def lasts(text: str) -> float:
    """Approximate seconds of speech: fifteen characters a second."""
    return 0.4 + len(text) / 15
