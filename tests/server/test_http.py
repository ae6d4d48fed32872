"""HTTP speech over real sockets."""

from __future__ import annotations

import io
import wave

import av
import httpx
import msgpack
import numpy as np
import pytest

from rt_drama3.audio import read_audio
from tests.server.tools import LONG, Place, from_sse, sse_events
from tests.small import until

TEXT = "Hello there."


def frames_of(place: Place, seed: int = 4) -> int:
    """Frames that the engine makes of the text."""
    answer = place.post("/v1/tts", json={"text": TEXT, "format": "pcm", "seed": seed})
    return len(answer.content) // 2 // 2048


def decoded(data: bytes) -> tuple[int, int]:
    """Samples of encoded audio, and their rate."""
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    return sum(frame.samples for frame in frames), frames[0].sample_rate


@pytest.mark.parametrize(
    ("name", "kind", "rate", "extra"),
    [
        ("pcm", "audio/pcm; rate=24000; channels=1", 24_000, 0),
        ("wav", "audio/wav", 24_000, 0),
        ("mp3", "audio/mpeg", 44_100, 2 * 1152 + 1105),
        ("opus", "audio/ogg", 48_000, 0),
        ("flac", "audio/flac", 44_100, 0),
        ("aac", "audio/aac", 44_100, 2 * 1024),
    ],
)
def test_openai_formats(ending: Place, name: str, kind: str, rate: int, extra: int) -> None:
    body = {"model": "tts-1", "voice": "alloy", "input": TEXT, "response_format": name, "seed": 4}
    answer = ending.post("/v1/audio/speech", json=body)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == kind
    assert answer.headers["x-sample-rate"] == str(rate)
    assert answer.headers["x-channels"] == "1"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]
    wanted = -(-frames_of(ending) * 2048 * rate // 44_100)
    if name == "pcm":
        assert answer.headers["x-bit-depth"] == "16"
        samples, found = len(answer.content) // 2, rate
    elif name == "wav":
        with wave.open(io.BytesIO(answer.content)) as sound:
            samples, found = (len(answer.content) - 44) // 2, sound.getframerate()
    else:
        samples, found = decoded(answer.content)
    assert found == rate
    assert wanted <= samples <= wanted + extra


def test_fish_takes_json_and_msgpack(ending: Place) -> None:
    request = {"text": TEXT, "format": "pcm", "sample_rate": 16000, "seed": 4}
    one = ending.post("/v1/tts", json=request, headers={"model": "s1"})
    packed = {"content": msgpack.packb(request), "headers": {"Content-Type": "application/msgpack"}}
    two = ending.post("/v1/tts", **packed)
    assert one.status_code == two.status_code == 200
    assert one.headers["x-accel-buffering"] == two.headers["x-accel-buffering"] == "no"
    assert one.content == two.content
    assert len(one.content) == 2 * -(-frames_of(ending) * 2048 * 16_000 // 44_100)


def test_sse_carries_the_same_audio(ending: Place) -> None:
    body = {"input": TEXT, "response_format": "pcm", "seed": 4}
    plain = ending.post("/v1/audio/speech", json=body)
    answer = ending.post("/v1/audio/speech", json={**body, "stream_format": "sse"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    events = sse_events(answer.text)
    assert from_sse(events) == plain.content
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"]["output_tokens"] == frames_of(ending)
    assert events[-1]["usage"]["input_tokens"] > 0


def test_gain(ending: Place) -> None:
    import numpy as np

    def spoken(volume: float) -> np.ndarray:
        request = {"text": TEXT, "format": "pcm", "seed": 4, "prosody": {"volume": volume}}
        return np.frombuffer(ending.post("/v1/tts", json=request).content, "<i2").astype(float)

    loud, soft = spoken(0), spoken(-20)
    assert abs(soft - loud / 10).max() <= 1


def test_punctuation_gives_a_moment_of_silence(ending: Place) -> None:
    """Players and SDKs take a file without any sound for a failure."""
    for text in ("...", "\U0001f642"):
        answer = ending.post("/v1/tts", json={"text": text, "format": "pcm"})
        assert (answer.status_code, answer.content) == (200, bytes(2 * 441))
        wav = ending.post("/v1/tts", json={"text": text, "format": "wav"})
        assert wav.content[44:] == bytes(2 * 441)
        for form in ("mp3", "opus", "flac"):
            body = {"input": text, "response_format": form}
            heard, rate = read_audio(io.BytesIO(ending.post("/v1/audio/speech", json=body).content))
            assert 0.009 < len(heard) / rate < 0.1
            assert np.abs(heard).max() < 1e-3


def test_errors_have_the_shape_of_their_api(ending: Place) -> None:
    fish = ending.post("/v1/tts", json={"text": ""}, headers={"X-Request-Id": "mine-1"})
    assert fish.status_code == 400
    assert fish.json()["message"]
    assert fish.json()["code"] == "bad_text"
    assert fish.json()["request_id"] == fish.headers["x-request-id"] == "mine-1"
    openai = ending.post("/v1/audio/speech", json={"input": "Hi", "voice": "missing"})
    assert openai.status_code == 404
    assert openai.json()["error"]["code"] == "unknown_voice"
    for nothing in ({}, {"input": None}, {"input": " "}, {"input": "<|speaker:0|>"}):
        error = ending.post("/v1/audio/speech", json=nothing).json()["error"]
        assert error["code"] == "bad_text"
        assert error["message"].startswith("input is empty")
    assert ending.post("/v1/tts", content=b"{").status_code == 400
    wrong = ending.post("/v1/tts", content=b"x", headers={"Content-Type": "text/plain"})
    assert wrong.status_code == 415
    plain = {"content": b'{"input": "Hi."}', "headers": {"Content-Type": "text/plain"}}
    assert ending.post("/v1/audio/speech", **plain).status_code == 415
    voice = ending.post("/v1/voices", **plain)
    assert voice.status_code == 415
    assert "audio/*" in voice.json()["remedy"]
    assert ending.get("/v1/tts").status_code == 405
    assert ending.get("/nope").json()["code"] == "no_such_route"
    assert "POST" in ending.get("/v1/stop").json()["message"]
    for path in ("/v1/stream", "/v1/tts/live", "/v1/listen"):
        assert "WebSocket" in ending.get(path).json()["message"]
    assert "--listen" in ending.get("/obs").json()["error"]["message"]
    missing = ending.get("/model").json()
    assert missing["detail"] == missing["message"]  # which Fish's older module reads


def test_an_error_before_audio_is_an_http_error(ending: Place) -> None:
    clip = {"text": "Hello.", "audio": "AAAA"}
    answer = ending.post("/v1/tts", json={"text": "Hi.", "references": [clip]})
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad_reference"
    assert "references[0]" in answer.json()["message"]


def test_a_body_that_is_too_large(ending: Place) -> None:
    size = ending.service.limits.message_bytes + 1
    assert ending.post("/v1/tts", content=b" " * size).status_code == 413
    parts = (b" " * 65_536 for _ in range(size // 65_536 + 1))
    assert ending.post("/v1/tts", content=parts).status_code == 413


@pytest.mark.parametrize("read", [False, True])
def test_a_client_that_leaves_frees_the_engine(endless: Place, read: bool) -> None:
    request = {"input": LONG, "response_format": "pcm"}
    before = endless.metric("cancels_total", reason="disconnect")
    with (
        httpx.Client(timeout=30) as client,
        client.stream("POST", endless.url + "/v1/audio/speech", json=request) as answer,
    ):
        if read:
            next(answer.iter_raw(1000))
    endless.until_free()
    assert endless.metric("cancels_total", reason="disconnect") == before + 1
    until(lambda: not endless.service.access.connections, "counting the client out")


def test_the_small_routes(ending: Place) -> None:
    assert ending.get("/health").json() == {"status": "alive"}
    assert ending.get("/ready").json()["status"] == "ready"
    (model,) = ending.get("/v1/models").json()["data"]
    assert model["id"] == "nano"
    assert ending.get("/v1/models/nano").json() == model
    assert ending.get("/v1/models/").json()["data"] == [model]
    missing = ending.get("/v1/models/whisper/1")
    error = missing.json()["error"]
    assert (missing.status_code, error["code"]) == (404, "model_not_found")
    assert "whisper/1" in error["message"]
    assert "GET /v1/models" in error["remedy"]
    assert ending.get("/v1/audio/models").json() == {"models": [{"id": "nano"}]}
    assert "<form" in ending.get("/").text
    text = ending.get("/metrics").text
    for name in (
        "streams{",
        "queue ",
        "first_audio_seconds_count",
        "frame_seconds_count",
        "underruns_total",
        "sent_bytes_total",
    ):
        assert f"rt_drama3_{name}" in text
    document = ending.get("/openapi.json").json()
    assert set(document["paths"]) >= {"/v1/tts", "/v1/audio/speech", "/v1/voices", "/ready"}
    assert set(document["paths"]) >= {"/v1/audio/voices", "/v1/audio/models"}


def test_every_frame_counts(ending: Place) -> None:
    def counted() -> tuple[float, float]:
        return ending.metric("frames_total"), ending.metric("frame_seconds_count")

    frames, observed = counted()
    assert frames_of(ending) > 1
    until(lambda: counted()[0] > frames, "counting")
    now = counted()
    assert now[1] - observed == now[0] - frames
    assert ending.metric("frame_seconds_bucket", le="+Inf") == now[1]
    assert ending.metric("frame_seconds_sum") > 0
