"""Scenario ``server``: what our server adds to the engine, next to a bare echo of the same bytes.

The server runs in this process and the client in another one on the same machine; both read the
same monotonic clock, so no time is estimated. Measured is the time from PCM in the engine to bytes
at the client, how late the event loop's timers fire (the longest is the longest it was blocked,
also by other threads and processes), how long it computed without a look at them, how fast a
barge-in is acknowledged, and whether the next first audio is as fast as on an idle server: of a
start that follows the ``cancelled``, and of one that follows the cancel immediately, which has to
wait for the frame in progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from websockets.asyncio.client import ClientConnection, connect

import rt_drama3
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.config import EngineConfig
from rt_drama3.engine.engine import Engine
from rt_drama3.engine.speech import Speech, SpeechRequest
from rt_drama3.server.app import create_app
from rt_drama3.server.config import ServerConfig
from rt_drama3.ws_server import Server, settle
from rt_drama3_bench import echo, worker
from rt_drama3_bench.errors import BenchError
from rt_drama3_bench.estimates import percentile
from rt_drama3_bench.result import Result

TEXT = "Thank you for calling. Your order has been shipped and should arrive on Monday. "
TICK = 0.001  # seconds between timers whose lateness is measured
ADDED_ONE, ADDED_MANY, BLOCKED = 2.0, 5.0, 5.0  # limits, milliseconds
AS_FAST = 1.1  # limit: times the first audio of an idle server, after a barge-in
TURNS = 12  # barge-ins, and first audios of an idle server
QUIET = 0.3  # seconds after which a server counts as idle
UNTIMED_SEED = 1 << 32  # beyond the seeds of utterances whose messages are timed


class TimedEngine(Engine):
    """Notes when it was asked for each stream: the zero of the stamps on the wire.

    Attributes:
        asked: seconds of the monotonic clock, by the seed of the request.
    """

    def __init__(self, drama: Drama3, config: EngineConfig) -> None:
        super().__init__(drama.loaded, config)
        self.asked: dict[int | None, float] = {}

    def open(self, request: SpeechRequest) -> Speech:
        """See ``Engine.open``."""
        self.asked[request.seed] = time.monotonic()
        return super().open(request)


@dataclass
class LoopWatch:
    """How late the event loop's timers fire, and how long it computes between two of them.

    Attributes:
        late, busy: milliseconds.
    """

    late: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    async def tick(self) -> None:
        """Measures until it is cancelled."""
        while True:
            due, worked = time.monotonic() + TICK, time.thread_time()
            await asyncio.sleep(TICK)
            self.late.append(1e3 * (time.monotonic() - due))
            self.busy.append(1e3 * (time.thread_time() - worked))


def serve(
    result: Result,
    model: str = "nano",
    step_mode: str = "compile",
    streams: int = 1,
    rate: int = 16_000,
    large: int = 0,
    most: bool = False,
) -> None:
    """Runs server and client in two processes, then the echo in two others.

    Args:
        result: receives the measurements.
        model, step_mode: of the server.
        streams: concurrent streams.
        rate: sample rate to request, Hz.
        large: megabytes of a reference that another client posts meanwhile; 0 posts none.
        most: find out how many streams stay realtime, up to ``streams``.
    """
    watch, started = LoopWatch(), time.monotonic()
    config = EngineConfig(step_mode=step_mode, max_streams=streams)
    with (
        rt_drama3.load(model) as drama,
        contextlib.closing(TimedEngine(drama, config)) as engine,
    ):
        engine.wait_until_warm()
        result.preparation["load and warm up"] = time.monotonic() - started
        with tempfile.TemporaryDirectory() as folder:
            settings = ServerConfig(port=0, data_folder=folder)
            server = Server(create_app(drama, engine, settings), settings)
            settle()  # as `rt-drama3 serve` does
            serving = threading.Thread(target=server.run)
            serving.start()
            while server.loop is None:
                time.sleep(0.01)
            ticking = asyncio.run_coroutine_threadsafe(watch.tick(), server.loop)
            try:
                found = worker.run(_client_process, server.port, streams, rate, most, large)
            finally:
                ticking.cancel()
                server.stop()
                serving.join()
        result.facts["step"] = engine.step_mode
    result.facts["streams"] = found.streams
    added = [1e3 * (at - engine.asked[seed]) - decoded for seed, decoded, at in found.audio]
    floor = echo.measure(found.messages)
    _report(result, found, added, watch)
    result.add("bare echo of the same messages", "ms", floor)
    if added and floor:
        own = statistics.median(added) - float(np.median(floor))
        result.facts["added beyond a bare echo, ms"] = own


def _report(result: Result, found: Found, added: list[float], watch: LoopWatch) -> None:
    limit = ADDED_ONE if found.streams == 1 else ADDED_MANY
    idle, frame = statistics.median(found.idle), found.frame_ms + 2
    for name, samples, share, target in (
        ("added from PCM to the client", added, 0.95, limit),
        ("event loop late", watch.late, 1.0, BLOCKED),
        ("event loop computing", watch.busy, 1.0, BLOCKED),
        ("barge in to its answer", found.cancels, 0.95, frame),
        ("first audio of an idle server", found.idle, 0.5, None),
        ("first audio after a barge-in was answered", found.after, 0.5, AS_FAST * idle),
        ("first audio of a start right behind a cancel", found.behind, 0.5, AS_FAST * idle + frame),
    ):
        result.add(name, "ms", samples)
        if target is not None and samples:
            judged = {0.5: "p50", 0.95: "p95", 1.0: "longest"}[share]
            value = percentile(samples, share)
            result.judge(f"{name}, {judged}, ms", value, target, detail=f"n {len(samples)}")


# The client's process.


@dataclass
class Found:
    """What the client measured; times are milliseconds unless stated otherwise.

    Attributes:
        messages: of one utterance: when each came, in seconds, and its bytes.
        audio: of every message with audio: the request's seed, the stamp ``decoded``, and when it
            came, in seconds.
        streams: that spoke concurrently.
        frame_ms: mean time of a frame, as the server reports it.
        idle, after, behind: first audio on an idle server, after an answered barge-in, and of a
            start that follows a cancel immediately.
        cancels: from a cancel to its answer.
    """

    messages: list[tuple[float, bytes]] = field(default_factory=list)
    audio: list[tuple[int, float, float]] = field(default_factory=list)
    streams: int = 0
    frame_ms: float = 0.0
    idle: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    behind: list[float] = field(default_factory=list)
    cancels: list[float] = field(default_factory=list)


def _client_process(port: int, streams: int, rate: int, most: bool, large: int) -> Found:
    return asyncio.run(_client(port, streams, rate, most, large))


async def _client(port: int, streams: int, rate: int, most: bool, large: int) -> Found:
    url, found, seeds = f"ws://127.0.0.1:{port}/v1/stream", Found(), itertools.count(1)
    sockets = [await connect(url, proxy=None) for _ in range(streams)]
    await _speak(sockets[0], rate, 0, found)
    posting = asyncio.create_task(_post(url, large)) if large else None
    for count in range(1, streams + 1) if most else [streams]:
        parts = [Found() for _ in range(count)]
        speaking = zip(sockets, seeds, parts, strict=False)
        kept_up = await asyncio.gather(
            *(_speak(socket, rate, seed, part) for socket, seed, part in speaking)
        )
        if most and count > 1 and not all(kept_up):
            break
        found.audio = [message for part in parts for message in part.audio]
        found.streams, found.frame_ms = count, parts[0].frame_ms
    if posting is not None:
        posting.cancel()
    socket = sockets[0]
    for _ in range(TURNS):
        await asyncio.sleep(QUIET)
        found.idle.append(await _first_audio(socket, rate))
        found.cancels.append(await _barge_in(socket))
    for _ in range(TURNS):
        await asyncio.sleep(QUIET)
        await _first_audio(socket, rate)
        found.cancels.append(await _barge_in(socket))
        found.after.append(await _first_audio(socket, rate))
        await socket.send(msgpack.packb({"type": "cancel"}))
        found.behind.append(await _first_audio(socket, rate))
        await _barge_in(socket)
    for socket in sockets:
        await socket.close()
    return found


async def _speak(socket: ClientConnection, rate: int, seed: int, found: Found) -> bool:
    """One long utterance; returns whether immediate playback never waits for audio."""
    start = _start(8 * TEXT, rate, seed)
    await socket.send(msgpack.packb({**start, "timings": True}))
    ends: float | None = None  # when playback of what came is over
    kept_up = True
    async for now, data, message in _messages(socket):
        found.messages.append((now, data))
        if message["type"] == "audio":
            if "stamps" in message:
                found.audio.append((seed, message["stamps"]["decoded"], now))
            kept_up = kept_up and (ends is None or now <= ends)
            ends = (now if ends is None else ends) + message["samples"] / rate
        elif message["type"] == "done":
            found.frame_ms = message["timings"]["frame_ms"]
            break
    return kept_up


async def _first_audio(socket: ClientConnection, rate: int) -> float:
    """Milliseconds from sending a start to the first audio of that utterance."""
    await socket.send(msgpack.packb(_start(TEXT, rate, UNTIMED_SEED)))
    began, mine = time.monotonic(), None
    async for now, _, message in _messages(socket):
        if message["type"] == "ready":
            mine = message["id"]
        elif message["type"] == "audio" and message["id"] == mine:
            return 1e3 * (now - began)
    raise AssertionError("unreachable: messages end by an exception")


async def _barge_in(socket: ClientConnection) -> float:
    """Milliseconds from sending a cancel to its answer."""
    await socket.send(msgpack.packb({"type": "cancel"}))
    began = time.monotonic()
    while msgpack.unpackb(await socket.recv())["type"] != "cancelled":
        pass
    return 1e3 * (time.monotonic() - began)


async def _messages(socket: ClientConnection) -> AsyncIterator[tuple[float, bytes, dict[str, Any]]]:
    """When each message came, its bytes and its fields.

    Raises:
        BenchError: the server refused the request: there is nothing to measure.
    """
    while True:
        data = await socket.recv(decode=False)
        now = time.monotonic()
        message = msgpack.unpackb(data)
        if message["type"] == "error":
            raise BenchError(f"the server refused: {message.get('code')}: {message.get('message')}")
        yield now, data, message


def _start(text: str, rate: int, seed: int) -> dict[str, Any]:
    return {"type": "start", "text": text, "final": True, "sample_rate": rate, "seed": seed}


async def _post(url: str, megabytes: int) -> None:
    """Posts starts with a large reference until cancelled; each is refused: it is not audio."""
    reference = {"text": "Hello.", "audio": bytes(megabytes << 20)}
    start = {"type": "start", "text": "Hi.", "final": True, "references": [reference]}
    message = msgpack.packb(start)
    async with connect(url, proxy=None) as socket:
        while True:
            await socket.send(message)
            await socket.recv()
