"""Start, slowness, idleness, and the end."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import msgpack
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from rt_drama3 import ws_server as run
from rt_drama3.audio import StreamResampler, stream_resample
from rt_drama3.drama3 import Drama3
from rt_drama3.engine.events import Idle
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.errors import CheckpointError, DeviceError, RtDrama3Error
from rt_drama3.protocol import ProtocolLimits
from rt_drama3.server.app import create_app
from rt_drama3.server.config import ServerConfig
from rt_drama3.server.drain import Drain
from rt_drama3.server.sender import SpeechSender
from rt_drama3.server.transport import websockets
from rt_drama3.server.ws import connection
from rt_drama3.ws_server import Server
from tests.fuzz.raw import BINARY, PING, Raw, frame
from tests.ports import free_port
from tests.server.tools import LONG, Place, run_app, serving
from tests.small import WAIT, ending_drama, new_drama, running, shared_drama, until


def test_ready_once_the_model_is_loaded(tmp_path: Path) -> None:
    config = ServerConfig(port=0, data_folder=str(tmp_path))
    app = create_app(config=config)
    go = threading.Event()
    loaded: list[Drama3] = []

    def load() -> Drama3:
        assert go.wait(WAIT)
        loaded.append(new_drama())
        return loaded[0]

    try:
        with run_app(app, config, load) as server:
            place = Place(server.port, app.state.service, None, server)
            assert place.get("/health").status_code == 200
            assert place.get("/ready").status_code == 503
            answer = place.post("/v1/tts", json={"text": "Hi."})
            assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
            with pytest.raises(InvalidStatus) as caught, place.connect("/v1/stream"):
                pass
            assert caught.value.response.status_code == 503
            go.set()
            until(lambda: place.get("/ready").status_code == 200, "loading")
            assert place.post("/v1/tts", json={"text": "...", "format": "wav"}).status_code == 200
    finally:
        for drama in loaded:
            drama.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CheckpointError("no such thing."), CheckpointError),
        (OSError("no such thing."), DeviceError),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_the_server(
    error: Exception, kind: type[Exception], tmp_path: Path
) -> None:
    config = ServerConfig(port=0, data_folder=str(tmp_path))
    server = Server(create_app(config=config), config)
    ended: list[BaseException] = []

    def load() -> Drama3:
        raise error

    def run() -> None:
        try:
            server.run(load)
        except RtDrama3Error as raised:
            ended.append(raised)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: ended, "the end of the server")
    finally:
        server.stop()
        thread.join(WAIT)
    assert isinstance(ended[0], kind)
    assert "no such thing" in str(ended[0])


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def both_families(*_: object, **__: object) -> list[Any]:
    known = socket.gethostbyname("127.0.0.1")
    return [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (known, 0)),
    ]


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")
def test_a_name_of_both_families_is_listened_to_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", both_families)
        listeners = run.listen("localhost", 0, 65_536)
    first, second = (listener.getsockname() for listener in listeners)
    assert (first[0], second[0]) == ("127.0.0.1", "::1")
    assert first[1] == second[1]
    for listener, address in zip(listeners, (first, second), strict=True):
        with listener, socket.socket(listener.family) as client:
            client.connect(address)


def test_a_family_that_this_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = run._listener

    def without_ipv6(family: int, address: tuple[Any, ...], size: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "not available")
        return real(family, address, size)

    monkeypatch.setattr(run, "_listener", without_ipv6)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", both_families)
        (listener,) = run.listen("localhost", 0, 65_536)
    with listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("stops", [1, 2])
def test_a_body_that_does_not_come_does_not_hold_up_the_end(
    stops: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(run, "SHUTDOWN_SECONDS", 4 * WAIT)
    with (
        socket.socket() as raw,
        serving(shared_drama(), tmp_path, drain_seconds=4 * WAIT) as place,
    ):
        raw.settimeout(WAIT)
        raw.connect(("127.0.0.1", place.port))
        raw.sendall(b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b'{"te')
        until(lambda: place.service.access.connections, "counting the client in")
        began = time.monotonic()
        place.server.stop()
        if stops == 2:
            until(lambda: place.service.drain.draining, "draining")
            place.server.force_stop()
    assert time.monotonic() - began < 2 * WAIT
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_second_stop_does_not_wait_for_readers_that_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "SHUTDOWN_SECONDS", 4 * WAIT)
    with serving(shared_drama(), tmp_path, drain_seconds=4 * WAIT) as place:
        raw = reader_that_stops(place)
        began = time.monotonic()
        place.server.stop()
        until(lambda: place.service.drain.draining, "draining")
        place.server.force_stop()
    raw.close()
    assert time.monotonic() - began < 2 * WAIT
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_an_engine_that_fails_later_is_not_called_one_that_loads(tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the device fell off the bus")

    with serving(shared_drama(), tmp_path) as place:
        assert place.engine is not None
        with place.native() as client:
            client.send("start", text=LONG, final=True)
            client.take_until("audio")
            place.engine.core.runner.frame = broken  # type: ignore[method-assign,assignment]
            assert client.take_until("error")[-1]["code"] == "engine_failed"
        answer = place.get("/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")
        assert "fell off the bus" in answer.json()["message"]
        answer = place.post("/v1/tts", json={"text": "Hi."})
        assert (answer.status_code, answer.json()["code"]) == (503, "engine_failed")
        with pytest.raises(InvalidStatus) as caught, place.connect("/v1/stream"):
            pass
        assert b"engine_failed" in (caught.value.response.body or b"")


def reader_that_stops(place: Place) -> socket.socket:
    """A connected socket with little room for what comes."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    raw.connect(("127.0.0.1", place.port))
    return raw


def test_a_slow_reader_is_ended_with_a_code_and_others_play_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websockets, "GRACE_SECONDS", WAIT)  # until it reads again, below
    settings = {"slow_seconds": 0.5, "send_buffer": 8_192}
    with serving(shared_drama(), tmp_path, **settings) as place:
        with (
            place.native() as good,
            place.native(sock=reader_that_stops(place), max_queue=1) as slow,
        ):
            slow.send("start", text=LONG, final=True, format="pcm_f32", sample_rate=48_000)
            good.send("start", text=LONG, final=True, max_seconds=5)
            assert good.take_until("done")[-1]["frames"] == 108
            until(lambda: place.metric("errors_total", code="slow_client"), "noticing")
            messages = slow.take_until("error")
            with pytest.raises(ConnectionClosed) as closed:
                slow.take()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4409
        assert messages[-1]["code"] == "slow_client"
        place.until_free()


def test_a_slow_reader_over_http_is_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(shared_drama(), tmp_path, slow_seconds=0.3, send_buffer=8_192) as place:
        raw = reader_that_stops(place)
        body = json.dumps({"text": LONG, "format": "pcm"}).encode()
        head = f"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        until(lambda: place.metric("errors_total", code="slow_client"), "noticing")
        place.until_free()
        until(lambda: not place.service.access.connections, "counting the client out")
        raw.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("settings", "reason"), [({"max_streams": 1}, "max_streams"), ({}, "load")]
)
def test_metrics_and_logs_have_what_streams_wait_for(
    settings: dict[str, int], reason: str, tmp_path: Path
) -> None:
    with serving(shared_drama(), tmp_path, engine=settings) as place:
        assert place.engine is not None
        object.__setattr__(place.engine.config, "admit_load", 0.0)
        with place.native() as first, place.native() as second:
            first.send("start", text=LONG, final=True)
            first.take_until("audio")
            second.send("start", text=LONG, final=True, max_seconds=0.5)
            second.take_until("queued")
            first.send("cancel")
            second.take_until("done")
        until(lambda: place.metric("waits_total", reason=reason) == 1, "counting it")
        other = {"max_streams": "load", "load": "max_streams"}[reason]
        assert place.metric("waits_total", reason=other) == 0


def test_a_connection_left_unread_between_utterances_lives_on(tmp_path: Path) -> None:
    """As one in the pool of aiohttp: pings are answered once it is used again."""
    with serving(shared_drama(), tmp_path, ping_seconds=0.05, send_buffer=8_192) as place:
        raw = Raw(place.port, WAIT, room=4_096)
        raw.upgrade("/v1/tts/live")
        assert [raw.read()[0] for _ in range(4)] == 4 * [PING]  # none was answered
        raw.send(frame(BINARY, msgpack.packb({"event": "start", "request": {"text": LONG}})))
        until(lambda: place.metric("cancels_total", reason="disconnect"), "noticing")
        assert raw.code() == 1011
        raw.socket.close()


def test_a_peer_that_answers_no_pings_frees_the_engine(tmp_path: Path) -> None:
    """Half-open: nothing reveals that it is gone, and its line is full."""
    settings = {"ping_seconds": 0.2, "slow_seconds": 2 * WAIT, "send_buffer": 8_192}
    with serving(shared_drama(), tmp_path, **settings) as place:
        raw = reader_that_stops(place)
        key = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        key += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        raw.sendall(f"GET /v1/stream HTTP/1.1\r\nHost: x\r\n{key}\r\n".encode())
        assert raw.recv(1_000).startswith(b"HTTP/1.1 101")
        start = {"type": "start", "text": LONG, "final": True, "format": "pcm_f32"}
        raw.sendall(Frame(Opcode.BINARY, msgpack.packb(start)).serialize(mask=True))
        until(lambda: place.metric("cancels_total", reason="disconnect"), "noticing")
        place.until_free()
        until(lambda: not place.service.access.connections, "counting the client out")
        assert place.metric("errors_total", code="slow_client") == 0
        raw.close()


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    with serving(shared_drama(), tmp_path, body_seconds=0.2, connections_per_client=1) as place:
        for path in ("/v1/tts", "/v1/audio/speech", "/v1/voices"):
            with socket.create_connection(("127.0.0.1", place.port)) as raw:
                raw.settimeout(WAIT)
                head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
                raw.sendall(head.encode() + b'{"te')
                assert raw.recv(1_000).startswith(b"HTTP/1.1 408")
            until(lambda: not place.service.access.connections, "counting the client out")


def test_bodies_on_their_way_count_as_connections(tmp_path: Path) -> None:
    with (
        serving(shared_drama(), tmp_path, connections_per_client=1) as place,
        socket.create_connection(("127.0.0.1", place.port)) as raw,
    ):
        raw.sendall(b"POST /v1/tts HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        until(lambda: place.service.access.connections, "counting the client in")
        answer = place.post("/v1/tts", json={"text": "Hi."})
        assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    limits = ProtocolLimits(idle_seconds=0.2)
    with serving(shared_drama(), tmp_path, limits=limits) as place:
        with place.native() as client:
            assert client.socket.response is not None
            assert client.socket.response.headers["x-idle-seconds"] == "0.2"
            assert client.take()["code"] == "idle"
            with pytest.raises(ConnectionClosed) as closed:
                client.take()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4408
        with place.fish() as client:  # its speech is open, but nothing is said
            client.send("start", request={"text": "", "format": "pcm"})
            assert client.take()["code"] == "idle"
        place.until_free()


def test_stop_lets_speech_finish_and_refuses_more(tmp_path: Path) -> None:
    with (
        serving(shared_drama(), tmp_path, drain_seconds=WAIT) as place,
        place.native() as client,
        place.native() as other,
        place.native() as idle,
    ):
        client.send("start", text=LONG, final=True, max_seconds=6)
        client.take_until("audio")
        other.send("start", text=LONG, final=True)
        other.take_until("audio")
        place.server.stop()
        assert idle.take()["code"] == "shutting_down"
        assert place.get("/ready").status_code == 503
        other.send("start", text="Hello.", final=True)
        assert "shutting_down" in {m.get("code") for m in other.take_until("error")}
        assert client.take_until("done")[-1]["frames"] == 129
        with pytest.raises(ConnectionClosed) as closed:
            client.take_until("never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001


def test_a_second_stop_is_forced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rt_drama3")
    with (
        serving(shared_drama(), tmp_path, drain_seconds=2 * WAIT) as place,
        place.native() as client,
        httpx.Client(timeout=WAIT) as http,
    ):
        client.send("start", text=LONG, final=True)
        client.take_until("audio")
        body = {"input": LONG, "response_format": "pcm", "stream_format": "sse"}
        with http.stream("POST", place.url + "/v1/audio/speech", json=body) as answer:
            events = answer.iter_lines()
            assert next(events)
            place.server.stop()
            until(lambda: place.service.drain.draining, "draining")
            place.server.force_stop()
            assert client.take_until("error")[-1]["code"] == "shutting_down"
            with pytest.raises(ConnectionClosed) as closed:
                client.take()
            assert "shutting_down" in list(events)[-2]
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        until(lambda: not place.service.access.connections, "counting the clients out")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    ends = [vars(r)["fields"]["by"] for r in caplog.records if r.getMessage() == "disconnected"]
    assert ends == ["shutting_down"]


def test_the_first_request_finds_the_system_block_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    class Fake:
        """Asks for a word once the model is there, and ends."""

        def __init__(self, *_: Any) -> None:
            pass

        def run(self, keep: Callable[[], Drama3]) -> None:
            stream_resample._design.cache_clear()
            engine = keep().engine
            made = stream_resample._design.cache_info().misses
            for rate in (8_000, 16_000, 24_000, 48_000):
                StreamResampler(44_100, rate)
            assert stream_resample._design.cache_info().misses == made >= 4
            before = engine.core.voices.hits
            assert list(engine.open(SpeechRequest("Hi.", max_frames=1)))
            found.append(engine.core.voices.hits - before)

    monkeypatch.setattr(run, "Server", Fake)
    monkeypatch.setattr(run, "settle", lambda: None)
    run.serve(ServerConfig(data_folder=str(tmp_path)), new_drama, "small")
    assert found == [1]


def test_a_word_that_fails_keeps_no_server_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    with running(shared_drama(), max_streams=1, max_queue=0) as engine:
        busy = engine.open(SpeechRequest(LONG))
        drama = SimpleNamespace(engine=engine, codec=shared_drama().codec)
        run._warm_up(drama)  # type: ignore[arg-type]
        busy.cancel()
    assert "warm-up request failed: at capacity: 1 streams active" in caplog.text


def test_a_silent_connection_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some clients keep an utterance open for hours, with no text for it."""
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.0)
    with serving(shared_drama(), tmp_path, drain_seconds=2 * WAIT) as place:
        with place.fish() as silent, place.native() as speaking:
            silent.send("start", request={"text": "", "format": "pcm"})
            speaking.send("start", text=LONG, final=True, max_seconds=2)
            speaking.take_until("audio")
            until(lambda: place.engine and place.engine.streams()["idle"] == 1, "opening")
            began = time.monotonic()
            place.server.stop()
            last = silent.take_until("finish")[-1]
            assert (last["reason"], last["code"]) == ("error", "shutting_down")
            assert speaking.take_until("done")[-1]["complete"] is False  # spoken to its limit
        until(lambda: not place.service.drain.conversations, "the end")
        assert time.monotonic() - began < WAIT  # of twice as much
        assert place.metric("errors_total", code="shutting_down") == 2  # one of each


def test_the_end_waits_for_text_that_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an utterance that has just begun, and of a sentence that has, however long ago."""
    monkeypatch.setattr(connection, "IDLE_SECONDS", 2 * WAIT)
    with (
        serving(shared_drama(), tmp_path, drain_seconds=WAIT) as place,
        place.native() as fresh,
        place.native() as half,
    ):
        half.send("start", max_seconds=0.2)
        half.take_until("ready")
        half.send("text", text="The answer to this is")
        stream = next(iter(place.engine.core.streams.values()))
        until(lambda: stream.text.waiting, "beginning")
        fresh.send("start", max_seconds=0.2)
        fresh.take_until("ready")
        place.server.stop()
        until(lambda: place.service.drain.draining, "draining")
        time.sleep(0.2)  # asked again and again meanwhile
        for client, rest in ((half, " five."), (fresh, "Hello.")):
            client.send("text", text=rest)
            client.send("finish")
            assert client.take_until("done")[-1]["frames"] == 4


def test_a_connection_that_has_spoken_holds_up_the_end_for_a_pause_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of Fish's dialect never say that they are done; their audio is theirs by then."""
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.1)
    with serving(ending_drama(), tmp_path, drain_seconds=2 * WAIT) as place:
        with place.fish() as client:
            client.send("start", request={"text": "", "format": "pcm"})
            client.send("text", text="Hello there. ")
            client.send("flush")
            client.take_until("audio")
            began = time.monotonic()
            place.server.stop()
            assert client.take_until("finish")[-1]["code"] == "shutting_down"
        until(lambda: not place.service.drain.conversations, "the end")
        assert time.monotonic() - began < WAIT


def test_stop_fades_what_does_not_end(tmp_path: Path) -> None:
    with serving(shared_drama(), tmp_path, drain_seconds=0.1) as place:
        with place.native() as client:
            client.send("start", text=LONG, final=True)
            client.take_until("audio")
            place.server.stop()
            messages = client.take_until("error")
        audio = [m["audio"] for m in messages if m["type"] == "audio"]
        assert audio[-1][-1024:] == bytes(1024)
        assert messages[-1]["code"] == "shutting_down"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no SIGTERM to a child there")
def test_sigterm_exits_with_0(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "rt_drama3", "serve", "--port", str(port)]
    command += ["--data-folder", str(tmp_path), "--step-mode", "eager", "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 2 * WAIT
        while True:
            assert time.monotonic() < deadline, "it did not start"
            assert process.poll() is None, "it ended"
            try:
                if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        request = {"text": "This is a sentence to be heard.", "format": "pcm", "seed": 1}
        with httpx.stream(
            "POST", f"http://127.0.0.1:{port}/v1/tts", json=request, timeout=WAIT
        ) as answer:
            parts = answer.iter_raw()
            audio = next(parts)
            process.send_signal(signal.SIGTERM)
            audio += b"".join(parts)
        _, log = process.communicate(timeout=WAIT)
    finally:
        process.kill()
    assert process.returncode == 0
    assert len(audio) > 40_000
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"listening", "ready", "request ended", "draining"} <= {line["event"] for line in lines}
    assert "sentence to be heard" not in log


def test_a_sentence_that_has_begun_is_spoken_during_the_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.0)
    idle = threading.Event()
    real = SpeechSender._idle

    async def noted(self: SpeechSender, event: Idle) -> None:
        await real(self, event)
        idle.set()

    monkeypatch.setattr(SpeechSender, "_idle", noted)
    with (
        serving(ending_drama(), tmp_path, drain_seconds=2 * WAIT) as place,
        place.native() as client,
    ):
        client.send("start")
        client.send("text", text="Hello. And then we")
        client.take_until("audio")
        assert idle.wait(WAIT)  # the first sentence was spoken
        place.server.stop()
        until(lambda: place.service.drain.draining, "draining")
        client.send("text", text=" went home.")
        client.send("finish")
        messages = client.take_until("done", "error")
        assert messages[-1]["type"] == "done"
        assert messages[-1]["segments"] == 2


def test_a_conversation_that_begins_as_the_drain_does_is_drained() -> None:
    async def drained() -> list[str]:
        drain, calls = Drain(0.0, None), list[str]()
        conversation: Any = Mock(drain=lambda: calls.append("drain"))
        await drain.drain()
        with drain.conversation(conversation):
            return calls

    assert asyncio.run(drained()) == ["drain"]


def test_a_cancel_that_meets_the_last_audio_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = threading.Event()
    real = SpeechSender.finish

    async def held(self: SpeechSender) -> None:
        reached.set()
        while not self._receiver.stopped:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await real(self)

    monkeypatch.setattr(SpeechSender, "finish", held)
    with serving(ending_drama(), tmp_path) as place, place.native() as client:
        client.send("start", text="Hello.", final=True)
        assert reached.wait(WAIT)
        client.send("cancel")
        assert client.take_until("cancelled", "done", "error")[-1]["type"] == "cancelled"


def test_an_utterance_without_text_that_opens_during_the_drain_is_idle(
    endless: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.05)
    real = endless.service.openings.open

    async def open_stream(order: Any) -> Any:
        opened = await real(order)
        for conversation in list(endless.service.drain.conversations):
            conversation.drain()
        return opened

    monkeypatch.setattr(endless.service.openings, "open", open_stream)
    with endless.native() as client:
        client.send("start")
        assert client.take_until("error")[-1]["code"] == "shutting_down"
