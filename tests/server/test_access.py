"""Keys, origins and limits of connections."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.server.tools import LONG, Place, serving
from tests.small import WAIT, ending_drama, shared_drama, until

KEY = {"Authorization": "Bearer second"}


def refused_with(place: Place, path: str, **more: Any) -> tuple[int, str]:
    """Status and code of a handshake that fails."""
    with pytest.raises(InvalidStatus) as caught, place.connect(path, **more):
        pass
    response = caught.value.response
    assert response.body is not None
    body = httpx.Response(200, content=bytes(response.body)).json()
    assert body["message"]
    return response.status_code, body["code"]


def test_keys(tmp_path: Path) -> None:
    with serving(ending_drama(), tmp_path, api_keys=("first", "second")) as place:
        body = {"input": "Hi.", "response_format": "pcm"}
        for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Basic second"}):
            answer = place.post("/v1/audio/speech", json=body, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
            assert place.post("/v1/tts", json={"text": "Hi."}, headers=headers).status_code == 401
            for path in ("/v1/models", "/v1/voices", "/v1/voices/x", "/metrics"):
                assert place.get(path, headers=headers).status_code == 401
            for path in ("/v1/stream", "/v1/tts/live"):
                refused = refused_with(place, path, additional_headers=headers)
                assert refused == (401, "unauthorized")
        for path in ("/", "/health", "/ready", "/openapi.json"):
            assert place.get(path).status_code == 200
        assert place.post("/v1/audio/speech", json=body, headers=KEY).status_code == 200
        assert place.get("/v1/voices", headers=KEY).status_code == 200
        with place.native(additional_headers=KEY) as client:
            client.send("ping")
            assert client.take()["type"] == "pong"


def test_origins(tmp_path: Path) -> None:
    allowed = "https://a.example"
    with serving(
        ending_drama(), tmp_path, allowed_origins=(allowed,), cors_origins=(allowed,)
    ) as place:
        assert refused_with(place, "/v1/stream", origin="https://b.example") == (403, "forbidden")
        with place.native(origin=allowed), place.native():
            pass
        asked = {"Access-Control-Request-Method": "POST"}
        # What the SDKs of OpenAI and Fish Audio add to their requests in a browser, too.
        asked["Access-Control-Request-Headers"] = (
            "authorization,content-type,developer-id,model,x-stainless-lang,x-stainless-retry-count"
        )
        for origin, wanted in ((allowed, allowed), ("https://b.example", None)):
            answer = httpx.options(place.url + "/v1/tts", headers={**asked, "Origin": origin})
            assert answer.headers.get("access-control-allow-origin") == wanted
            assert answer.status_code == (200 if wanted else 400), answer.text
            # What browsers ask before a public page may call a private address.
            private = {**asked, "Origin": origin, "Access-Control-Request-Private-Network": "true"}
            answer = httpx.options(place.url + "/v1/tts", headers=private)
            assert answer.status_code == (200 if wanted else 400), answer.text
            if wanted:
                assert answer.headers["access-control-allow-private-network"] == "true"
        answer = place.post("/v1/tts", json={"text": "Hi."}, headers={"Origin": allowed})
        assert answer.headers["access-control-allow-origin"] == allowed
        assert "X-Sample-Rate" in answer.headers["access-control-expose-headers"]


def test_no_cors_unless_asked_for(ending: Place) -> None:
    for origin, status in (("http://localhost:3000", 200), ("https://a.example", 403)):
        answer = ending.post("/v1/tts", json={"text": "Hi."}, headers={"Origin": origin})
        assert answer.status_code == status
        assert "access-control-allow-origin" not in answer.headers


def test_connections_of_a_client_are_counted(tmp_path: Path) -> None:
    with serving(ending_drama(), tmp_path, connections_per_client=2) as place:
        with place.native(), place.fish():
            assert refused_with(place, "/v1/stream") == (429, "overloaded")
            answer = place.post("/v1/tts", json={"text": "Hi."})
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            message = answer.json()["message"]
            assert message == (
                "2 connections of this client are open; the limit is 2 (connections_per_client)."
            )
            assert "trusted_proxies" in answer.json()["remedy"]
        until(lambda: not place.service.access.connections, "counting the clients out")
        assert place.post("/v1/tts", json={"text": "Hi."}).status_code == 200


def test_connections_of_all_clients_are_counted(tmp_path: Path) -> None:
    with serving(ending_drama(), tmp_path, connections=1) as place, place.native():
        answer = place.post("/v1/audio/speech", json={"input": "Hi."})
        assert answer.status_code == 429
        message = answer.json()["error"]["message"]
        assert message.startswith("1 connections are open; the limit is 1 (connections). Try")


def test_more_streams_than_the_engine_takes(tmp_path: Path) -> None:
    with serving(shared_drama(), tmp_path, {"max_streams": 1, "max_queue": 1}) as place:
        with place.native() as one, place.native() as two, place.native() as three:
            one.send("start", text=LONG, final=True)
            one.take_until("audio")
            two.send("start", text="Hello.", final=True, max_seconds=0.2)
            assert two.take_until("queued")[-1]["position"] == 0
            three.send("start", text="Hello.", final=True)
            error = three.take()
            assert (error["code"], error["retriable"]) == ("overloaded", True)
            answer = place.post("/v1/tts", json={"text": "Hi."})
            assert answer.status_code == 429
            one.send("cancel")
            assert two.take_until("done")[-1]["frames"] == 4
        place.until_free()


def test_idle_connections_do_not_count_towards_the_limit(tmp_path: Path) -> None:
    """Agent frameworks keep one, and its stream, for every call."""
    with serving(shared_drama(), tmp_path, {"max_streams": 1, "max_queue": 1}) as place:
        with place.fish() as one, place.fish() as two, place.fish() as three, place.fish() as four:
            clients = (one, two, three, four)
            for client in clients:
                client.send("start", request={"text": "", "format": "pcm", "reference_id": ""})
            until(lambda: place.engine and place.engine.streams()["idle"] == 4, "opening")
            one.send("text", text=LONG)
            assert one.take()["event"] == "audio"
            two.send("text", text=LONG)
            until(lambda: waiting(place) == 1, "waiting")
            three.send("text", text="Hello. ")
            finish = three.take_until("finish")[-1]
            assert (finish["reason"], finish["code"]) == ("error", "overloaded")
            one.socket.close()
            assert two.take()["event"] == "audio"
            four.send("text", text="Hello. ")
            two.socket.close()
            assert four.take()["event"] == "audio"
        place.until_free()


@pytest.mark.parametrize("immediately", [False, True])
def test_an_utterance_whose_text_finds_no_place_fails_once(
    tmp_path: Path, immediately: bool
) -> None:
    """However much text it sends, and also while its stream is being opened."""
    with serving(shared_drama(), tmp_path, {"max_streams": 1, "max_queue": 0}) as place:
        with place.native() as one, place.native() as two:
            one.send("start", text=LONG)
            one.take_until("audio")
            two.send("start")
            if not immediately:
                assert two.take()["type"] == "ready"
            for _ in range(50):
                two.send("text", text="Hello. ")
            two.send("finish")
            two.send("ping")
            messages = two.take_until("pong")
            if immediately and messages[-2:][0]["type"] != "error":
                messages += two.take_until("error")
            errors = [(m["code"], m["scope"]) for m in messages if m["type"] == "error"]
            assert errors == [("overloaded", "utterance")]
            one.send("cancel")
            one.take_until("cancelled")
            two.send("start", text="Hello. ", final=True, max_seconds=0.2)
            assert two.take_until("done")[-1]["frames"] == 4  # the connection continues
        place.until_free()
        assert place.metric("errors_total", code="overloaded") == 1


def test_first_audio_counts_from_the_first_text(tmp_path: Path) -> None:
    with serving(shared_drama(), tmp_path) as place, place.native() as client:
        client.send("start", max_seconds=0.2)
        client.take_until("ready")
        time.sleep(0.5)  # the user speaks
        asked = time.monotonic()
        client.send("text", text="Hello. ")
        client.send("finish")
        done = client.take_until("done")[-1]
        heard = 1e3 * (time.monotonic() - asked)
        assert done["timings"]["first_audio_ms"] <= heard
        assert done["timings"]["total_ms"] >= 500
        assert place.metric("first_audio_seconds_sum") <= heard / 1e3


def test_the_queue_position_is_sent_as_it_changes(tmp_path: Path) -> None:
    with serving(shared_drama(), tmp_path, {"max_streams": 1, "max_queue": 2}) as place:
        with place.native() as one, place.native() as two, place.native() as three:
            one.send("start", text=LONG, final=True)
            one.take_until("audio")
            two.send("start", text=LONG, final=True)
            assert [m["type"] for m in two.take_until("queued")] == ["ready", "queued"]
            three.send("start", text="Hello.", final=True, max_seconds=0.2)
            assert three.take_until("queued")[-1]["position"] == 1
            one.send("cancel")
            two.take_until("audio")
            assert three.take_until("queued")[-1]["position"] == 0
            two.send("cancel")
            assert three.take_until("done")[-1]["frames"] == 4
        place.until_free()


def test_a_refused_handshake_is_not_logged_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(ending_drama(), tmp_path, api_keys=("key",)) as place:
        assert refused_with(place, "/v1/stream") == (401, "unauthorized")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_requests_over_http_are_served_in_order(tmp_path: Path) -> None:
    with serving(ending_drama(), tmp_path, {"max_streams": 1}) as place, place.native() as speaking:
        assert place.engine is not None
        speaking.send("start", text=LONG)
        speaking.take_until("audio")
        order: list[int] = []

        def ask(number: int) -> None:
            with httpx.stream(
                "POST", place.url + "/v1/tts", json={"text": "Hi."}, timeout=WAIT
            ) as answer:
                next(answer.iter_raw())
                order.append(number)

        asking = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
        for number, thread in enumerate(asking):
            thread.start()
            wanted = number + 1
            until(lambda wanted=wanted: waiting(place) == wanted, "waiting")
        speaking.send("cancel")
        for thread in asking:
            thread.join(WAIT)
        assert order == [0, 1, 2]


def waiting(place: Place) -> int:
    assert place.engine is not None
    return place.engine.streams()["waiting"]


def test_a_base_url_may_end_in_a_slash(ending: Place) -> None:
    """LiveKit's plugin and npm's fish-audio put another one behind it."""
    for path in ("//v1/tts/live", "/v1/tts/live/"):
        with ending.connect(path):
            pass
    assert ending.get("//health").status_code == 200
    answer = ending.post("//v1/tts", json={"text": "Hi."})
    assert answer.status_code == 200
    assert len(answer.content) > 1_000


def test_a_wrong_path_of_a_websocket_is_a_404(ending: Place) -> None:
    for path in ("/v1/nope", "/v1/tts"):
        assert refused_with(ending, path) == (404, "no_such_route")
    with pytest.raises(InvalidStatus, match="404") as caught, ending.connect("/v1/v1/tts/live"):
        pass
    assert b"has /v1 twice" in (caught.value.response.body or b"")
