"""Callers: one utterance of any server, recorded as it comes. All times are the event loop's.

asyncio's own loop reads ``time.monotonic`` whenever it is asked. (uvloop's clock stands still
within a turn of the loop and counts whole milliseconds: do not measure on it.)
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgpack
import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from rt_drama3_bench.metrics import Arrival, Samples, Utterance
from rt_drama3_bench.target import Target

LARGEST = 16 << 20  # bytes of a message
Connect = Callable[..., Awaitable[Any]]


class Caller(Protocol):
    """A client that speaks one utterance at a time."""

    async def say(self, made: Utterance, text: str, cut: Cut) -> None:
        """Speaks a text and fills the record in; raises what went wrong.

        Args:
            made: the record, with ``due``.
            text: all of it.
            cut: when the listener interrupts.
        """

    async def close(self) -> None:
        """Lets go of the connection."""


class Cut:
    """When a listener interrupts.

    Args:
        after: seconds after the first audio; None: not for that reason.
        at: on the loop's clock, be there audio or not; None: not for that reason.
    """

    def __init__(self, after: float | None = None, at: float | None = None) -> None:
        self.after, self.at = after, at

    def moment(self, made: Utterance) -> float | None:
        """On the loop's clock, as far as it is known; None once it is done."""
        if made.cancelled is not None:
            return None
        moments = [] if self.at is None else [self.at]
        if self.after is not None and made.arrivals:
            moments.append(made.arrivals[0].at + self.after)
        return min(moments, default=None)


async def call(
    caller: Caller, text: str, due: float, cut: Cut | None = None, limit: float = 60.0
) -> Utterance:
    """Speaks one utterance; whatever goes wrong is in its record."""
    made = Utterance(due=due)
    try:
        async with asyncio.timeout(limit):
            await caller.say(made, text, cut or Cut())
    except TimeoutError:
        made.error = f"it was not over within {limit:g} s"
    except (OSError, WebSocketException, ValueError, EOFError, KeyError, TypeError) as error:
        # The last two: a message lacks what every message of its kind has.
        made.error = f"{type(error).__name__}: {error}"
    if made.error is not None:
        await caller.close()
    return made


def make_caller(target: Target) -> Caller:
    """A caller for the dialect of a target."""
    if target.dialect == "native":
        return NativeCaller(target)
    if target.dialect == "fish-live":
        return FishLiveCaller(target)
    from rt_drama3_bench.http_dialects import HttpCaller

    return HttpCaller(target)


def samples_of(data: bytes) -> Samples:
    """16-bit little-endian PCM as float32 within -1..1."""
    return np.frombuffer(data, "<i2").astype(np.float32) * np.float32(1 / 32_768)


class PcmReader:
    """Bytes of 16-bit little-endian PCM, be there a WAV header in front or not, to samples.

    Attributes:
        rate: samples per second; of the header where there is one.
    """

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._rest = b""
        self._begun = False

    def feed(self, data: bytes) -> Samples:
        """What is complete; a header gives no samples."""
        data = self._rest + data
        if not self._begun:
            if len(data) < 4 or (data[:4] == b"RIFF" and b"data" not in data[12:-4]):
                self._rest = data
                if len(data) > 4096:
                    raise ValueError("a WAV header without a data chunk came")
                return np.zeros(0, np.float32)
            if data[:4] == b"RIFF":
                self.rate = int.from_bytes(data[24:28], "little")
                data = data[data.index(b"data", 12) + 8 :]
            self._begun = True
        whole = len(data) - len(data) % 2
        self._rest = data[whole:]
        return samples_of(data[:whole])


class _SocketCaller:
    """What both WebSocket dialects share.

    Args:
        target: the server.
        connect: opens a connection; tests give their own.
    """

    def __init__(self, target: Target, connect: Connect = connect) -> None:
        self._target, self._connect = target, connect
        self._socket: ClientConnection | None = None

    async def close(self) -> None:
        """Lets go of the connection."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _open(self, made: Utterance) -> ClientConnection:
        if self._socket is None:
            began = asyncio.get_running_loop().time()
            tls = ssl.create_default_context() if self._target.secure else None
            self._socket = await self._connect(
                self._target.address,
                additional_headers=self._target.headers,
                ssl=tls,
                proxy=None,
                compression=None,
                max_size=LARGEST,
            )
            made.connect = asyncio.get_running_loop().time() - began
        assert self._socket is not None
        return self._socket

    async def _next(
        self, socket: ClientConnection, made: Utterance, cut: Cut
    ) -> dict[str, Any] | None:
        """The next message; None when it is time to interrupt."""
        loop = asyncio.get_running_loop()
        moment = cut.moment(made)
        try:
            async with asyncio.timeout_at(moment):
                data = await socket.recv()
        except TimeoutError:
            if moment is None:
                raise
            return None
        if made.first_byte is None:
            made.first_byte = loop.time()
        if not isinstance(data, bytes):
            return {}
        message = msgpack.unpackb(data)
        return message if isinstance(message, dict) else {}


class NativeCaller(_SocketCaller):
    """Our own dialect, which tells stamps and answers a cancel."""

    async def say(self, made: Utterance, text: str, cut: Cut) -> None:
        """See ``Caller.say``."""
        loop, target = asyncio.get_running_loop(), self._target
        socket = await self._open(made)
        start: dict[str, Any] = {
            **{"type": "start", "text": text, "final": True, "timings": True, "format": "pcm"},
            **{"sample_rate": target.asked_rate, **target.extra},
        }
        if target.voice:
            start["voice"] = target.voice
        made.sent = loop.time()
        await socket.send(msgpack.packb(start))
        mine: str | None = None
        while True:
            message = await self._next(socket, made, cut)
            if message is None:
                made.cancelled = loop.time()
                await socket.send(msgpack.packb({"type": "cancel"}))
                continue
            now, kind = loop.time(), message.get("type")
            if kind == "ready":
                mine, made.rate = message["id"], message["sample_rate"]
            elif kind == "error":
                made.error = f"{message.get('code')}: {message.get('message')}"
                return
            elif message.get("id") != mine:
                continue
            elif kind == "audio":
                pcm = samples_of(message["audio"])
                stamps = _flat(message.get("stamps"))
                size = len(message["audio"])
                made.arrivals.append(Arrival(now, len(pcm), size, pcm, stamps=stamps))
            elif kind in ("done", "cancelled"):
                made.ended = now
                made.silent = now if kind == "cancelled" else None
                return


class FishLiveCaller(_SocketCaller):
    """Fish Audio's live dialect. It has no cancel: to interrupt, the connection is closed."""

    async def say(self, made: Utterance, text: str, cut: Cut) -> None:
        """See ``Caller.say``."""
        loop, target = asyncio.get_running_loop(), self._target
        socket = await self._open(made)
        request: dict[str, Any] = {
            **{"text": "", "format": "pcm", "sample_rate": target.asked_rate},
            **{"latency": "low", **target.extra},
        }
        if target.voice:
            request["reference_id"] = target.voice
        made.rate = target.asked_rate
        reader = PcmReader(made.rate)
        made.sent = loop.time()
        for message in (
            {"event": "start", "request": request},
            {"event": "text", "text": text},
            {"event": "stop"},
        ):
            await socket.send(msgpack.packb(message))
        while True:
            event = await self._next(socket, made, cut)
            now = loop.time()
            if event is None:
                made.cancelled = made.ended = now
                await self.close()
                return
            kind = event.get("event")
            if kind == "audio":
                pcm = reader.feed(event["audio"])
                made.rate = reader.rate
                if len(pcm):
                    made.arrivals.append(Arrival(now, len(pcm), len(event["audio"]), pcm))
            elif kind == "error":
                made.error = str(event.get("error") or event.get("message"))
                return
            elif kind == "finish":
                made.ended = now
                if event.get("reason") == "error":
                    made.error = f"finish with reason error: {event.get('message', '')}"
                return


def _flat(stamps: Any) -> dict[str, float] | None:
    """Milliseconds by stage; of the first and the last frame drawn, the last counts."""
    if not isinstance(stamps, dict):
        return None
    flat = {name: value for name, value in stamps.items() if isinstance(value, float | int)}
    if isinstance(stamps.get("sampled"), list) and stamps["sampled"]:
        flat["sampled_first"], flat["sampled"] = stamps["sampled"][0], stamps["sampled"][-1]
    return flat
