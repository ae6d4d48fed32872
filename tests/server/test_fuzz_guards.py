"""What fuzzing found that a client could do to the sockets of a server, one by one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import uvicorn
from uvicorn.server import ServerState

from rt_drama3.server.transport import http, time_slices, websockets
from rt_drama3.server.ws.connection import LiveConnection
from tests.fuzz.raw import BINARY, CONT, PING, PONG, TEXT, Gone, Raw, frame, handshake
from tests.server.tools import LONG, Place, serving
from tests.small import WAIT, shared_drama, until

UNREAD = 32 << 20  # bytes of pings, many times what may wait


@pytest.fixture
def raw(endless: Place) -> Iterator[Raw]:
    found = Raw(endless.port, WAIT)
    yield found
    found.socket.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (handshake().replace(b"GET", b"POST"), 405),
        (handshake(Content_Length="5") + b"12345", 400),
        (handshake(X="a" * 9_000), 431),
        (handshake("/" + "a" * 9_000), 414),
        (handshake(**{f"X{n}": "a" for n in range(140)}), 431),
    ],
)
def test_a_handshake_that_cannot_be_read_is_answered(
    endless: Place, raw: Raw, request_bytes: bytes, status: int
) -> None:
    raw.send(request_bytes)
    assert raw.response() == status
    raw.drain()
    until(lambda: not endless.server._uvicorn.server_state.connections, "closing")


def test_a_refused_handshake_does_not_break_the_stop(tmp_path: Any) -> None:
    with serving(shared_drama(), tmp_path) as place:
        raw = Raw(place.port, WAIT)
        raw.send(handshake(Content_Length="5"))
        assert raw.response() == 400
    raw.socket.close()


@pytest.mark.parametrize(
    "data",
    [
        frame(TEXT, b"\xff"),
        frame(TEXT, b"a\xe2", fin=False) + frame(CONT, b"\x82"),
        frame(TEXT, b"\xff") + frame(TEXT, b"\xff") + frame(BINARY, b"\x80"),
    ],
)
def test_text_that_is_not_utf8_is_not_an_error_of_the_server(
    raw: Raw, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    raw.upgrade("/v1/stream")
    raw.send(data)
    assert raw.code() == 1007
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_fragments_without_bytes_come_to_an_end(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websockets, "MAX_FRAGMENTS", 100)
    raw.upgrade("/v1/stream")
    raw.send(frame(BINARY, b"\x80", fin=False) + frame(CONT, fin=False) * 50 + frame(CONT))
    assert raw.read()[0] == BINARY  # the message is whole, and answered
    raw.send(frame(BINARY, b"\x80", fin=False) + frame(CONT, fin=False) * 200)
    assert raw.code() == 1009


def test_pings_whose_answers_are_not_read_come_to_an_end(endless: Place) -> None:
    raw = Raw(endless.port, WAIT, room=4_096)
    raw.upgrade("/v1/stream")
    pings = frame(PING, b"x" * 125) * 1_000
    with contextlib.suppress(Gone):
        for _ in range(UNREAD // len(pings)):
            raw.send(pings)
    until(lambda: not endless.service.access.connections, "ending the connection")
    raw.socket.close()


@pytest.mark.parametrize("begun", [b"", b"G", b"GET / HTTP/1.1\r\nX: "])
def test_a_request_that_never_arrives_is_a_408(
    endless: Place, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.05)
    raw = Raw(endless.port, WAIT)
    raw.send(begun)
    assert raw.response() == 408
    raw.socket.close()


def test_a_body_that_never_comes_ends_the_connection(
    endless: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.05)
    raw = Raw(endless.port, WAIT)
    raw.send(b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    with pytest.raises(Gone):
        raw.response()
    raw.socket.close()


class Line(asyncio.Transport):
    """A transport that knows whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.closed = True, False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Clock:
    """A loop that counts the timers that were set, and lets them be rung."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.set = loop, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    def call_later(self, delay: float, call: Any) -> asyncio.TimerHandle:
        self.set += 1
        return self.loop.call_later(3_600, call)


def test_a_slow_upload_has_the_same_time_again() -> None:
    async def run() -> None:
        config = uvicorn.Config(no_app, log_config=None)
        config.load()
        connection = http.TimedHttp(config, ServerState(), {})
        connection.loop = clock = Clock(asyncio.get_running_loop())  # type: ignore[assignment]
        connection.connection_made(Line())
        assert clock.set == 1
        connection.feed(b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert clock.set == 2  # its body has time of its own
        connection.feed(b"x")
        assert clock.set == 2
        connection.feed(b"x" * http.REQUEST_BYTES)
        assert clock.set == 3
        connection.feed(b"x")
        assert clock.set == 3
        connection.feed(b"x" * (1_000_000 - 2 - http.REQUEST_BYTES))
        assert connection._timer is None
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_body_has_as_long_as_the_settings_say() -> None:
    async def run() -> list[float]:
        delays = []
        config = uvicorn.Config(no_app, log_config=None)
        config.load()
        connection = http.timed_http(200.0)(config, ServerState(), {})
        connection.loop = clock = Clock(asyncio.get_running_loop())  # type: ignore[assignment]
        clock.call_later = lambda delay, call: delays.append(delay)  # type: ignore[assignment,method-assign,return-value]
        connection.connection_made(Line())
        connection.feed(b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        connection.connection_lost(None)
        return delays

    assert asyncio.run(run()) == [http.REQUEST_SECONDS, 200.0 + http.BODY_MARGIN]


async def no_app(scope: Any, receive: Any, send: Any) -> None:
    """An application that never answers."""


def test_the_next_request_of_a_connection_is_timed_too(
    endless: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)
    raw = Raw(endless.port, WAIT)
    raw.send(b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert raw.response() == 200
    raw.send(b"HEAD /hea")
    assert raw.response() == 408
    raw.socket.close()


def test_speech_takes_longer_than_a_request_may(
    endless: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.05)
    with endless.native() as client:
        client.send("start", text="Hello there.", final=True, max_seconds=3)
        assert client.take_until("done")[-1]["frames"] == 65
    answer = endless.post("/v1/tts", json={"text": "Hello there.", "format": "pcm"})
    assert answer.status_code == 200
    assert len(answer.content) > 2 * 2048 * 20


@pytest.fixture
def slow_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes are all that is parsed in a turn of the event loop."""
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(time_slices, "CHUNK", 3)


@pytest.mark.usefixtures("slow_parsing")
def test_what_is_held_back_comes_in_order(endless: Place, raw: Raw) -> None:
    raw.upgrade("/v1/stream")
    count = 300
    raw.send(
        b"".join(
            frame(BINARY, msgpack.packb({"type": "ping", "data": n})) + frame(PING, b"%d" % n)
            for n in range(count)
        )
    )
    pongs, echoes = [], []
    while len(pongs) < count or len(echoes) < count:
        opcode, payload = raw.read()
        (pongs if opcode == PONG else echoes).append(payload)
    assert pongs == [b"%d" % n for n in range(count)]
    assert [msgpack.unpackb(echo)["data"] for echo in echoes] == list(range(count))
    raw.send(frame(TEXT, b"\xff") + frame(PING) * 1_000)
    assert raw.code() == 1007


@pytest.mark.usefixtures("slow_parsing")
def test_bodies_and_messages_come_through_in_parts(endless: Place) -> None:
    chunks = (bytes([byte]) for byte in b'{"text": "Hello there.", "format": "pcm", "seed": 1}')
    assert endless.post("/v1/tts", content=chunks).status_code == 200
    with endless.native() as client:
        client.send("text", text="x" * 20_000)
        assert client.take()["code"] == "out_of_order"
        client.send("start", text="Hello there. " * 100, final=True, max_seconds=0.2)
        assert client.take_until("done")[-1]["frames"] == 4


class Sliced(time_slices.TimeSliced):
    """Keeps what it is fed."""

    def __init__(self) -> None:
        self.transport, self.loop = Line(), asyncio.get_running_loop()
        self.fed: list[bytes] = []
        self.paused = self.over = False

    def feed(self, data: bytes) -> None:
        self.fed.append(data)

    def finished(self) -> bool:
        return self.over

    def wants_more(self) -> bool:
        return not self.paused


@pytest.mark.usefixtures("slow_parsing")
def test_others_have_their_turn_while_bytes_are_held_back() -> None:
    async def run() -> None:
        sliced = Sliced()
        line = sliced.transport
        assert isinstance(line, Line)
        sliced.take(b"ab")
        assert line.reading
        sliced.take(b"0123456789")
        assert (sliced.fed, line.reading) == ([b"ab", b"012"], False)
        line.resume_reading()  # as the application's next read does
        sliced.keep_paused()
        assert not line.reading
        sliced.take(b"x")
        await asyncio.sleep(0)
        assert sliced.fed[-1] == b"345"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (b"".join(sliced.fed), line.reading) == (b"ab0123456789x", True)
        sliced.keep_paused()
        assert line.reading
        sliced.take(b"012345")
        sliced.paused = True
        await asyncio.sleep(0)
        assert (sliced.fed[-1], line.reading) == (b"345", False)
        sliced.take(b"012345")
        sliced.over = True
        await asyncio.sleep(0)
        assert sliced.fed[-1] == b"012"
        sliced.over = False
        sliced.take(b"678901")
        sliced.discard()
        await asyncio.sleep(0)
        assert sliced.fed[-1] == b"678"

    asyncio.run(run())


def test_a_stream_that_opens_as_its_client_goes_is_ended(
    endless: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_and_left = threading.Event()
    real = endless.service.openings.open

    def leave() -> None:
        for task in asyncio.all_tasks():
            if getattr(task.get_coro(), "__name__", "") == "_speak":
                task.cancel()
        opened_and_left.set()

    async def open_stream(order: Any) -> Any:
        opened = await real(order)
        asyncio.get_running_loop().call_soon(leave)  # before its task sees that it is open
        return opened

    monkeypatch.setattr(endless.service.openings, "open", open_stream)
    with endless.native() as client:
        client.send("start", text=LONG, final=True)
        assert opened_and_left.wait(WAIT)
        endless.until_free()


def test_a_burst_of_starts_costs_each_the_same(
    endless: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None waits for all of those before it, which would add up to the square of their number."""
    most = 0
    real = asyncio.wait

    async def wait(tasks: Any, **more: Any) -> Any:
        nonlocal most
        most = max(most, len(tasks))
        return await real(tasks, **more)

    monkeypatch.setattr(asyncio, "wait", wait)
    count = 200
    start = {"text": LONG, "final": True, "max_seconds": 0.2}
    with endless.native() as client:
        for _ in range(count):
            client.send("start", **start)
        ends = [client.take_until("cancelled", "done")[-1] for _ in range(count)]
    assert [end["type"] for end in ends] == (count - 1) * ["cancelled"] + ["done"]
    assert len({end["id"] for end in ends}) == count
    assert most <= 2


def test_a_cancel_as_the_stream_opens_ends_it(
    endless: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = endless.service.openings.open

    async def open_stream(order: Any) -> Any:
        opened = await real(order)
        asyncio.get_running_loop().call_soon(cancel)
        return opened

    def cancel() -> None:
        (connection,) = endless.service.drain.conversations
        assert isinstance(connection, LiveConnection)
        message = msgpack.packb({"type": "cancel"})
        connection._act(connection._session.receive(message), "client")

    monkeypatch.setattr(endless.service.openings, "open", open_stream)
    with endless.native() as client:
        client.send("start", text=LONG, final=True)
        assert client.take_until("cancelled")[-1]["sent"]["bytes"] == 0
        endless.until_free()
