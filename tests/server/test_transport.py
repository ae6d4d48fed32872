"""What the transports do besides parsing: pings, what is held, and turns of the event loop."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from rt_drama3.server.transport.line import SocketLine
from rt_drama3.server.transport.time_slices import CHUNK, SLICE_SECONDS, TimeSlice
from rt_drama3.server.transport.websockets import TINY_FRAMES, WebSockets
from tests.server.test_fragments import opened
from tests.small import until

PING = 20.0


class Timer:
    """One timer of ``Timers``."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call = at, call

    def cancel(self) -> None:
        self.at = float("inf")


class Timers:
    """An event loop with nothing but timers."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, call))
        return self.timers[-1]

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        return self.call_at(self.now + delay, call)

    def pass_until(self, seconds: float) -> None:
        """Rings what is due up to a time after the start."""
        while (timer := min(self.timers, key=lambda timer: timer.at)).at <= 1_000.0 + seconds:
            self.timers.remove(timer)
            self.now = timer.at
            timer.call()
        self.now = 1_000.0 + seconds


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        super().__init__({"socket": connection})
        self.written: list[bytes] = []
        self.closed = False
        self.limits: int | None = None

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 1_000

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = high

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    def pings(self) -> list[bytes]:
        """The payloads of the pings that were sent."""
        return [data[2:] for data in self.written if data[0] == 0x89]


def connected(loop: Any) -> tuple[WebSockets, Wire]:
    """A WebSocket behind its handshake."""

    async def no_app(scope: Any, receive: Any, send: Any) -> None:
        """Never called."""

    settings = {"ws_ping_interval": PING, "ws_ping_timeout": PING}
    config = uvicorn.Config(no_app, log_config=None, **cast(Any, settings))
    config.load()
    found, wire = WebSockets(config, ServerState(), {}, loop), Wire()
    found.transport, found.conn = wire, opened()
    found.conn.data_to_send()
    found.handshake_initiated = found.handshake_complete = True
    return found, wire


def pong(payload: bytes) -> bytes:
    """A client's answer, under a mask of zeros."""
    return bytes((0x8A, 0x80 | len(payload))) + bytes(4) + payload


def test_a_ping_that_is_not_answered_ends_the_connection() -> None:
    timers = Timers()
    websocket, wire = connected(timers)
    websocket.start_keepalive()
    timers.pass_until(2 * PING - 1)
    assert (len(wire.pings()), wire.closed) == (1, False)
    timers.pass_until(2 * PING)
    assert wire.closed
    assert websocket.queue.get_nowait()["type"] == "websocket.disconnect"


def test_no_pong_is_awaited_where_none_is_due() -> None:
    """A client does not read a connection that waits in its pool."""
    timers = Timers()
    websocket, wire = connected(timers)
    due: list[float | None] = [None]
    websocket.expect_pongs(lambda: due[0])
    websocket.start_keepalive()
    timers.pass_until(9.5 * PING)
    assert not wire.closed
    assert len(wire.pings()) == 5  # proxies see that it is in use
    due[0] = timers.now  # an utterance begins; the last ping was not answered
    timers.pass_until(10.5 * PING - 1)
    assert not wire.closed
    timers.pass_until(10.5 * PING)
    assert wire.closed


def test_a_pong_is_late_by_the_audio_in_front_of_its_ping() -> None:
    timers = Timers()
    websocket, wire = connected(timers)
    websocket.expect_pongs(lambda: 1_000.0 + 5 * PING)
    websocket.start_keepalive()
    timers.pass_until(4 * PING)
    websocket.feed(pong(wire.pings()[0]))  # three intervals after its ping
    timers.pass_until(6 * PING - 1)
    assert (len(wire.pings()), wire.closed) == (2, False)
    timers.pass_until(6 * PING)
    assert wire.closed


def test_a_burst_of_messages_lets_others_have_their_turn() -> None:
    """The queue of messages is full all the time, so that waiting for one lets nothing else run."""

    async def main() -> list[int]:
        websocket, _ = connected(asyncio.get_running_loop())
        now = 0.0

        def clock() -> float:
            nonlocal now
            now += SLICE_SECONDS / 4
            return now

        websocket._handling = TimeSlice(clock)
        for _ in range(400):
            websocket.queue.put_nowait({"type": "websocket.receive", "bytes": b""})
        handled, turns = 0, list[int]()

        async def others() -> None:
            while handled < 400:
                turns.append(handled)
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        for _ in range(400):
            await websocket.receive()
            handled += 1
        await other
        return [after - before for before, after in itertools.pairwise(turns)]

    assert max(asyncio.run(main())) <= 5


def test_few_tiny_frames_are_parsed_between_readings_of_the_clock() -> None:
    websocket, _ = connected(Timers())
    websocket.feed(pong(b"x"))
    assert websocket.chunk() == TINY_FRAMES
    websocket.feed(bytes((0x82, 0xFE, 0x10, 0x00)) + bytes(4) + bytes(100))  # the rest of 4 KiB
    assert websocket.chunk() == CHUNK
    websocket.feed(bytes(3_296))
    assert websocket.chunk() == 700
    websocket.feed(bytes(700))
    assert websocket.chunk() == TINY_FRAMES


@pytest.fixture
def pair() -> Any:
    """Two ends of a connection with small buffers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        with socket.create_connection(listener.getsockname()) as ours:
            theirs, _ = listener.accept()
            with theirs:
                ours.setblocking(False)
                yield ours, theirs


class Connection(SocketLine):
    """Nothing but its line."""

    def __init__(self, wire: Wire) -> None:
        self.transport = wire


def fill(connection: socket.socket) -> int:
    """Writes until the system takes no more; returns the bytes."""
    size = 0
    while True:
        try:
            size += connection.send(random.randbytes(500))
        except BlockingIOError:
            return size


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports it")
def test_what_the_peer_has_not_acknowledged_is_held(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    line = Connection(Wire(ours))
    assert line.held() == 1_000  # in the transport
    written = fill(ours)
    assert 1_000 < line.held() <= 1_000 + written
    while line.held() > 1_000 and written:
        written -= len(theirs.recv(65_536))
    until(lambda: line.held() == 1_000, "acknowledging")
    line.transport.close()
    assert line.held() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system may keep more")
def test_what_waits_to_be_sent_is_bounded(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    wire = Wire(ours)
    Connection(wire).limit_unsent(4_096)
    assert wire.limits == 4_096
    assert fill(ours) < 40_000  # of 2.5 MB
    Connection(wire).limit_unsent(1 << 20)
    assert wire.limits == 65_536


def test_a_line_that_is_closed_has_no_bound(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    wire = Wire(ours)
    ours.close()
    Connection(wire).limit_unsent(4_096)
    wire.close()
    Connection(wire).limit_unsent(4_096)
