"""Clients of each dialect: one utterance of any server, recorded as it arrives.

All times are the event loop's.

asyncio's loop reads ``time.monotonic`` on every call. (uvloop's clock
stands still within an iteration and counts whole milliseconds: do not measure on it.)
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgpack
import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from rt_drama3_bench.endpoint import Endpoint
from rt_drama3_bench.metrics import Arrival, Recording, Samples

LARGEST = 16 << 20  # bytes of a message
HEADER = 4096  # bytes within which the samples of a WAV begin
Connect = Callable[..., Awaitable[Any]]


class DialectClient(Protocol):
    """A client that speaks one utterance at a time."""

    async def say(self, recording: Recording, text: str, cut: Interruption) -> None:
        """Requests a text and fills the recording in; raises on failure.

        Args:
            recording: with ``due``.
            text: all of it.
            cut: when the listener interrupts.
        """

    async def close(self) -> None:
        """Closes the connection."""


class Interruption:
    """When a listener interrupts.

    Args:
        after: seconds after the first audio; None never.
        at: time of the loop's clock, with or without audio by then; None never.
    """

    def __init__(self, after: float | None = None, at: float | None = None) -> None:
        self.after, self.at = after, at

    def moment(self, recording: Recording) -> float | None:
        """Time of the loop's clock, None while unknown and once it has happened."""
        if recording.cancelled is not None:
            return None
        moments = [] if self.at is None else [self.at]
        if self.after is not None and recording.arrivals:
            moments.append(recording.arrivals[0].at + self.after)
        return min(moments, default=None)


async def record_utterance(
    caller: DialectClient,
    text: str,
    due: float,
    cut: Interruption | None = None,
    limit: float = 60.0,
) -> Recording:
    """Requests one utterance and returns its recording, errors included."""
    recording = Recording(due=due)
    try:
        async with asyncio.timeout(limit):
            await caller.say(recording, text, cut or Interruption())
    except TimeoutError:
        recording.error = f"not complete within {limit:g} s"
    except (OSError, WebSocketException, ValueError, EOFError, KeyError, TypeError) as error:
        # The last two: a message lacks what every message of its kind has.
        recording.error = f"{type(error).__name__}: {error}"
    if recording.error is None and recording.cancelled is None and not recording.arrivals:
        recording.error = "it ended without any audio"
    if recording.error is not None:
        await caller.close()
    return recording


def make_client(endpoint: Endpoint) -> DialectClient:
    """A client for the dialect of an endpoint."""
    if endpoint.dialect == "native":
        return NativeClient(endpoint)
    if endpoint.dialect == "fish-live":
        return FishLiveClient(endpoint)
    from rt_drama3_bench.http_dialects import HttpClient

    return HttpClient(endpoint)


def samples_of(data: bytes) -> Samples:
    """16-bit little-endian PCM as float32 within -1..1."""
    return np.frombuffer(data, "<i2").astype(np.float32) * np.float32(1 / 32_768)


class PcmReader:
    """Bytes of 16-bit little-endian PCM, with or without a WAV header, to mono samples.

    Args:
        rate, channels: of PCM without a header.

    Attributes:
        rate: samples of a channel per second; the header's where there is one.
        channels: as above; several are mixed down to their mean.
        stated: a header gave both.
    """

    def __init__(self, rate: int, channels: int = 1) -> None:
        self.rate, self.channels, self.stated = rate, channels, False
        self._rest = b""
        self._begun = False

    def feed(self, data: bytes) -> Samples:
        """The samples that are complete; a header gives none.

        Raises:
            ValueError: the header is damaged, or the audio is not 16-bit PCM.
        """
        data = self._rest + data
        if not self._begun:
            start = self._header(data)
            if start is None:
                self._rest = data
                if len(data) > HEADER:
                    raise ValueError("a WAV header without a data chunk came")
                return np.zeros(0, np.float32)
            data = data[start:]
            self._begun = True
        whole = len(data) - len(data) % (2 * self.channels)
        self._rest = data[whole:]
        samples = samples_of(data[:whole])
        return samples if self.channels == 1 else samples.reshape(-1, self.channels).mean(1)

    def _header(self, data: bytes) -> int | None:
        """Reads a WAV header, if there is one: where the samples begin, None while incomplete."""
        if len(data) < 4:
            return None
        if data[:4] in (b"OggS", b"fLaC") or data[:3] == b"ID3":
            raise ValueError(f"the audio begins with {data[:4]!r}; only PCM and WAV are measured")
        if data[:4] != b"RIFF":
            return 0
        at = 12
        while at + 8 <= len(data):
            name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
            if name == b"data":
                if not self.stated:
                    raise ValueError("a WAV header without a format came")
                return at + 8
            if name == b"fmt ":
                if at + 24 > len(data):
                    return None
                kind, self.channels, self.rate = struct.unpack_from("<HHI", data, at + 8)
                (bits,) = struct.unpack_from("<H", data, at + 22)
                if kind not in (1, 0xFFFE) or bits != 16 or not self.channels or not self.rate:
                    raise ValueError(
                        f"the WAV has format {kind}, {bits} bits, {self.channels} channels, "
                        f"{self.rate} Hz; only PCM of 16 bits is measured"
                    )
                self.stated = True
            at += 8 + size + size % 2
        return None


class _SocketClient:
    """What both WebSocket dialects share.

    Args:
        endpoint: the server.
        connect: opens a connection; tests give their own.
    """

    def __init__(self, endpoint: Endpoint, connect: Connect = connect) -> None:
        self._endpoint, self._connect = endpoint, connect
        self._socket: ClientConnection | None = None

    async def close(self) -> None:
        """Closes the connection."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _open(self, recording: Recording) -> ClientConnection:
        if self._socket is None:
            began = asyncio.get_running_loop().time()
            tls = ssl.create_default_context() if self._endpoint.secure else None
            self._socket = await self._connect(
                self._endpoint.address,
                additional_headers=self._endpoint.headers,
                ssl=tls,
                proxy=None,
                compression=None,
                max_size=LARGEST,
            )
            recording.connect = asyncio.get_running_loop().time() - began
        assert self._socket is not None
        return self._socket

    async def _next(
        self, socket: ClientConnection, recording: Recording, cut: Interruption
    ) -> dict[str, Any] | None:
        """The next message; None when it is time to interrupt."""
        loop = asyncio.get_running_loop()
        moment = cut.moment(recording)
        try:
            async with asyncio.timeout_at(moment):
                data = await socket.recv()
        except TimeoutError:
            if moment is None:
                raise
            return None
        if recording.first_byte is None:
            recording.first_byte = loop.time()
        if not isinstance(data, bytes):
            return {}
        message = msgpack.unpackb(data)
        return message if isinstance(message, dict) else {}


class NativeClient(_SocketClient):
    """Our own dialect, which sends stamps and answers a cancel."""

    async def say(self, recording: Recording, text: str, cut: Interruption) -> None:
        """See ``DialectClient.say``."""
        loop, endpoint = asyncio.get_running_loop(), self._endpoint
        socket = await self._open(recording)
        start: dict[str, Any] = {
            **{"type": "start", "text": text, "final": True, "timings": True, "format": "pcm"},
            **{"sample_rate": endpoint.asked_rate, **endpoint.extra},
        }
        if endpoint.voice:
            start["voice"] = endpoint.voice
        recording.sent = loop.time()
        await socket.send(msgpack.packb(start))
        mine: str | None = None
        while True:
            message = await self._next(socket, recording, cut)
            if message is None:
                recording.cancelled = loop.time()
                await socket.send(msgpack.packb({"type": "cancel"}))
                continue
            now, kind = loop.time(), message.get("type")
            if kind == "ready":
                mine, recording.rate = message["id"], message["sample_rate"]
            elif kind == "error":
                recording.error = f"{message.get('code')}: {message.get('message')}"
                return
            elif message.get("id") != mine:
                continue
            elif kind == "audio":
                pcm = samples_of(message["audio"])
                stamps = _flat(message.get("stamps"))
                size = len(message["audio"])
                recording.arrivals.append(Arrival(now, len(pcm), size, pcm, stamps=stamps))
            elif kind in ("done", "cancelled"):
                recording.ended = now
                recording.silent = now if kind == "cancelled" else None
                return


class FishLiveClient(_SocketClient):
    """Fish Audio's live dialect. It has no cancel: to interrupt, the connection is closed."""

    async def say(self, recording: Recording, text: str, cut: Interruption) -> None:
        """See ``DialectClient.say``."""
        loop, endpoint = asyncio.get_running_loop(), self._endpoint
        socket = await self._open(recording)
        request: dict[str, Any] = {
            **{"text": "", "format": "pcm", "sample_rate": endpoint.asked_rate},
            **{"latency": "low", **endpoint.extra},
        }
        if endpoint.voice:
            request["reference_id"] = endpoint.voice
        recording.rate = endpoint.asked_rate
        reader = PcmReader(recording.rate, endpoint.channels)
        recording.sent = loop.time()
        for message in (
            {"event": "start", "request": request},
            {"event": "text", "text": text},
            {"event": "stop"},
        ):
            await socket.send(msgpack.packb(message))
        while True:
            event = await self._next(socket, recording, cut)
            now = loop.time()
            if event is None:
                recording.cancelled = recording.ended = now
                await self.close()
                return
            kind = event.get("event")
            if kind == "audio":
                pcm = reader.feed(event["audio"])
                recording.rate, recording.channels = reader.rate, reader.channels
                recording.assumed = () if reader.stated else ("channels",)  # the rate was requested
                if len(pcm):
                    recording.arrivals.append(Arrival(now, len(pcm), len(event["audio"]), pcm))
            elif kind == "error":
                recording.error = str(event.get("error") or event.get("message"))
                return
            elif kind == "finish":
                recording.ended = now
                if event.get("reason") == "error":
                    recording.error = f"finish with reason error: {event.get('message', '')}"
                return


def _flat(stamps: Any) -> dict[str, float] | None:
    """Milliseconds by stage; of the first and the last frame drawn, the last counts."""
    if not isinstance(stamps, dict):
        return None
    flat = {name: value for name, value in stamps.items() if isinstance(value, float | int)}
    if isinstance(stamps.get("sampled"), list) and stamps["sampled"]:
        flat["sampled_first"], flat["sampled"] = stamps["sampled"][0], stamps["sampled"][-1]
    return flat
