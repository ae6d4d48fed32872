"""Directed speech over real sockets: takes that go back and forth, guidance, steering, best of."""

from __future__ import annotations

import io
import wave
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from rt_drama3.drama3 import Drama3
from rt_drama3.engine.speech import SpeechRequest
from rt_drama3.scenes.steering import Steering
from rt_drama3.scenes.takes import PreviousTake
from tests.protocol.tools import check
from tests.server.tools import Place, audio_of, from_sse, serving, sse_events
from tests.small import Codes, ending_drama, heard, shared_drama

DIRECTED = "[angry] Leave the house now."


def spoken(place: Place, text: str, **more: Any) -> Codes:
    """What the engine behind a server says."""
    assert place.engine is not None
    return heard(place.engine.open(SpeechRequest(text, **more)))[1].codes


def take_over(place: Place, text: str, **fields: Any) -> dict[str, Any]:
    """The take of an utterance over the native dialect."""
    with place.native() as client:
        client.send("start", text=text, final=True, take=True, **fields)
        done = client.take_until("done", "error")[-1]
    check(done, "native", f"server_{done['type']}")
    assert done["type"] == "done", done
    take: dict[str, Any] = done["take"]
    return take


def codes_of(take: dict[str, Any]) -> Codes:
    books = take["num_codebooks"]
    return np.frombuffer(take["vq_codes"], "<u2").reshape(books, -1).astype(np.int64)


def test_a_scene_continues_and_is_edited_take_by_take(ending: Place) -> None:
    first = take_over(ending, "Who is there?", seed=3)
    assert first["text"] == "Who is there?"
    kept = PreviousTake(first["text"], codes_of(first))
    for text in ("It is me.", "[angry] Who is there?"):
        found = take_over(ending, text, seed=4, previous_takes=[first])
        expected = spoken(ending, text, seed=4, previous_takes=[kept])
        assert np.array_equal(codes_of(found), expected)
        assert not np.array_equal(expected, spoken(ending, text, seed=4))


def test_a_take_of_text_alone_is_spoken_first(ending: Place) -> None:
    found = take_over(ending, "It is me.", seed=4, previous_takes=[{"text": "Who is there?"}])
    expected = spoken(ending, "It is me.", seed=4, previous_takes=[("Who is there?", None)])
    assert np.array_equal(codes_of(found), expected)


def test_guidance_over_the_native_dialect(ending: Place) -> None:
    found = take_over(ending, DIRECTED, seed=4, guidance=3)
    assert np.array_equal(codes_of(found), spoken(ending, DIRECTED, seed=4, guidance=3))
    assert not np.array_equal(codes_of(found), spoken(ending, DIRECTED, seed=4))


def test_speakers_come_in_order(ending: Place) -> None:
    books = ending_drama().config.num_codebooks
    one, two = (np.full((books, 9), n) for n in (1, 2))
    given = [
        {"text": "Hm.", "vq_codes": one.tolist(), "speaker": 0},
        {"text": "Ah.", "vq_codes": two.astype("<u2").tobytes(), "speaker": 7},
    ]
    text = "<|speaker:7|> It is me. <|speaker:0|> Who?"
    found = take_over(ending, text, seed=4, references=given)
    tagged = [("<|speaker:0|> Hm.", one), ("<|speaker:7|> Ah.", two)]
    assert np.array_equal(codes_of(found), spoken(ending, text, seed=4, references=tagged))


def vector(drama: Drama3) -> Steering:
    size = drama.config.backbone.hidden_size
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(1))
    return Steering("glad", 0, numbers, drama.steering.fingerprint)


def test_a_named_vector_of_the_servers_folder_steers(tmp_path: Any) -> None:
    drama = shared_drama()
    vector(drama).save(tmp_path / "steering" / "glad.safetensors")
    before = drama.steering.folder
    try:
        with serving(drama, tmp_path) as place:
            limit = {"seed": 4, "max_seconds": 0.3}
            plain = take_over(place, "Hello.", **limit)
            off = take_over(place, "Hello.", steering=[{"name": "glad", "strength": 0}], **limit)
            assert off == plain
            on = take_over(place, "Hello.", steering=[{"name": "glad", "strength": 30}], **limit)
            assert on != plain
            with place.native() as client:
                wanted = [{"name": "../glad", "strength": 1}]
                client.send("start", text="Hello.", final=True, steering=wanted)
                error = client.take_until("error")[-1]
            assert error["code"] == "bad_request"
            assert "invalid steering name '../glad'" in error["message"]
    finally:
        drama.steering.folder = before


def test_a_bad_take_is_reported_by_its_place(ending: Place) -> None:
    books = ending_drama().config.num_codebooks
    good = {"text": "Hm.", "vq_codes": np.ones((books, 3), "<u2").tobytes()}
    bad = {"text": "Hm.", "vq_codes": np.full((books, 3), 60_000, "<u2").tobytes()}
    with ending.native() as client:
        client.send("start", text="Hello.", final=True, previous_takes=[good, bad])
        error = client.take_until("error")[-1]
        assert (error["code"], error["scope"]) == ("bad_reference", "utterance")
        assert "previous_takes[1]" in error["message"]
        client.send("start", text="Hello.", final=True)
        client.take_until("done")


def test_fishs_route_is_directed_too(ending: Place) -> None:
    assert ending.engine is not None
    body = {"text": DIRECTED, "format": "pcm", "seed": 4, "guidance": 3}
    answer = ending.post("/v1/tts", json=body)
    assert answer.status_code == 200
    pcm, _ = heard(ending.engine.open(SpeechRequest(DIRECTED, seed=4, guidance=3)))
    found = np.frombuffer(answer.content, "<i2") / 32_767
    assert len(found) == len(pcm)
    assert np.abs(found - pcm).max() < 1e-3


def test_a_take_over_http_continues_over_http(ending: Place) -> None:
    body = {"response_format": "pcm", "sample_rate": 44_100, "stream_format": "sse", "seed": 4}
    first = ending.post("/v1/audio/speech", json={**body, "input": "Who is there?", "take": True})
    events = sse_events(first.text)
    take = events[-1]["take"]
    check(events[-1], "http", "sse_done")
    expected = spoken(ending, "Who is there?", seed=4)
    assert take["codes"] == expected.tolist()
    assert len(from_sse(events)) == 2 * 2048 * expected.shape[1]
    again = ending.post(
        "/v1/audio/speech",
        json={**body, "input": "It is me.", "take": True, "previous_takes": [take]},
    )
    kept = PreviousTake("Who is there?", expected)
    wanted = spoken(ending, "It is me.", seed=4, previous_takes=[kept])
    assert sse_events(again.text)[-1]["take"]["codes"] == wanted.tolist()
    silent = ending.post("/v1/audio/speech", json={**body, "input": "...", "take": True})
    assert "take" not in sse_events(silent.text)[-1]


@pytest.mark.parametrize("route", ["/v1/tts", "/v1/audio/speech"])
def test_the_best_of_some_over_http(ending: Place, route: str) -> None:
    fields = {"text": DIRECTED, "format": "wav", "sample_rate": 44_100}
    if route == "/v1/audio/speech":
        fields = {"input": DIRECTED, "response_format": "wav", "sample_rate": 44_100}
    before = ending.metric("frame_seconds_sum")
    answer = ending.post(route, json={**fields, "seed": 20, "best_of": 5, "guidance": 1})
    assert answer.status_code == 200
    assert ending.metric("frame_seconds_sum") > before
    best = ending_drama().best_of(DIRECTED, 5, seed=20, guidance=1).best
    with wave.open(io.BytesIO(answer.content)) as sound:
        sound.readframes(1)
    found = np.frombuffer(answer.content[44:], "<i2") / 32_767
    assert len(found) == len(best.audio)
    assert np.abs(found - best.audio).max() < 1e-3
    ending.until_free()


def test_the_best_of_some_stops_with_its_client(endless: Place) -> None:

    with pytest.raises(httpx.TimeoutException):
        httpx.post(
            endless.url + "/v1/tts",
            json={"text": "Hello there, how are you? " * 8, "best_of": 8, "format": "pcm"},
            timeout=0.3,
        )
    endless.until_free()


def test_errors_of_best_of_are_reported(ending: Place) -> None:
    body = {"text": "Hello.", "best_of": 3, "steering": [{"name": "missing", "strength": 1}]}
    answer = ending.post("/v1/tts", json=body)
    assert answer.status_code == 400
    assert "no steering vector 'missing'" in answer.json()["message"]


def test_audio_still_comes_where_nothing_is_directed(ending: Place) -> None:
    with ending.native() as client:
        client.send("start", text="Hello there.", final=True, seed=3, format="pcm_f32")
        messages = client.take_until("done")
    assert ending.engine is not None
    pcm, _ = heard(ending.engine.open(SpeechRequest("Hello there.", seed=3)))
    np.testing.assert_array_equal(np.frombuffer(audio_of(messages), "<f4"), pcm)
