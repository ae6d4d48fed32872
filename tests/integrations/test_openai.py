"""The openai package, unchanged: every format, streaming, server-sent events, sync and async."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.integrations.conftest import run
from tests.integrations.tools import (
    SENTENCE,
    Interruption,
    Watched,
    assert_same,
    assert_whole,
    samples_of,
)
from tests.server.tools import LONG

openai = pytest.importorskip("openai", reason="needs the package openai")

RATE = 24_000  # of pcm and wav, as with OpenAI
ASKED = {"model": "gpt-4o-mini-tts", "voice": "alloy", "input": SENTENCE}


def client(server: Watched, **more: Any) -> Any:
    return openai.OpenAI(api_key="any", base_url=f"{server.url}/v1", max_retries=0, **more)


def test_pcm_whole(server: Watched) -> None:
    heard = client(server).audio.speech.create(**ASKED, response_format="pcm").read()
    assert len(heard) // 2 == samples_of(server.frames(), RATE)
    assert_same(heard, server.native(SENTENCE, sample_rate=RATE))


def test_pcm_streamed(server: Watched) -> None:
    speech = client(server).audio.speech
    with speech.with_streaming_response.create(**ASKED, response_format="pcm") as response:
        assert response.headers["x-sample-rate"] == str(RATE)
        heard = b"".join(response.iter_bytes(1_000))
    assert_same(heard, server.native(SENTENCE, sample_rate=RATE))


def test_pcm_streamed_async(server: Watched) -> None:
    async def work() -> bytes:
        async with openai.AsyncOpenAI(api_key="any", base_url=f"{server.url}/v1") as client:
            create = client.audio.speech.with_streaming_response.create
            async with create(**ASKED, response_format="pcm") as response:
                return b"".join([part async for part in response.iter_bytes(1_000)])

    assert_same(run(work()), server.native(SENTENCE, sample_rate=RATE))


def test_wav(server: Watched) -> None:
    data = client(server).audio.speech.create(**ASKED, response_format="wav").read()
    assert data[:4] == b"RIFF"
    assert data.count(b"RIFF") == 1
    assert_same(data[44:], server.native(SENTENCE, sample_rate=RATE))
    assert_whole(data, (len(data) - 44) // 2, RATE)


@pytest.mark.parametrize("name", ["mp3", "flac", "aac", "opus"])
def test_other_formats(name: str, server: Watched) -> None:
    data = client(server).audio.speech.create(**ASKED, response_format=name).read()
    rate = 48_000 if name == "opus" else 44_100
    assert_whole(data, samples_of(server.frames(), rate), rate)
    expected = server.native(SENTENCE, sample_rate=rate, format=name)
    assert len(data) == len(expected) if name == "opus" else data == expected


def test_mp3_is_the_default_and_goes_to_a_file(server: Watched, tmp_path: Any) -> None:
    path = tmp_path / "hello.mp3"
    with client(server).audio.speech.with_streaming_response.create(**ASKED) as response:
        response.stream_to_file(path)
    assert_whole(path.read_bytes(), samples_of(server.frames(), 44_100), 44_100)


def test_server_sent_events(server: Watched) -> None:
    speech = client(server).audio.speech
    asked = {**ASKED, "response_format": "pcm", "stream_format": "sse"}
    with speech.with_streaming_response.create(**asked) as response:
        lines = [line for line in response.iter_lines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [e["type"] for e in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    heard = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    usage = events[-1]["usage"]
    assert events[-1]["type"] == "speech.audio.done"
    assert usage["output_tokens"] == server.frames()
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert_same(heard, server.native(SENTENCE, sample_rate=RATE))


def test_a_seed_and_more_as_extra_fields(server: Watched) -> None:
    more = {"seed": 5, "sample_rate": 16_000, "temperature": 0.7, "top_p": 0.7}
    speech = client(server).audio.speech
    heard = speech.create(**ASKED, response_format="pcm", extra_body=more).read()
    request = server.speeches[-1].request
    assert (request.seed, request.temperature, request.top_p) == (5, 0.7, 0.7)
    assert len(heard) // 2 == samples_of(server.frames(), 16_000)


def test_what_cannot_be_followed_is_said(server: Watched) -> None:
    raw = client(server).audio.speech.with_raw_response
    response = raw.create(**ASKED, response_format="pcm", speed=1.5, instructions="Be calm.")
    assert "speed 1.5" in response.headers["x-notice"]
    assert "instructions" in response.headers["x-notice"]


def test_leaving_early_stops_within_a_frame(talkative: Watched) -> None:
    asked = {**ASKED, "input": LONG, "response_format": "pcm"}
    speech = client(talkative).audio.speech
    held = Interruption(talkative)
    with speech.with_streaming_response.create(**asked) as response:
        parts = response.iter_bytes(100)
        assert next(parts)
        held.wait_until_held()
    held.wait_until_known()
    assert held.finish() <= 1


def test_errors_are_the_clients_own(server: Watched) -> None:
    speech = client(server).audio.speech
    with pytest.raises(openai.NotFoundError, match=r"missing.* /v1/voices"):  # and the remedy
        speech.create(**{**ASKED, "voice": "missing"})
    with pytest.raises(openai.BadRequestError):
        speech.create(**{**ASKED, "input": " "})
    assert speech.create(**ASKED, response_format="pcm").read()


def test_models(server: Watched) -> None:
    assert [model.id for model in client(server).models.list()] == ["nano"]
    assert client(server).models.retrieve("nano").id == "nano"


def test_a_missing_route_is_a_404(server: Watched) -> None:
    chat = client(server).chat.completions
    with pytest.raises(openai.NotFoundError, match=r"POST /v1/chat/completions: Not Found"):
        chat.create(model="any", messages=[{"role": "user", "content": "Hi."}])
