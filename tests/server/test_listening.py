"""What clients have spoken, as listeners and a local sink hear it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rt_drama3.cli.main import app
from rt_drama3.errors import RequestError, SinkError
from rt_drama3.server.monitor import feed as listen_feed
from rt_drama3.sinks.pcm_format import to_int16
from tests.protocol.tools import check
from tests.server.tools import LONG, Client, Place, audio_of, serving
from tests.sinks.doubles import MemorySink
from tests.small import shared_drama, until

SHORT: dict[str, Any] = {"text": "Hello there.", "final": True, "max_seconds": 0.5}
BLOCK = 882  # samples that the mixer gives a sink at a time


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with serving(shared_drama(), tmp_path_factory.mktemp("listen"), listen=True) as running:
        yield running


@contextmanager
def listener(place: Place, query: str = "", **more: Any) -> Iterator[Client]:
    with place.connect(f"/v1/listen?{query}", **more) as websocket:
        client = Client(websocket, "type")
        assert client.take()["type"] == "ready"
        yield client


def speak(place: Place, **fields: Any) -> list[dict[str, Any]]:
    """What a client gets of an utterance."""
    with place.native() as client:
        client.send("start", **{**SHORT, **fields})
        return client.take_until("done", "error")


def samples(data: bytes) -> NDArray[np.int16]:
    return np.frombuffer(data, "<i2")


def heard(messages: list[dict[str, Any]]) -> bytes:
    return b"".join(message["pcm"] for message in messages if message["type"] == "audio")


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in messages]


def refusal(place: Place, path: str, **more: Any) -> int:
    with pytest.raises(InvalidStatus) as caught, place.connect(path, **more):
        pass
    return caught.value.response.status_code


# Listeners.


def test_nothing_of_it_is_there_unless_asked_for(endless: Place) -> None:
    assert endless.service.broadcaster is None
    assert refusal(endless, "/v1/listen") in (403, 404)
    assert endless.post("/v1/stop").status_code == 404
    assert "/v1/stop" not in endless.get("/openapi.json").json()["paths"]


def test_a_listener_hears_what_the_client_hears(place: Place) -> None:
    with listener(place) as ear:
        spoken = speak(place)
        messages = ear.take_until("end")
    assert heard(messages) == audio_of(spoken)
    begin, *_, end = messages
    assert begin["request_id"] == spoken[0]["id"]
    assert (end["cancelled"], end["samples"]) == (False, spoken[-1]["sent"]["samples"])
    assert [m["text"] for m in messages if m["type"] == "segment"] == ["Hello there."]
    place_of_audio = 0
    for message in messages:
        check(message, "listen", "server_" + message["type"])
        assert message["stream"] == begin["stream"]
        if message["type"] == "audio":
            assert message["first_sample"] == place_of_audio
            place_of_audio += len(message["pcm"]) // 2


def test_http_speech_is_heard_too_and_at_the_listeners_rate(place: Place) -> None:
    with listener(place, "sample_rate=48000") as ear:
        body = {"text": "Hello there.", "format": "pcm", "sample_rate": 48_000, "latency": "low"}
        answer = place.post("/v1/tts", json=body)
        messages = ear.take_until("end")
    assert answer.status_code == 200
    assert heard(messages) == answer.content


def test_a_late_listener_gets_the_current_position(place: Place) -> None:
    with place.native() as client:
        client.send("start", text=LONG, final=True)
        client.take_until("audio")
        with listener(place) as ear:
            messages = ear.take_until("audio")
            assert kinds(messages) == ["begin", "segment", "audio"]
            assert messages[-1]["first_sample"] > 0
        client.send("cancel")
        client.take_until("cancelled")


def test_a_cancel_is_sent_even_after_all_was_sent(place: Place) -> None:
    with listener(place) as ear, place.native() as client:
        client.send("start", text=LONG, final=True)
        ear.take_until("audio")
        client.send("cancel")
        assert ear.take_until("end")[-1]["cancelled"]
        client.take_until("cancelled")
        client.send("start", **SHORT)
        ended = ear.take_until("end")[-1]
        assert not ended["cancelled"]
        client.send("cancel")
        again = ear.take_until("end")
        assert again[-1]["stream"] == ended["stream"]
        assert again[-1]["cancelled"]


def test_the_next_utterance_of_a_client_continues_the_previous_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.service.broadcaster, "clock", lambda: 100.0)
    with listener(place, "mode=mix") as ear, place.native() as client:
        for _ in range(2):
            client.send("start", **SHORT)
            client.take_until("done")
        first, second = (ear.take_until("end")[0] for _ in range(2))
        assert first["after"] is None
        assert second["after"] == first["stream"]
        speak(place)
        assert ear.take_until("end")[0]["after"] is None  # another client


@pytest.mark.parametrize("mode", ["mix", "queue"])
def test_two_clients(place: Place, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_feed, "TURN_SECONDS", 1_000.0)
    with listener(place, f"mode={mode}") as ear, place.native() as client:
        client.send("start")
        client.send("text", text="Hello there. ")  # and more may come, so that it stays open
        first = ear.take_until("begin")[-1]["stream"]
        other = audio_of(speak(place))
        if mode == "mix":
            messages = ear.take_until("end")
            assert messages[-1]["stream"] != first
        else:
            client.send("cancel")
            messages = ear.take_until("end")
            assert {message["stream"] for message in messages} == {first}
            assert messages[-1]["cancelled"]
            messages = ear.take_until("end")
        mine = [m for m in messages if m["stream"] == messages[-1]["stream"]]
        assert heard(mine) == other
        if mode == "mix":
            client.send("cancel")
        client.take_until("cancelled")


def test_stop_silences_and_may_cancel(place: Place) -> None:
    with listener(place) as ear, listener(place) as other, place.native() as client:
        client.send("start", text=LONG, final=True)
        ear.take_until("audio")
        other.send("stop")
        assert ear.take_until("stop")[-1]["fade_ms"] == 20
        assert ear.take()["cancelled"]
        assert other.take_until("stop", "end")[-1]["type"] == "stop"
        client.take_until("audio")  # the client's own speech continues, inaudible to others
        assert place.post("/v1/stop", json={}).json() == {"status": "quiet", "cancelled": 0}
        assert ear.take()["type"] == "stop"
        client.take_until("audio")
        answer = place.post("/v1/stop", json={"cancel": True})
        assert answer.json() == {"status": "quiet", "cancelled": 1}
        error = client.take_until("error")[-1]
        assert (error["code"], error["scope"]) == ("stopped", "utterance")
        client.send("start", **SHORT)
        client.take_until("done")
        assert ear.take() == {"type": "stop", "fade_ms": 20}
        assert kinds(ear.take_until("end"))[0] == "begin"
    assert place.post("/v1/stop", json={"cancel": 1}).status_code == 400


def test_stop_may_end_fishs_dialect_and_is_in_the_document(place: Place) -> None:
    assert "/v1/stop" in place.get("/openapi.json").json()["paths"]
    with place.fish() as client:
        client.send("start", request={"text": "", "format": "pcm"})
        client.send("text", text=LONG)
        client.take_until("audio")
        assert place.post("/v1/stop", json={"cancel": True}).json()["cancelled"] == 1
        finish = client.take_until("finish")[-1]
        assert (finish["reason"], finish["code"]) == ("error", "stopped")
    assert place.post("/v1/stop", content=b" " * 2_000).status_code == 413
    place.until_free()


def test_the_command(place: Place, tmp_path: Path) -> None:
    run = CliRunner()
    with place.native() as client:
        client.send("start", text=LONG, final=True)
        client.take_until("audio")
        result = run.invoke(app, ["stop", "--url", place.url, "--cancel"], catch_exceptions=False)
        assert result.stdout == "quiet, 1 cancelled\n"
        client.take_until("error")
    assert run.invoke(app, ["stop", "--url", place.url]).stdout == "quiet\n"
    with pytest.raises(RequestError, match="write http"):
        run.invoke(app, ["stop", "--url", "localhost:1"], catch_exceptions=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(RequestError, match="is it running"):
        run.invoke(app, ["stop", "--url", address], catch_exceptions=False)


def test_the_command_without_listeners(endless: Place) -> None:
    with pytest.raises(RequestError, match="--listen or --sink"):
        CliRunner().invoke(app, ["stop", "--url", endless.url], catch_exceptions=False)


def test_what_was_stopped_or_has_sounded_is_not_continued(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(place.service.broadcaster, "clock", lambda: now)
    with listener(place) as ear, place.native() as client:
        client.send("start", **SHORT)
        client.take_until("done")
        ear.take_until("end")
        place.post("/v1/stop")
        client.send("start", **SHORT)
        client.take_until("done")
        assert ear.take_until("begin")[-1]["after"] is None
        ear.take_until("end")
        now += 2 * SHORT["max_seconds"]
        client.send("start", **SHORT)
        client.take_until("done")
        assert ear.take_until("begin")[-1]["after"] is None


def test_stop_ends_speech_over_http_without_its_end(place: Place) -> None:
    import httpx

    body = {"text": LONG, "format": "pcm"}
    with httpx.stream("POST", place.url + "/v1/tts", json=body, timeout=30) as answer:
        parts = answer.iter_bytes()
        next(parts)
        assert place.post("/v1/stop", json={"cancel": True}).json()["cancelled"] == 1
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in parts:
                pass
    place.until_free()


def test_what_listeners_send_is_checked(place: Place) -> None:
    with listener(place) as ear:
        ear.send("ping", data=7)
        assert ear.take()["data"] == 7
        ear.send("start")
        error = ear.take()
        check(error, "listen", "server_error")
        assert (error["code"], error["scope"]) == ("unknown_type", "message")
        for _ in range(place.service.limits.errors):  # the last ends it: none may follow
            ear.socket.send("text")
        with pytest.raises(ConnectionClosed) as caught:
            ear.take_until("never")
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 4429


@pytest.mark.parametrize("query", ["sample_rate=1", "sample_rate=x", "mode=loud", "mode="])
def test_wrong_options(place: Place, query: str) -> None:
    assert refusal(place, f"/v1/listen?{query}") == 400


def test_pages_of_others_may_not_listen(place: Place) -> None:
    own = f"127.0.0.1:{place.port}"
    with listener(place, origin=f"http://{own}"):
        pass
    rebound = {"Host": f"evil.example:{place.port}"}
    for origin in ("https://evil.example", "null", f"http://evil.example:{place.port}"):
        assert refusal(place, "/v1/listen", origin=origin) == 403
        headers = {"Origin": origin, **(rebound if origin.endswith(str(place.port)) else {})}
        assert place.post("/v1/stop", headers=headers).status_code == 403
    renamed = f"http://localhost:{place.port}"  # the same page, to a browser of another origin
    assert place.post("/v1/stop", headers={"Origin": renamed}).status_code == 403
    assert place.post("/v1/stop", headers={"Origin": f"http://{own}"}).status_code == 200


def test_keys_and_captions(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"listen": True, "api_keys": ("open",), "captions": False}
    with serving(shared_drama(), tmp_path, **settings) as place:
        assert refusal(place, "/v1/listen") == 401
        assert refusal(place, "/v1/listen?key=open") == 401  # it would be in logs
        assert place.post("/v1/stop").status_code == 401
        key = {"Authorization": "Bearer open"}
        offers = ["rt-drama3", "rt-drama3.key.b3Blbg"]  # as browsers do
        with listener(place, additional_headers=key), listener(place, subprotocols=offers) as ear:
            assert ear.socket.subprotocol == "rt-drama3"
            with place.native(additional_headers=key) as client:
                client.send("start", **SHORT)
                client.take_until("done")
            assert set(kinds(ear.take_until("end"))) == {"begin", "audio", "end"}
        assert place.post("/v1/stop", headers=key).status_code == 200


def test_a_slow_listener_drops_out_alone(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"listen": True, "listen_seconds": 1, "send_buffer": 4_096}
    with serving(shared_drama(), tmp_path, **settings) as place, place.native() as client:
        with socket.create_connection(("127.0.0.1", place.port)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            with place.connect("/v1/listen", sock=deaf, max_queue=1) as websocket:
                client.send("start", text=LONG, final=True)
                while not place.metric("errors_total", code="slow_client"):
                    client.take_until("audio")
                client.take_until("audio")
                with pytest.raises(ConnectionClosed) as caught:
                    Client(websocket, "type").take_until("never")
        # One who reads too late even then meets a reset instead of the close frame.
        assert caught.value.rcvd is None or caught.value.rcvd.code == 4409
        with listener(place) as ear:  # it may come again
            assert ear.take_until("audio")[0]["type"] == "begin"
        client.send("cancel")
        client.take_until("cancelled")


def test_listeners_are_notified_when_the_server_stops(tmp_path: Path) -> None:
    with serving(shared_drama(), tmp_path, listen=True) as place, listener(place) as ear:
        place.server.stop()
        messages = ear.take_until("error")
        assert messages[-1]["code"] == "shutting_down"
        with pytest.raises(ConnectionClosed) as caught:
            ear.take()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1001


# The local sink.


@contextmanager
def playing(folder: Path, sink: MemorySink, **settings: Any) -> Iterator[Place]:
    with serving(shared_drama(), folder, sink=sink, **settings) as place:
        yield place
    assert sink.events[-1] == "close"


def until_heard(place: Place) -> None:
    broadcaster = place.service.broadcaster
    assert broadcaster is not None
    assert broadcaster.sink is not None
    sink = broadcaster.sink
    until(lambda: not sink.playing, "playing")


def test_the_sink_plays_what_the_client_hears(tmp_path: Path) -> None:
    sink = MemorySink()
    with playing(tmp_path, sink) as place:
        spoken = audio_of(speak(place))
        until_heard(place)
        np.testing.assert_array_equal(to_int16(sink.samples), samples(spoken))
        assert place.post("/v1/stop").status_code == 200
        assert refusal(place, "/v1/listen") in (403, 404)  # that was not asked for


@pytest.mark.parametrize("mode", ["mix", "queue"])
def test_two_clients_share_the_sink(tmp_path: Path, mode: str) -> None:
    sink = MemorySink()
    sink.gate.clear()
    with playing(tmp_path, sink, sink_mode=mode) as place:
        one, two = (samples(audio_of(speak(place, seed=seed))) / 32768 for seed in (1, 2))
        sink.gate.set()
        until_heard(place)
    out = sink.samples
    if mode == "queue":
        np.testing.assert_allclose(out, np.concatenate([one, two]), atol=2e-5)
        return
    assert len(out) < len(one) + len(two)
    late = len(out) - len(two)
    assert late in (0, BLOCK)
    total = np.zeros(max(len(one), late + len(two)))
    total[: len(one)] += one
    total[late:] += two
    np.testing.assert_allclose(out, np.clip(total, -1, 1), atol=5e-5)


def test_one_client_is_never_mixed_with_itself(tmp_path: Path) -> None:
    sink = MemorySink()
    with playing(tmp_path, sink, sink_mode="mix") as place:
        spoken = b""
        with place.native() as client:
            for _ in range(3):
                client.send("start", **SHORT)
                spoken += audio_of(client.take_until("done"))
        until_heard(place)
    np.testing.assert_array_equal(to_int16(sink.samples), samples(spoken))


def test_a_cancel_silences_what_the_client_was_sent_long_ago(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.gate.clear()  # a device that plays far slower than speech is made
    with playing(tmp_path, sink) as place, place.native() as client:
        client.send("start", **{**SHORT, "max_seconds": 2})
        spoken = client.take_until("done")
        assert sink.waiting.wait(30)
        client.send("cancel")
        client.take_until("cancelled")
        until(lambda: "stop" in sink.events, "the fade")
        sink.gate.set()
        until_heard(place)
        assert len(sink.samples) < len(audio_of(spoken)) // 4


def test_stop_silences_the_sink_and_later_speech_sounds(tmp_path: Path) -> None:
    sink = MemorySink()
    with playing(tmp_path, sink) as place:
        with place.native() as client:
            client.send("start", text=LONG, final=True)
            client.take_until("audio")
            until(lambda: len(sink.samples) > 0, "sound")
            assert place.post("/v1/stop").status_code == 200
            assert "stop" in sink.events
            before = len(sink.samples)
            client.take_until("audio")
            client.take_until("audio")
            assert len(sink.samples) == before
            client.send("cancel")
            client.take_until("cancelled")
        spoken = samples(audio_of(speak(place)))
        until_heard(place)
        np.testing.assert_array_equal(to_int16(sink.samples)[before:], spoken)


def test_a_dead_sink_affects_no_client_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = MemorySink()
    with playing(tmp_path, sink) as place, caplog.at_level("INFO", "rt_drama3"):
        sink.failing = SinkError("memory was unplugged.")
        assert speak(place)[-1]["type"] == "done"
        until_heard(place)
        assert len(sink.samples) == 0
        assert "memory was unplugged." in caplog.text
        sink.failing = None
        spoken = audio_of(speak(place))
        until_heard(place)
        assert len(sink.samples) >= len(spoken) // 2 - BLOCK
        assert "plays again" in caplog.text


def test_a_stuck_sink_is_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = MemorySink()
    sink.gate.clear()
    with playing(tmp_path, sink, sink_seconds=1) as place:
        spoken = audio_of(speak(place, max_seconds=5))
        assert len(spoken) // 2 > 4 * 44_100
        assert place.metric("sink_cuts_total") == 1
        assert "too far behind" in caplog.text
        sink.gate.set()
        until_heard(place)
        kept = to_int16(sink.samples)
        assert 44_100 < len(kept) < 4 * 44_100
        whole = samples(spoken)[: len(kept)]
        np.testing.assert_array_equal(kept[: -BLOCK - 1], whole[: -BLOCK - 1])
        assert abs(int(kept[-1])) <= 1  # faded


def test_the_end_of_the_server_plays_the_sink_out(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.gate.clear()
    with playing(tmp_path, sink, drain_seconds=20) as place:
        spoken = samples(audio_of(speak(place)))
        place.server.stop()
        until(lambda: place.service.drain.draining, "draining")
        sink.gate.set()
    np.testing.assert_array_equal(to_int16(sink.samples), spoken)


def test_a_sink_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    from rt_drama3.server.app import create_app
    from rt_drama3.server.config import ServerConfig
    from rt_drama3.ws_server import Server

    sink = MemorySink()
    sink.failing = SinkError("memory is not there.")
    config = ServerConfig(port=0, data_folder=str(tmp_path))
    server = Server(create_app(config=config, sink=sink), config)
    with pytest.raises(SinkError, match="not there"):
        server.run()
