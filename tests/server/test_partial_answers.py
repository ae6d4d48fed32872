"""An answer over HTTP that is not whole never looks complete."""

from __future__ import annotations

import json
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from rt_drama3.server.transport.http import TimedHttp
from tests.server.tools import LONG, Place, serving, sse_events
from tests.small import WAIT, shared_drama, until

OPENAI = "/v1/audio/speech"
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (OPENAI, {"input": LONG, "response_format": name})
        for name in ("pcm", "wav", "mp3", "opus", "flac", "aac")
    },
    "fish": ("/v1/tts", {"text": LONG, "format": "pcm"}),
}
SSE = {"input": LONG, "response_format": "pcm", "stream_format": "sse"}


def ask(place: Place, path: str, body: dict[str, Any], version: str) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", place.port), timeout=WAIT)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    raw.sendall(head.encode() + content)
    return raw


def read_body(raw: socket.socket) -> bytes:
    """What follows the head, once there is some of it."""
    data = b""
    while not data.partition(b"\r\n\r\n")[2]:
        data += raw.recv(65_536)
    assert b" 200 " in data[:20]
    return data.partition(b"\r\n\r\n")[2]


def read_rest(raw: socket.socket) -> bytes:
    """Everything up to the end of the connection.

    Raises:
        ConnectionResetError: that end is a reset.
    """
    data = b""
    while part := raw.recv(65_536):
        data += part
    return data


def cut(place: Place) -> None:
    """Ends all speech, as the operator."""
    assert place.server.loop is not None
    place.server.loop.call_soon_threadsafe(place.service.drain.cut)


@pytest.mark.parametrize("kind", BODIES)
def test_http_1_0_ends_with_a_reset(endless: Place, kind: str) -> None:
    """It has no chunks, so that the end of the connection is the end of the answer."""
    with ask(endless, *BODIES[kind], "1.0") as raw:
        read_body(raw)
        cut(endless)
        with pytest.raises(ConnectionResetError):
            read_rest(raw)
    endless.until_free()


@pytest.mark.parametrize("kind", BODIES)
def test_http_1_1_ends_without_its_last_chunk(endless: Place, kind: str) -> None:
    with ask(endless, *BODIES[kind], "1.1") as raw:
        read_body(raw)
        cut(endless)
        assert not read_rest(raw).endswith(b"0\r\n\r\n")
    endless.until_free()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_events_end_with_an_error(endless: Place, version: str) -> None:
    with ask(endless, OPENAI, {**SSE}, version) as raw:
        read_body(raw)
        cut(endless)
        rest = read_rest(raw) if version == "1.0" else raw.recv(1 << 20)
        while b'"stopped"' not in rest:
            rest += raw.recv(1 << 20)
        assert b"speech.audio.done" not in rest
    endless.until_free()


@pytest.mark.parametrize("kind", BODIES)
def test_a_whole_answer_over_http_1_0_has_a_proper_end(ending: Place, kind: str) -> None:
    path, body = BODIES[kind]
    field = "text" if kind == "fish" else "input"
    with ask(ending, path, {**body, field: "Hello there.", "seed": 4}, "1.0") as raw:
        data = read_body(raw)
        assert len(data + read_rest(raw)) > 1_000


@pytest.mark.skipif(sys.platform == "win32", reason="reads the option as POSIX has it")
def test_a_killed_server_resets_http_1_0(endless: Place) -> None:
    """The system closes its sockets, as the option says."""

    def resets() -> list[bool]:
        connections = endless.server._uvicorn.server_state.connections
        sockets = [
            one.transport.get_extra_info("socket")
            for one in list(connections)
            if isinstance(one, TimedHttp) and one.scope and one.scope["path"] == "/v1/tts"
        ]
        options = [one.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) for one in sockets]
        return [struct.unpack("ii", option) == (1, 0) for option in options]

    path, body = BODIES["fish"]
    for version, wanted in (("1.0", [True]), ("1.1", [False])):
        with ask(endless, path, body, version) as raw:
            read_body(raw)
            assert resets() == wanted
        endless.until_free()
        until(lambda: not endless.service.access.connections, "counting the client out")
        until(lambda: not resets(), "closing")


@pytest.mark.parametrize("kind", ["pcm", "mp3", "events"])
def test_the_end_of_a_drain_is_not_the_end_of_an_answer(kind: str, tmp_path: Path) -> None:
    body = SSE if kind == "events" else BODIES[kind][1]
    with (
        serving(shared_drama(), tmp_path, {"max_streams": 1}, drain_seconds=0.1) as place,
        ThreadPoolExecutor() as threads,
        httpx.Client(timeout=WAIT) as http,
        http.stream("POST", place.url + OPENAI, json=body) as begun,
    ):
        parts = begun.iter_raw()
        received = next(parts)
        waiting = threads.submit(place.post, "/v1/tts", json={"text": LONG, "format": "mp3"})
        until(lambda: place.engine and place.engine.streams()["waiting"], "waiting")
        place.server.stop()
        if kind == "events":
            found = sse_events((received + b"".join(parts)).decode())
            assert {event["type"] for event in found[:-1]} == {"speech.audio.delta"}
            assert found[-1]["error"]["code"] == "shutting_down"
        else:
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                list(parts)
        answer = waiting.result(WAIT)
        assert (answer.status_code, answer.json()["code"]) == (503, "shutting_down")
        assert answer.headers["retry-after"]
