"""Callers of the HTTP routes: Fish Audio's ``/v1/tts`` and OpenAI's ``/v1/audio/speech``.

The answer is read as it comes from the network: what one read gives is one piece. PCM is asked for;
a WAV header is understood. Interrupting is closing the connection, which the server may learn late.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import h11

from rt_drama3_bench.dialects import Cut, PcmReader
from rt_drama3_bench.metrics import Arrival, Utterance
from rt_drama3_bench.target import Target

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Open = Callable[..., Awaitable[Streams]]
READ = 65_536
ERROR = 2_000  # bytes of an error's body that are told


class HttpCaller:
    """One POST per utterance, over a connection that is kept while the server keeps it.

    Args:
        target: the server.
        open_connection: asyncio's; tests give their own.
    """

    def __init__(self, target: Target, open_connection: Open = asyncio.open_connection) -> None:
        self._target, self._open_connection = target, open_connection
        self._streams: Streams | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def close(self) -> None:
        """Lets go of the connection."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await streams[1].wait_closed()

    async def say(self, made: Utterance, text: str, cut: Cut) -> None:
        """See ``Caller.say``."""
        loop = asyncio.get_running_loop()
        reader, writer = await self._open(made)
        body = json.dumps(self._body(text)).encode()
        headers = {
            **{"Host": f"{self._target.host}:{self._target.port}", "Accept": "*/*"},
            **{"Content-Type": "application/json", "Content-Length": str(len(body))},
            **self._target.headers,
        }
        request = h11.Request(method="POST", target=self._target.path, headers=[*headers.items()])
        out = self._http.send(request) or b""
        out += self._http.send(h11.Data(data=body)) or b""
        out += self._http.send(h11.EndOfMessage()) or b""
        made.sent = loop.time()
        writer.write(out)
        await writer.drain()
        await self._read(reader, made, cut)

    async def _read(self, reader: asyncio.StreamReader, made: Utterance, cut: Cut) -> None:
        loop = asyncio.get_running_loop()
        pcm: PcmReader | None = None
        refused: bytes | None = None
        now = loop.time()
        while True:
            event = self._event()
            if event is h11.NEED_DATA:
                moment = cut.moment(made)
                try:
                    async with asyncio.timeout_at(moment):
                        data = await reader.read(READ)
                except TimeoutError:
                    if moment is None:
                        raise
                    made.cancelled = made.ended = loop.time()
                    await self.close()
                    return
                now = loop.time()
                if made.first_byte is None and data:
                    made.first_byte = now
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                if event.status_code != 200:
                    refused = f"HTTP {event.status_code}: ".encode()
                made.rate = _rate(event, self._target.asked_rate)
                pcm = PcmReader(made.rate)
            elif isinstance(event, h11.Data):
                if refused is not None:
                    refused = (refused + bytes(event.data))[:ERROR]
                    continue
                assert pcm is not None
                samples = pcm.feed(bytes(event.data))
                made.rate = pcm.rate
                if len(samples):
                    made.arrivals.append(Arrival(now, len(samples), len(event.data), samples))
            elif isinstance(event, h11.EndOfMessage):
                made.ended = now
                if refused is not None:
                    made.error = refused.decode(errors="replace")
                await self._again()
                return
            else:
                raise EOFError("the server closed the connection in the middle of its answer")

    def _event(self) -> object:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise ValueError(f"the answer is broken: {error}") from error

    async def _again(self) -> None:
        """Makes the connection ready for the next request, or gives it up."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            await self.close()

    async def _open(self, made: Utterance) -> Streams:
        if self._streams is not None and not self._streams[0].at_eof():
            return self._streams
        await self.close()
        loop = asyncio.get_running_loop()
        began = loop.time()
        tls = ssl.create_default_context() if self._target.secure else None
        self._streams = await self._open_connection(
            self._target.host, self._target.port, ssl=tls, limit=1 << 20
        )
        self._http = h11.Connection(h11.CLIENT)
        made.connect = loop.time() - began
        return self._streams

    def _body(self, text: str) -> dict[str, Any]:
        target = self._target
        if target.dialect == "openai":
            body: dict[str, Any] = {
                **{"input": text, "model": target.model or "tts-1"},
                **{"voice": target.voice or "alloy", "response_format": "pcm"},
            }
            if target.rate:  # not OpenAI's: only where the user asked
                body["sample_rate"] = target.rate
        else:
            body = {"text": text, "format": "pcm", "sample_rate": target.asked_rate}
            body["latency"] = "low"
            if target.voice:
                body["reference_id"] = target.voice
        return {**body, **target.extra}


def _rate(response: h11.Response, asked: int) -> int:
    """Samples per second, as the answer says, or as was asked."""
    found = {bytes(name).lower(): bytes(value).decode() for name, value in response.headers}
    stated = found.get(b"x-sample-rate") or ""
    if not stated.isdigit():
        kind = re.search(r"rate=(\d+)", found.get(b"content-type", ""))
        stated = kind.group(1) if kind else ""
    return int(stated) if stated else asked
