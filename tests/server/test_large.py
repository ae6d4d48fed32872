"""Large messages are unpacked in threads, small ones on the event loop."""

from __future__ import annotations

import base64
import threading
from pathlib import Path

import msgpack
import pytest

from rt_drama3.protocol import wire
from rt_drama3.server.workers import LONG_MESSAGE
from rt_drama3.server.ws import connection as live
from tests.server.test_voices import clip
from tests.server.tools import Place

LARGE = 8 << 20  # bytes of a clip


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Sizes that were parsed, and the threads that did it."""
    found: list[tuple[int, str]] = []

    def watch(module: object, name: str) -> None:
        real = getattr(module, name)

        def parse(data: bytes, *arguments: object) -> object:
            found.append((len(data), threading.current_thread().name))
            return real(data, *arguments)

        monkeypatch.setattr(module, name, parse)

    from rt_drama3.protocol import http_bodies, session

    watch(http_bodies, "parse_json")
    for module in (http_bodies, session, live):
        watch(module, "unpack")
    return found


def where(threads: list[tuple[int, str]]) -> set[tuple[bool, bool]]:
    """Whether each message was long, and whether it was parsed in a thread for that."""
    found = {(size > LONG_MESSAGE, name.startswith("rt-drama3-unpack")) for size, name in threads}
    threads.clear()
    return found


def reference(size: int) -> dict[str, object]:
    return {"text": "Hello.", "audio": bytes(size)}


def test_http_bodies(ending: Place, threads: list[tuple[int, str]]) -> None:
    for size, long in ((100, False), (LARGE, True)):
        one = {"text": "Hello.", "audio": base64.b64encode(bytes(size)).decode()}
        answer = ending.post("/v1/tts", json={"text": "Hi.", "references": [one]})
        assert answer.json()["code"] == "bad_reference"
        answer = ending.post("/v1/voices", json={"name": "a", **one})
        assert answer.json()["code"] == "bad_reference"
        packed = msgpack.packb({"text": "Hi.", "references": [reference(size)]})
        headers = {"Content-Type": "application/msgpack"}
        answer = ending.post("/v1/tts", content=packed, headers=headers)
        assert answer.json()["code"] == "bad_reference"
        assert (
            ending.post("/v1/audio/speech", json={"x": one}).json()["error"]["code"] == "bad_text"
        )
        assert len(threads) == 4
        assert where(threads) == {(long, long)}


def test_native_messages(ending: Place, threads: list[tuple[int, str]]) -> None:
    with ending.native() as client:
        for size, long in ((100, False), (LARGE, True), (100, False)):
            client.send("start", text="Hi.", final=True, references=[reference(size)])
            error = client.take()
            assert (error["code"], error["scope"]) == ("bad_reference", "utterance")
            assert "references[0]" in error["message"]
            assert error["remedy"]
            assert where(threads) == {(long, long)}
        client.send("start", text="Hi.", final=True)  # the connection continues
        assert client.take_until("done", "error")[-1]["type"] == "done"


def test_live_messages(ending: Place, threads: list[tuple[int, str]]) -> None:
    for size, long in ((100, False), (LARGE, True)):
        with ending.fish() as client:
            client.send("start", request={"text": "Hi.", "references": [reference(size)]})
            finish = client.take()
            assert (finish["reason"], finish["code"]) == ("error", "bad_reference")
            assert "references[0]" in finish["message"]
            assert where(threads) == {(long, long)}


def test_a_large_message_that_is_broken(ending: Place, threads: list[tuple[int, str]]) -> None:
    with ending.native() as client:
        client.socket.send(msgpack.packb({"type": "start", "x": bytes(LARGE)})[:-1])
        assert client.take()["code"] == "bad_message"
        client.send("ping", data=1)
        assert client.take()["type"] == "pong"
        assert (True, True) in where(threads)


def test_a_clip_of_megabytes_arrives_unharmed(tmp_path: Path, ending: Place) -> None:
    audio = clip(tmp_path, 20)
    assert len(audio) > 20 * LONG_MESSAGE
    encoded = base64.b64encode(audio).decode()
    answer = ending.post("/v1/voices", json={"name": "long", "text": "Hello.", "audio": encoded})
    assert answer.status_code == 201
    assert answer.json()["seconds"] == pytest.approx(20)
    with ending.native() as client:
        start = {"references": [{"text": "Hello.", "audio": audio}]}
        client.send("start", text="Hi.", final=True, max_seconds=0.1, **start)
        assert client.take_until("done", "error")[-1]["type"] == "done"


@pytest.mark.parametrize("place", [0, 1])
def test_one_bad_reference_among_good_ones_is_named(
    tmp_path: Path, ending: Place, place: int
) -> None:
    clips = [{"text": "Hello.", "audio": clip(tmp_path)} for _ in range(2)]
    clips[place] = {"text": "Hello.", "audio": b"no audio"}
    with ending.native() as client:
        client.send("start", text="Hi.", final=True, references=clips)
        assert f"references[{place}]" in client.take()["message"]


def test_codes_beyond_their_codebook(ending: Place) -> None:
    wrong = {"text": "Hello.", "vq_codes": b"\xff\xff" * 3}
    with ending.native() as client:
        for name in ("references", "history"):
            client.send("start", text="Hi.", final=True, **{name: [wrong]})
            error = client.take()
            assert error["code"] == "bad_reference"
            assert f"{name}[0]" in error["message"]


def test_json_with_long_texts_is_read_as_ever() -> None:
    import json

    from rt_drama3.protocol import ProtocolLimits

    limits = ProtocolLimits()
    long = "x" * (2 * wire.LONG)
    for value in (
        {"a": long, "b": [1, {"c": long + "y"}], "d": '"\\' * 300},
        {"a": "\\" * wire.LONG, "b": '\\"' * wire.LONG},
        {"a": "\u00e9" * wire.LONG, "b": "\U0001f600" * 20_000},
        {"a": "b" * 40, "n": "\n" * wire.LONG},
    ):
        for ascii_only in (True, False):
            body = json.dumps(value, ensure_ascii=ascii_only).encode()
            assert wire.parse_json(body, limits) == value
