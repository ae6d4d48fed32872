"""A fake server with known delays, in virtual time: every dialect measures it right.

The bounds are those of the promise: 1 ms or 2 %.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np
import pytest

from rt_drama3_bench import remote
from rt_drama3_bench.dialects import (
    FishLiveClient,
    Interruption,
    NativeClient,
    PcmReader,
    record_utterance,
)
from rt_drama3_bench.endpoint import Endpoint, key_of
from rt_drama3_bench.errors import BenchError
from rt_drama3_bench.http_dialects import HttpClient
from rt_drama3_bench.metrics import Recording, measure
from rt_drama3_bench.result import Result
from tests.latency.virtual import run

RATE = 16_000
FRAME = 743  # samples: 46.4 ms
DELAYS = [0.120, 0.040, 0.046, 0.0764375, 0.020, 0.030]  # the fourth is 30 ms too late for a player
TONE = (9_000 * np.sin(np.arange(6 * FRAME) / 5)).astype("<i2")
TONE[: FRAME + 300] = 0


def chunk(number: int) -> bytes:
    return TONE[number * FRAME : (number + 1) * FRAME].tobytes()


class Socket:
    """A server behind a WebSocket: sends scripted answers at scripted times."""

    def __init__(self, answer: Callable[[Socket], Any]) -> None:
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.task = asyncio.ensure_future(answer(self))
        self.closed = False

    async def send(self, data: bytes) -> None:
        await self.inbox.put(msgpack.unpackb(data))

    async def recv(self) -> bytes:
        return await self.outbox.get()

    async def close(self) -> None:
        self.closed = True
        self.task.cancel()

    def put(self, **message: Any) -> None:
        self.outbox.put_nowait(msgpack.packb(message))


async def native(socket: Socket) -> None:
    number = 0
    while True:
        message = await socket.inbox.get()
        if message["type"] == "cancel":
            continue
        number += 1
        name = f"u{number}"
        socket.put(type="ready", id=name, sample_rate=RATE)
        for place, delay in enumerate(DELAYS):
            try:
                async with asyncio.timeout(delay):
                    while (await socket.inbox.get())["type"] != "cancel":
                        pass
            except TimeoutError:
                stamps = {"prefilled": 4.0, "sampled": [7.0, 9.0], "decoded": 12.0, "sent": 12.5}
                socket.put(type="audio", id=name, audio=chunk(place), stamps=stamps)
                continue
            await asyncio.sleep(0.007)
            socket.put(type="audio", id=name, audio=chunk(place))
            await asyncio.sleep(0.002)
            socket.put(type="cancelled", id=name)
            break
        else:
            await asyncio.sleep(0.005)
            socket.put(type="done", id=name)


async def fish(socket: Socket) -> None:
    while True:
        while (await socket.inbox.get())["event"] != "stop":
            pass
        for place, delay in enumerate(DELAYS):
            await asyncio.sleep(delay)
            socket.put(event="audio", audio=chunk(place))
        await asyncio.sleep(0.005)
        socket.put(event="finish", reason="stop")


async def opens(answer: Callable[[Socket], Any], *_: Any, **__: Any) -> Socket:
    await asyncio.sleep(0.025)
    return Socket(answer)


def endpoint(dialect: str) -> Endpoint:
    return Endpoint("http://localhost:1", dialect, rate=RATE)


class Writer:
    """The client's end of an HTTP connection; every whole request is answered."""

    def __init__(self, reader: asyncio.StreamReader, answer: Callable[..., Any]) -> None:
        self.reader, self.answer, self.sent = reader, answer, b""
        self.tasks: list[asyncio.Task[None]] = []

    def write(self, data: bytes) -> None:
        self.sent += data
        self.tasks.append(asyncio.ensure_future(self.answer(self.reader)))

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        pass


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def http(reader: asyncio.StreamReader) -> None:
    reader.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for place, delay in enumerate(DELAYS):
        await asyncio.sleep(delay)
        reader.feed_data(http_chunk(chunk(place)))
    await asyncio.sleep(0.005)
    reader.feed_data(b"0\r\n\r\n")


WRITERS: list[Writer] = []


async def http_opens(answer: Callable[..., Any], *_: Any, **__: Any) -> Any:
    await asyncio.sleep(0.025)
    reader = asyncio.StreamReader()
    WRITERS.append(Writer(reader, answer))
    return reader, WRITERS[-1]


def caller(dialect: str) -> Any:
    if dialect == "native":
        return NativeClient(endpoint(dialect), lambda *a, **k: opens(native))
    if dialect == "fish-live":
        return FishLiveClient(endpoint(dialect), lambda *a, **k: opens(fish))
    return HttpClient(endpoint(dialect), lambda *a, **k: http_opens(http))


def speak(
    client: Any, cuts: Sequence[Interruption | None] = (None,), limit: float = 5
) -> list[Recording]:
    async def work() -> list[Recording]:
        now = asyncio.get_running_loop().time
        made = [await record_utterance(client, "Hello.", now(), cut, limit) for cut in cuts]
        await client.close()
        return made

    return run(work())


@pytest.mark.parametrize("dialect", ["native", "fish-live", "fish-http", "openai"])
def test_known_delays_are_measured(dialect: str) -> None:
    first, second = speak(caller(dialect), (None, None))
    assert first.error is None
    assert first.connect == pytest.approx(0.025)
    assert second.connect == 0
    assert first.rate == RATE
    assert [len(one.arrivals) for one in (first, second)] == [6, 6]
    assert np.array_equal(first.audio(), TONE.astype(np.float32) / 32_768)
    for one, connect in ((first, 25.0), (second, 0.0)):
        found = measure(one)
        assert found.first_pcm_ms == pytest.approx(connect + 120, abs=1)
        assert found.underruns == 1
        assert found.underrun_worst_ms == pytest.approx(30 - 6.4375 - 0.4375, abs=1)
        quiet = connect + 120 + 1e3 * (FRAME + 300) / RATE
        assert found.first_audible_ms == pytest.approx(quiet, abs=1)
        assert found.total_ms == pytest.approx(connect + 1e3 * sum(DELAYS) + 5, abs=1)
        assert found.audio_s == pytest.approx(6 * FRAME / RATE, rel=1e-6)


def test_stamps_of_the_native_dialect() -> None:
    (made,) = speak(caller("native"))
    stamps = made.arrivals[0].stamps
    assert stamps is not None
    assert stamps["sampled"] == 9.0
    assert stamps["sampled_first"] == 7.0


def test_barge_in_is_measured_from_the_cancel() -> None:
    made, again = speak(caller("native"), (Interruption(after=0.06), None))
    found = measure(made)
    assert len(made.arrivals) == 3
    assert found.barge_in_ms == pytest.approx(7, abs=0.1)
    assert found.silent_ms == pytest.approx(9, abs=0.1)
    assert len(again.arrivals) == 6  # over the same connection


def test_a_barge_in_may_come_before_any_audio() -> None:
    async def work() -> Recording:
        client, now = caller("native"), asyncio.get_running_loop().time()
        return await record_utterance(client, "Hello.", now, Interruption(at=now + 0.1))

    made = run(work())
    assert made.cancelled is not None
    assert made.silent is not None


@pytest.mark.parametrize("dialect", ["fish-live", "openai"])
def test_dialects_without_a_cancel_close(dialect: str) -> None:
    made, again = speak(caller(dialect), (Interruption(after=0.06), None))
    assert made.cancelled is not None
    assert made.silent is None
    assert measure(made).silent_ms is None
    assert again.connect == pytest.approx(0.025)


def test_a_server_that_hangs_is_an_error_and_not_a_hang() -> None:
    async def silent(socket: Socket) -> None:
        await asyncio.Event().wait()

    client = NativeClient(endpoint("native"), lambda *a, **k: opens(silent))
    (made,) = speak(client, limit=3)
    assert made.error == "not complete within 3 s"


def test_errors_of_a_server_are_recorded() -> None:
    async def refuses(socket: Socket) -> None:
        await socket.inbox.get()
        socket.put(type="error", code="overloaded", message="20 streams are open.")

    (made,) = speak(NativeClient(endpoint("native"), lambda *a, **k: opens(refuses)))
    assert made.error == "overloaded: 20 streams are open."

    async def status(reader: asyncio.StreamReader) -> None:
        reader.feed_data(b"HTTP/1.1 401 Nope\r\nContent-Length: 7\r\n\r\nbad key")

    (made,) = speak(HttpClient(endpoint("openai"), lambda *a, **k: http_opens(status)))
    assert made.error == "HTTP 401: bad key"

    async def cut_off(reader: asyncio.StreamReader) -> None:
        reader.feed_data(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + http_chunk(chunk(0))
        )
        reader.feed_eof()

    (made,) = speak(HttpClient(endpoint("openai"), lambda *a, **k: http_opens(cut_off)))
    assert made.error is not None

    async def nonsense(socket: Socket) -> None:
        await socket.inbox.get()
        socket.put(type="ready")

    (made,) = speak(NativeClient(endpoint("native"), lambda *a, **k: opens(nonsense)))
    assert made.error is not None
    assert "KeyError" in made.error


def test_what_is_asked_of_openai() -> None:
    WRITERS.clear()
    speak(HttpClient(Endpoint("http://h", "openai"), lambda *a, **k: http_opens(http)))
    head, _, body = WRITERS[0].sent.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/audio/speech HTTP/1.1")
    asked = json.loads(body)
    assert asked["response_format"] == "pcm"
    assert "sample_rate" not in asked


def wav(pcm: bytes, rate: int, channels: int, kind: int = 1, bits: int = 16) -> bytes:
    """A WAV of unknown length, with a list that mentions data before the samples."""
    size = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * size, size, bits)
    head = b"RIFF\xff\xff\xff\xffWAVELIST" + struct.pack("<I", 9) + b"data list\0"
    return head + b"fmt " + struct.pack("<I", 16) + form + b"data\xff\xff\xff\xff" + pcm


STEREO = np.stack([TONE, -TONE // 2], 1)


@pytest.mark.parametrize("size", [1, 3, 7, 45, 1000])
def test_stereo_is_mixed_down_in_any_chunks(size: int) -> None:
    for reader, stream in (
        (PcmReader(RATE), wav(STEREO.tobytes(), 48_000, 2)),
        (PcmReader(48_000, 2), STEREO.tobytes()),
    ):
        parts = [reader.feed(stream[at : at + size]) for at in range(0, len(stream), size)]
        assert (reader.rate, reader.channels) == (48_000, 2)
        assert np.allclose(np.concatenate(parts) * 32_768, STEREO.mean(1))


@pytest.mark.parametrize(
    "data",
    [
        wav(TONE.tobytes(), 24_000, 1, kind=3, bits=32),
        wav(TONE.tobytes(), 24_000, 1, bits=24),
        wav(TONE.tobytes(), 24_000, 0),
        b"RIFF\0\0\0\0WAVEdata\0\0\0\0" + TONE.tobytes(),
        b"OggS" + TONE.tobytes(),
        b"ID3\4" + TONE.tobytes(),
    ],
)
def test_audio_that_cannot_be_measured_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"measured|without a format"):
        PcmReader(RATE).feed(data)


def answered(head: str, body: bytes, **request: Any) -> tuple[Result, Recording]:
    """What ``peer`` makes of an HTTP server that always answers so, and one of its utterances."""

    async def answer(reader: asyncio.StreamReader) -> None:
        start = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode()
        reader.feed_data(start + body[:4000])
        await asyncio.sleep(0.3)
        reader.feed_data(body[4000:])

    made = HttpClient(Endpoint("http://h", "openai", **request), lambda *a, **k: http_opens(answer))
    (first,) = speak(made)
    result = Result("peer")

    async def converse(*_: Any) -> Any:
        return first, [first], []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "converse", converse)
        remote.peer(result, Endpoint("http://h", "openai", **request))
    return result, first


def second(rate: int, channels: int = 1) -> bytes:
    """A second of a tone behind a quarter of a second of silence."""
    tone = (9_000 * np.sin(np.arange(rate) / 5)).astype("<i2")
    tone[: rate // 4] = 0
    return np.repeat(tone, channels).tobytes()


@pytest.mark.parametrize(
    ("head", "body", "request_", "assumed"),
    [
        ("", second(48_000), {"rate": 48_000}, "48000 Hz and 1 channel(s) (--rate, --channels)"),
        ("", second(48_000, 2), {"rate": 48_000, "channels": 2}, "48000 Hz and 2 channel(s)"),
        ("X-Sample-Rate: 48000\r\n", second(48_000), {}, "1 channel(s) (--channels)"),
        ("Content-Type: audio/L16;rate=48000;channels=2\r\n", second(48_000, 2), {}, ""),
        ("", wav(second(48_000, 2), 48_000, 2), {}, ""),
    ],
)
def test_rate_and_channels_are_stated_or_reported_as_assumed(
    head: str, body: bytes, request_: dict[str, Any], assumed: str
) -> None:
    result, first = answered(head, body, **request_)
    assert first.error is None
    assert measure(first).audio_s == pytest.approx(1, abs=0.001)
    assert result.facts["sample rate"] == 48_000
    audible = measure(first).first_audible_ms
    assert audible is not None
    # The first 4000 bytes, or a little less, are played before the gap of 0.3 s.
    assert audible == pytest.approx(25 + 300 + 250 - 4000 / 96 / first.channels, abs=2)
    notes = [note for note in result.notes if note.startswith("assumed")]
    assert (assumed in notes[0]) if assumed else not notes


@pytest.mark.parametrize("content", ["audio/mpeg", "application/json", "text/event-stream"])
def test_an_answer_that_is_not_pcm_is_a_failure(content: str) -> None:
    async def answer(reader: asyncio.StreamReader) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nContent-Type: {content}\r\n\r\n"
        reader.feed_data(head.encode() + bytes(1000))

    (made,) = speak(HttpClient(endpoint("openai"), lambda *a, **k: http_opens(answer)))
    assert made.error is not None
    assert content in made.error


def test_pcm_behind_a_wav_header_in_any_chunks() -> None:
    header = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x01\0" + (22_050).to_bytes(4, "little")
    header += (44_100).to_bytes(4, "little") + b"\x02\0\x10\0data\xff\xff\xff\xff"
    stream = header + TONE.tobytes()
    for size in (1, 3, 7, 45, 1000):
        reader = PcmReader(RATE)
        parts = [reader.feed(stream[at : at + size]) for at in range(0, len(stream), size)]
        assert reader.rate == 22_050
        assert np.array_equal(np.concatenate(parts) * 32_768, TONE)


@pytest.mark.parametrize(
    ("url", "dialect", "address"),
    [
        ("http://h:1", "native", "ws://h:1/v1/stream"),
        ("https://h", "fish-live", "wss://h:443/v1/tts/live"),
        ("https://h/v1/", "openai", "https://h:443/v1/audio/speech"),
        ("http://h/x/v1/audio/speech", "openai", "http://h:80/x/v1/audio/speech"),
        ("ws://[::1]:9/p", "fish-http", "http://[::1]:9/p/v1/tts"),
    ],
)
def test_addresses(url: str, dialect: str, address: str) -> None:
    assert Endpoint(url, dialect).address == address


def test_impossible_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchError, match="dialect is 'french'"):
        Endpoint("http://h", "french")
    with pytest.raises(BenchError, match="address is 'h:1'"):
        Endpoint("h:1")
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(BenchError, match="SOME_KEY"):
        key_of("openai", "SOME_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert key_of("openai", None) == "secret"
    assert "secret" not in repr(Endpoint("http://h", "openai", key="secret"))


def test_a_server_that_sends_fast_is_interrupted_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of an utterance is there before half a second of it would have been played."""
    monkeypatch.setattr(remote, "make_client", lambda endpoint: caller("native"))
    endpoint = Endpoint("http://127.0.0.1:1", "native")
    _, spoken, cut = run(remote.converse(endpoint, 2, 3, 0.0))
    assert all(made.ended and made.ended - made.arrivals[0].at < 0.5 for made in spoken)
    assert [made.cancelled is not None for made in cut] == [True] * 3
    assert all(measure(made).silent_ms is not None for made in cut)
