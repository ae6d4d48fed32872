"""What the long runs of clients share: what a process holds meanwhile, and that it stays the same.

Server and client are one process here, so what it holds is the sum of both sides.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.integrations.conftest import run
from tests.integrations.tools import SENTENCES, Footprint, Watched, assert_same, footprint
from tests.small import until

UTTERANCES = int(os.environ.get("RT_DRAMA3_UTTERANCES", "7"))
RATE = 16_000
WARM = 4  # utterances after which everything that is made once has been made
EVERY = max(1, UTTERANCES // 40)  # utterances between looks, which cost some time each
MOST_GROWTH = 12 << 20  # bytes, of caches and heaps that settle

TEXTS = [SENTENCES[n % len(SENTENCES)] for n in range(UTTERANCES)]


class Log:
    """Footprints while a client speaks; ``heard`` is what came of each text."""

    def __init__(self, server: Watched) -> None:
        self._server = server
        self.heard: list[bytes] = []
        self.marks: list[Footprint] = []
        self.began = time.monotonic()

    def add(self, pcm: bytes, tasks: int = 0) -> None:
        self.heard.append(pcm)
        if len(self.heard) >= WARM and len(self.heard) % EVERY == 0:
            self.marks.append(footprint(self._server.place.port, tasks))


def task_count() -> int:
    return len(asyncio.all_tasks())


def left_alone(server: Watched) -> None:
    """Waits for the end of idle connections of the clients' pools, which end with their clients."""
    until(lambda: footprint(server.place.port).server_sockets == 0, "closing the sockets")


def flat(marks: Sequence[Footprint]) -> None:
    """Nothing grows from the first third of the marks to the last one."""
    third = max(1, len(marks) // 3)
    for name in ("threads", "tasks", "client_sockets", "server_sockets"):
        early, late = (
            max(getattr(mark, name) for mark in part) for part in (marks[:third], marks[-third:])
        )
        assert late <= early + 1, f"{name}: {[getattr(mark, name) for mark in marks]}"
    grown = min(m.bytes for m in marks[-third:]) - max(m.bytes for m in marks[:third])
    assert grown <= MOST_GROWTH, f"memory grew by {grown >> 10} KiB"


def report(name: str, marks: Sequence[Footprint], seconds: float) -> None:
    """Adds the figures to the file that was asked for."""
    path = os.environ.get("RT_DRAMA3_FIGURES")
    if path:
        figures: dict[str, Any] = {"client": name, "utterances": UTTERANCES, "seconds": seconds}
        figures |= {"first": asdict(marks[0]), "last": asdict(marks[-1])}
        with Path(path).open("a") as file:
            file.write(json.dumps(figures) + "\n")


def check_plugin(
    name: str,
    server: Watched,
    speak: Callable[[Log], Awaitable[None]],
    trimmed: Callable[[bytes, bytes], bytes] = lambda heard, expected: heard,
) -> None:
    """Every utterance of a plugin of ours is whole, all go over one connection, nothing grows.

    Args:
        name: of the plugin, for the figures.
        server: that it speaks with.
        speak: speaks ``TEXTS`` in order.
        trimmed: what was heard, the expected audio, without what a framework adds.
    """
    expected = {text: server.native(text, sample_rate=RATE) for text in SENTENCES}
    log = Log(server)

    async def work() -> None:
        await speak(log)

    run(work(), 60 + 10 * UTTERANCES)
    report(name, log.marks, time.monotonic() - log.began)
    for text, heard in zip(TEXTS, log.heard, strict=True):
        assert_same(trimmed(heard, expected[text]), expected[text])
    flat(log.marks)
    assert max(mark.server_sockets for mark in log.marks) == 1
    left_alone(server)
