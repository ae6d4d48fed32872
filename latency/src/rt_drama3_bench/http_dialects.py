"""Clients of the HTTP routes: Fish Audio's ``/v1/tts`` and OpenAI's ``/v1/audio/speech``.

The answer is read as it arrives from the network: one read returns one chunk. PCM is requested; a
WAV header is understood. To interrupt, the connection is closed, which the server may notice late.
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

from rt_drama3_bench.dialects import Interruption, PcmReader
from rt_drama3_bench.endpoint import Endpoint
from rt_drama3_bench.metrics import Arrival, Recording

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Open = Callable[..., Awaitable[Streams]]
READ = 65_536
_NOT_PCM = re.compile(
    r"text/|application/(json|problem)|audio/(mpeg|mp3|mp4|aac|ogg|opus|webm|(x-)?flac)\b"
)
ERROR = 2_000  # bytes of an error's body that are reported


class HttpClient:
    """One POST per utterance, over a connection that is kept while the server keeps it.

    Args:
        endpoint: the server.
        open_connection: asyncio's; tests give their own.
    """

    def __init__(self, endpoint: Endpoint, open_connection: Open = asyncio.open_connection) -> None:
        self._endpoint, self._open_connection = endpoint, open_connection
        self._streams: Streams | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def close(self) -> None:
        """Closes the connection."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await streams[1].wait_closed()

    async def say(self, recording: Recording, text: str, cut: Interruption) -> None:
        """See ``DialectClient.say``."""
        loop = asyncio.get_running_loop()
        reader, writer = await self._open(recording)
        body = json.dumps(self._body(text)).encode()
        headers = {
            **{"Host": f"{self._endpoint.host}:{self._endpoint.port}", "Accept": "*/*"},
            **{"Content-Type": "application/json", "Content-Length": str(len(body))},
            **self._endpoint.headers,
        }
        request = h11.Request(method="POST", target=self._endpoint.path, headers=[*headers.items()])
        out = self._http.send(request) or b""
        out += self._http.send(h11.Data(data=body)) or b""
        out += self._http.send(h11.EndOfMessage()) or b""
        recording.sent = loop.time()
        writer.write(out)
        await writer.drain()
        await self._read(reader, recording, cut)

    async def _read(
        self, reader: asyncio.StreamReader, recording: Recording, cut: Interruption
    ) -> None:
        loop = asyncio.get_running_loop()
        pcm: PcmReader | None = None
        refused: bytes | None = None
        now = loop.time()
        while True:
            event = self._event()
            if event is h11.NEED_DATA:
                moment = cut.moment(recording)
                try:
                    async with asyncio.timeout_at(moment):
                        data = await reader.read(READ)
                except TimeoutError:
                    if moment is None:
                        raise
                    recording.cancelled = recording.ended = loop.time()
                    await self.close()
                    return
                now = loop.time()
                if recording.first_byte is None and data:
                    recording.first_byte = now
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                if event.status_code != 200:
                    refused = f"HTTP {event.status_code}: ".encode()
                else:
                    pcm, recording.assumed = _reader(event, self._endpoint)
            elif isinstance(event, h11.Data):
                if refused is not None:
                    refused = (refused + bytes(event.data))[:ERROR]
                    continue
                assert pcm is not None
                samples = pcm.feed(bytes(event.data))
                recording.rate, recording.channels = pcm.rate, pcm.channels
                if pcm.stated:
                    recording.assumed = ()
                if len(samples):
                    recording.arrivals.append(Arrival(now, len(samples), len(event.data), samples))
            elif isinstance(event, h11.EndOfMessage):
                recording.ended = now
                if refused is not None:
                    recording.error = refused.decode(errors="replace")
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
        """Makes the connection ready for the next request, or closes it."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            await self.close()

    async def _open(self, recording: Recording) -> Streams:
        if self._streams is not None and not self._streams[0].at_eof():
            return self._streams
        await self.close()
        loop = asyncio.get_running_loop()
        began = loop.time()
        tls = ssl.create_default_context() if self._endpoint.secure else None
        self._streams = await self._open_connection(
            self._endpoint.host, self._endpoint.port, ssl=tls, limit=1 << 20
        )
        self._http = h11.Connection(h11.CLIENT)
        recording.connect = loop.time() - began
        return self._streams

    def _body(self, text: str) -> dict[str, Any]:
        endpoint = self._endpoint
        if endpoint.dialect == "openai":
            body: dict[str, Any] = {
                **{"input": text, "model": endpoint.model or "tts-1"},
                **{"voice": endpoint.voice or "alloy", "response_format": "pcm"},
            }
            if endpoint.rate:  # not OpenAI's: only where the user asked
                body["sample_rate"] = endpoint.rate
        else:
            body = {"text": text, "format": "pcm", "sample_rate": endpoint.asked_rate}
            body["latency"] = "low"
            if endpoint.voice:
                body["reference_id"] = endpoint.voice
        return {**body, **endpoint.extra}


def _reader(response: h11.Response, endpoint: Endpoint) -> tuple[PcmReader, tuple[str, ...]]:
    """A reader for the audio as the answer states it; the names of what is only assumed.

    Raises:
        ValueError: the answer states that it is neither PCM nor WAV.
    """
    headers = {bytes(name).lower(): bytes(value).decode() for name, value in response.headers}
    content = headers.get(b"content-type", "").lower()
    if _NOT_PCM.match(content):
        raise ValueError(f"the answer is {content}; only PCM and WAV are measured")
    values = {"rate": endpoint.asked_rate, "channels": endpoint.channels}
    assumed = []
    for name, header in (("rate", b"x-sample-rate"), ("channels", b"x-channels")):
        stated = headers.get(header) or ""
        if not stated.isdigit():
            parameter = re.search(rf"\b{name}=\"?(\d+)", content)
            stated = parameter.group(1) if parameter else ""
        if stated and int(stated):
            values[name] = int(stated)
        else:
            assumed.append(name)
    return PcmReader(**values), tuple(assumed)
