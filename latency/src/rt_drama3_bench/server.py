"""What the server adds from PCM in the engine to bytes at a client.

Run it with ``python -m rt_drama3_bench.server``.

The server runs here, the client in another process on the same machine; both read the same
monotonic clock, so that no time is guessed. Beside that it measures how late the event loop's
timers fire (the longest is the longest it was blocked, be it by other threads and processes), how
long it computed without looking at them, how fast a barge-in is acknowledged, and whether the next
first audio is as fast as on a server where nobody spoke: of a start that follows the ``cancelled``,
and of one that follows the cancel at once, which has to wait for the frame that is being made.

    python -m rt_drama3_bench.server --streams 2 --rate 16000 --json server.json
    python -m rt_drama3_bench.server --most 8     # as many streams as stay realtime, up to 8
    python -m rt_drama3_bench.server --large 12   # somebody posts references of 12 MB meanwhile
    python -m rt_drama3_bench.server --check      # exit code 1 when a figure misses its target
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgpack
from websockets.asyncio.client import ClientConnection, connect

import rt_drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.protocol import NativeUtterance, StampsLike
from rt_drama3.server.app import create_app
from rt_drama3.server.config import ServerConfig
from rt_drama3.ws_server import Server, settle
from rt_drama3_bench import beside
from rt_drama3_bench.environment import environment

TEXT = "Thank you for calling. Your order has been shipped and should arrive on Monday. "
TICK = 0.001  # seconds between timers whose lateness is measured
ADDED_ONE, ADDED_MANY, BLOCKED = 2.0, 5.0, 5.0  # milliseconds, the promises
AS_FAST = 1.1  # times the first audio of an idle server, after a barge-in
TURNS = 12  # barge-ins, and first audios of an idle server
QUIET = 0.3  # seconds after which a server counts as idle
Key = tuple[str, int]
Came = tuple[str, int, float, float]  # id, seq, when, seconds of audio
Sent = tuple[float, bytes]  # when, and the message


@dataclass(frozen=True)
class Figure:
    """Milliseconds of one kind.

    Attributes:
        name: what was measured.
        count: how often.
        p50, p95, longest: milliseconds.
        target: of the one that ``judged_by`` names; None where there is none.
        judged_by: p50, p95 or longest.
        samples: all of them.
    """

    name: str
    count: int
    p50: float
    p95: float
    longest: float
    target: float | None = None
    judged_by: str = "p95"
    samples: tuple[float, ...] = field(default=(), repr=False)

    @property
    def met(self) -> bool:
        judged: float = getattr(self, self.judged_by)
        return self.target is None or judged <= self.target


def figure(
    name: str, values: Sequence[float], target: float | None = None, judged_by: str = "p95"
) -> Figure:
    """Sums milliseconds up."""
    ranked = sorted(values)
    p95 = ranked[min(len(ranked) - 1, int(0.95 * len(ranked)))]
    middle, longest = statistics.median(ranked), ranked[-1]
    kept = tuple(values)
    return Figure(name, len(ranked), middle, p95, longest, target, judged_by, kept)


@dataclass(frozen=True)
class Measured:
    """What one run found.

    Attributes:
        figures: see the module docstring.
        mode: of the step that was in force.
        streams: that spoke at the same time.
        messages: of one utterance as they came, for a server that only repeats them.
    """

    figures: list[Figure]
    mode: str
    streams: int
    messages: list[Sent]


class Watch:
    """Notes when the PCM of every message was ready, and how late timers fire."""

    def __init__(self) -> None:
        self.decoded: dict[Key, float] = {}
        self.late: list[float] = []
        self.busy: list[float] = []
        self._real = real = NativeUtterance.audio

        def audio(
            utterance: NativeUtterance, data: bytes, samples: int, stamps: StampsLike | None = None
        ) -> list[bytes]:
            if data and stamps is not None:
                self.decoded[utterance.id, utterance.sent.messages] = stamps.decoded
            return real(utterance, data, samples, stamps)

        NativeUtterance.audio = audio  # type: ignore[assignment, method-assign]

    def end(self) -> None:
        """Looks no longer."""
        NativeUtterance.audio = self._real  # type: ignore[method-assign]

    async def tick(self) -> None:
        """Measures for ever."""
        while True:
            due, worked = time.monotonic() + TICK, time.thread_time()
            await asyncio.sleep(TICK)
            self.late.append(1e3 * (time.monotonic() - due))
            self.busy.append(1e3 * (time.thread_time() - worked))


# The client's process.


def client(port: int, streams: int, rate: int, most: bool, large: int, pipe: Connection) -> None:
    """Speaks, and tells when each message came."""
    pipe.send(asyncio.run(_client(port, streams, rate, most, large)))


async def _client(port: int, streams: int, rate: int, most: bool, large: int) -> dict[str, Any]:
    url = f"ws://127.0.0.1:{port}/v1/stream"
    connections = [await connect(url, proxy=None) for _ in range(streams)]
    messages: list[Sent] = []
    await _speak(connections[0], rate, messages)
    posting = asyncio.create_task(_post(url, large)) if large else None
    came: list[Came] = []
    spoke = 0
    for count in range(1, streams + 1) if most else [streams]:
        parts = await asyncio.gather(*(_speak(c, rate) for c in connections[:count]))
        if most and count > 1 and not all(map(_realtime, parts)):
            break
        came, spoke = [message for part in parts for message in part], count
    if posting is not None:
        posting.cancel()
    idle, cancels, after, at_once = [], [], [], []
    for _ in range(TURNS):
        await asyncio.sleep(QUIET)
        idle.append(await _first_audio(connections[0], rate))
        cancels.append(await _barge_in(connections[0]))
    for _ in range(TURNS):
        await asyncio.sleep(QUIET)
        await _first_audio(connections[0], rate)
        cancels.append(await _barge_in(connections[0]))
        after.append(await _first_audio(connections[0], rate))
        await connections[0].send(msgpack.packb({"type": "cancel"}))
        at_once.append(await _first_audio(connections[0], rate))
        await _barge_in(connections[0])
    for connection in connections:
        await connection.close()
    firsts = {"idle": idle, "after": after, "at_once": at_once}
    return {
        **{"came": came, "streams": spoke, "cancels": cancels, "messages": messages},
        **firsts,
    }


async def _speak(
    socket: ClientConnection, rate: int, messages: list[Sent] | None = None
) -> list[Came]:
    start = {"type": "start", "text": 8 * TEXT, "final": True, "sample_rate": rate, "seed": 1}
    await socket.send(msgpack.packb(start))
    came = []
    while True:
        data = await socket.recv()
        now = time.monotonic()
        message = msgpack.unpackb(data)
        if messages is not None and isinstance(data, bytes):
            messages.append((now, data))
        if message["type"] == "audio":
            came.append((message["id"], message["seq"], now, message["samples"] / rate))
        elif message["type"] == "done":
            return came
        _check(message)


def _realtime(came: list[Came]) -> bool:
    """Whether a listener who plays at once never waits for audio."""
    if not came:
        return False
    ends = came[0][2]
    for _, _, now, seconds in came:
        if now > ends and ends > came[0][2]:
            return False
        ends += seconds
    return True


async def _first_audio(socket: ClientConnection, rate: int) -> float:
    """Milliseconds from the start that is sent to the first audio of that utterance."""
    start = {"type": "start", "text": TEXT, "final": True, "sample_rate": rate, "seed": 1}
    await socket.send(msgpack.packb(start))
    began, mine = time.monotonic(), None
    while True:
        message = msgpack.unpackb(await socket.recv())
        if message["type"] == "ready":
            mine = message["id"]
        elif message["type"] == "audio" and message["id"] == mine:
            return 1e3 * (time.monotonic() - began)
        _check(message)


def _check(message: dict[str, Any]) -> None:
    """Ends this process where the server could not speak: there is nothing to measure."""
    if message["type"] == "error":
        raise RuntimeError(f"the server refused: {message.get('code')}: {message.get('message')}")


async def _barge_in(socket: ClientConnection) -> float:
    """Milliseconds from the cancel that is sent to its answer."""
    await socket.send(msgpack.packb({"type": "cancel"}))
    began = time.monotonic()
    while msgpack.unpackb(await socket.recv())["type"] != "cancelled":
        pass
    return 1e3 * (time.monotonic() - began)


async def _post(url: str, megabytes: int) -> None:
    """Sends starts with a large reference for ever; each is refused, since it is no audio."""
    reference = {"text": "Hello.", "audio": bytes(megabytes << 20)}
    start = {"type": "start", "text": "Hi.", "final": True, "references": [reference]}
    message = msgpack.packb(start)
    async with connect(url, proxy=None) as socket:
        while True:
            await socket.send(message)
            await socket.recv()


# The server's process.


def measure(
    model: str, step_mode: str, streams: int, rate: int, most: bool = False, large: int = 0
) -> Measured:
    """Runs server and client.

    Args:
        model, step_mode: of the server.
        streams: that speak at the same time.
        rate: sample rate asked for, Hz.
        most: find out how many stay realtime, up to ``streams``.
        large: megabytes of a reference that is posted meanwhile; 0 is none.
    """
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
        process, pipe = beside.start(client, server.port, streams, rate, most, large)
        try:
            found = beside.told(pipe)
        finally:
            process.join(10)
            ticking.cancel()
            server.stop()
            serving.join()
            watch.end()
        mode, frame = drama.engine.step_mode, 1e3 * drama.engine.costs.step_seconds(1)
        drama.close()
    added = [
        1e3 * (at - watch.decoded[name, seq])
        for name, seq, at, _ in found["came"]
        if (name, seq) in watch.decoded
    ]
    usual = statistics.median(found["idle"])
    return Measured(
        [
            figure("added", added, ADDED_ONE if found["streams"] == 1 else ADDED_MANY),
            figure("event loop late", watch.late, BLOCKED, "longest"),
            figure("event loop computing", watch.busy, BLOCKED, "longest"),
            figure("barge-in to cancelled", found["cancels"], frame + 2),
            figure("first audio, idle", found["idle"]),
            figure("  after cancelled", found["after"], AS_FAST * usual, "p50"),
            figure("  at once", found["at_once"], AS_FAST * usual + frame + 2, "p50"),
        ],
        mode,
        found["streams"],
        found["messages"],
    )


def main() -> int:
    """Runs everything; see the module docstring."""
    parser = argparse.ArgumentParser(description="What the server adds.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--step-mode", default="compile")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--most", type=int, help="find out how many stay realtime, up to so many")
    parser.add_argument("--large", type=int, default=0, help="megabytes posted meanwhile")
    parser.add_argument("--rate", type=int, default=16_000, help="sample rate asked for, Hz")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    options = parser.parse_args()
    found = measure(
        options.model,
        options.step_mode,
        options.most or options.streams,
        options.rate,
        options.most is not None,
        options.large,
    )
    figures, mode, streams = found.figures, found.mode, found.streams
    sys.stdout.write(f"{streams} stream(s) at {options.rate} Hz, step {mode}\n")
    for one in figures:
        target = "" if one.target is None else f" (<= {one.target:.1f})"
        sys.stdout.write(
            f"{'ok  ' if one.met else 'MISS'} {one.name:22} p50 {one.p50:7.2f} ms   "
            f"p95 {one.p95:7.2f} ms   longest {one.longest:7.2f} ms   n {one.count}{target}\n"
        )
    idle, *others = (one.p50 for one in figures if "audio" in one.name or one.name[0] == " ")
    ratios = " and ".join(f"{other / idle:.2f}" for other in others)
    sys.stdout.write(f"first audio after a barge-in against an idle server: {ratios}\n")
    if options.json:
        report = {
            "environment": environment(),
            "streams": streams,
            "large": options.large,
            "rate": options.rate,
            "step_mode": mode,
            "figures": [asdict(one) for one in figures],
        }
        options.json.write_text(json.dumps(report, indent=1))
    return 0 if all(one.met for one in figures) or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
