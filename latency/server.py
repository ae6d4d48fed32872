"""What the server adds from PCM in the engine to bytes at a client: ``python -m latency.server``.

The server runs here, the client in another process on the same machine; both read the same
monotonic clock, so that no time is guessed. Beside that it measures how late the event loop's
timers fire (the longest is the longest it was blocked, be it by other threads and processes), how
long it computed without looking at them, and how fast a barge-in is acknowledged.

    python -m latency.server --streams 2 --rate 16000 --json server.json
    python -m latency.server --check      # exit code 1 when a figure misses its target
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgpack
from websockets.asyncio.client import ClientConnection, connect

import rt_drama3
from latency.environment import environment
from rt_drama3.engine_config import EngineConfig
from rt_drama3.protocol import NativeUtterance, StampsLike
from rt_drama3.server import Server, ServerConfig, create_app
from rt_drama3.server.run import settle

TEXT = "Thank you for calling. Your order has been shipped and should arrive on Monday. "
TICK = 0.001  # seconds between timers whose lateness is measured
ADDED_ONE, ADDED_MANY, BLOCKED = 2.0, 5.0, 5.0  # milliseconds, the promises
Key = tuple[str, int]


@dataclass(frozen=True)
class Figure:
    """Milliseconds of one kind.

    Attributes:
        name: what was measured.
        count: how often.
        p50, p95, longest: milliseconds.
        target: of ``p95``, or of ``longest`` for the event loop; None where there is none.
    """

    name: str
    count: int
    p50: float
    p95: float
    longest: float
    target: float | None = None
    judged_by_longest: bool = False

    @property
    def met(self) -> bool:
        judged = self.longest if self.judged_by_longest else self.p95
        return self.target is None or judged <= self.target


def figure(name: str, values: Sequence[float], target: float | None, longest: bool) -> Figure:
    """Sums milliseconds up."""
    ranked = sorted(values)
    p95 = ranked[min(len(ranked) - 1, int(0.95 * len(ranked)))]
    return Figure(name, len(ranked), statistics.median(ranked), p95, ranked[-1], target, longest)


class Watch:
    """Notes when the PCM of every message was ready, and how late timers fire."""

    def __init__(self) -> None:
        self.decoded: dict[Key, float] = {}
        self.late: list[float] = []
        self.busy: list[float] = []
        real = NativeUtterance.audio

        def audio(
            utterance: NativeUtterance, data: bytes, samples: int, stamps: StampsLike | None = None
        ) -> list[bytes]:
            if data and stamps is not None:
                self.decoded[utterance.id, utterance.sent.messages] = stamps.decoded
            return real(utterance, data, samples, stamps)

        NativeUtterance.audio = audio  # type: ignore[method-assign]

    async def tick(self) -> None:
        """Measures for ever."""
        while True:
            due, worked = time.monotonic() + TICK, time.thread_time()
            await asyncio.sleep(TICK)
            self.late.append(1e3 * (time.monotonic() - due))
            self.busy.append(1e3 * (time.thread_time() - worked))


# The client's process.


def client(port: int, streams: int, rate: int, pipe: Connection) -> None:
    """Speaks, and tells when each message came."""
    pipe.send(asyncio.run(_client(port, streams, rate)))


async def _client(port: int, streams: int, rate: int) -> dict[str, Any]:
    url = f"ws://127.0.0.1:{port}/v1/stream"
    async with connect(url, proxy=None) as warm:
        await _speak(warm, rate)
    came: list[tuple[str, int, float]] = []
    connections = [await connect(url, proxy=None) for _ in range(streams)]
    for part in await asyncio.gather(*(_speak(c, rate) for c in connections)):
        came += part
    cancels = [await _barge_in(connections[0], rate) for _ in range(10)]
    for connection in connections:
        await connection.close()
    return {"came": came, "cancels": cancels}


async def _speak(socket: ClientConnection, rate: int) -> list[tuple[str, int, float]]:
    start = {"type": "start", "text": 8 * TEXT, "final": True, "sample_rate": rate, "seed": 1}
    await socket.send(msgpack.packb(start))
    came = []
    while True:
        data = await socket.recv()
        now = time.monotonic()
        message = msgpack.unpackb(data)
        if message["type"] == "audio":
            came.append((message["id"], message["seq"], now))
        elif message["type"] in ("done", "error"):
            return came


async def _barge_in(socket: ClientConnection, rate: int) -> float:
    start = {"type": "start", "text": TEXT, "final": True, "sample_rate": rate}
    await socket.send(msgpack.packb(start))
    while msgpack.unpackb(await socket.recv())["type"] != "audio":
        pass
    await socket.send(msgpack.packb({"type": "cancel"}))
    began = time.monotonic()
    while msgpack.unpackb(await socket.recv())["type"] != "cancelled":
        pass
    return 1e3 * (time.monotonic() - began)


# The server's process.


def measure(model: str, step_mode: str, streams: int, rate: int) -> tuple[list[Figure], str]:
    """Runs server and client; returns the figures and the step mode that was in force."""
    watch = Watch()
    engine = EngineConfig(step_mode=step_mode, max_streams=max(streams, 1))
    drama = rt_drama3.load(model, engine=engine)
    drama.engine.wait_until_warm()
    with tempfile.TemporaryDirectory() as folder:
        config = ServerConfig(port=0, data_folder=folder)
        server = Server(create_app(drama, drama.engine, config), config)
        settle()  # as `rt-drama3 serve` does
        serving = threading.Thread(target=server.run)
        serving.start()
        while server.loop is None:
            time.sleep(0.01)
        ticking = asyncio.run_coroutine_threadsafe(watch.tick(), server.loop)
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=client, args=(server.port, streams, rate, there))
        process.start()
        try:
            told = here.recv()
        finally:
            process.join(10)
            ticking.cancel()
            server.stop()
            serving.join()
        mode, frame = drama.engine.step_mode, 1e3 * drama.engine.costs.step_seconds(1)
        drama.close()
    added = [
        1e3 * (at - watch.decoded[name, seq])
        for name, seq, at in told["came"]
        if (name, seq) in watch.decoded
    ]
    return [
        figure("added", added, ADDED_ONE if streams == 1 else ADDED_MANY, False),
        figure("event loop late", watch.late, BLOCKED, True),
        figure("event loop computing", watch.busy, BLOCKED, True),
        figure("barge-in to cancelled", told["cancels"], frame + 2, False),
    ], mode


def main() -> int:
    """Runs everything; see the module docstring."""
    parser = argparse.ArgumentParser(description="What the server adds.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--step-mode", default="compile")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rate", type=int, default=16_000, help="sample rate asked for, Hz")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    options = parser.parse_args()
    figures, mode = measure(options.model, options.step_mode, options.streams, options.rate)
    sys.stdout.write(f"{options.streams} stream(s) at {options.rate} Hz, step {mode}\n")
    for one in figures:
        target = "" if one.target is None else f" (<= {one.target:.1f})"
        sys.stdout.write(
            f"{'ok  ' if one.met else 'MISS'} {one.name:22} p50 {one.p50:7.2f} ms   "
            f"p95 {one.p95:7.2f} ms   longest {one.longest:7.2f} ms   n {one.count}{target}\n"
        )
    if options.json:
        report = {
            "environment": environment(),
            "streams": options.streams,
            "rate": options.rate,
            "step_mode": mode,
            "figures": [asdict(one) for one in figures],
        }
        options.json.write_text(json.dumps(report, indent=1))
    return 0 if all(one.met for one in figures) or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
