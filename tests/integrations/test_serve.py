"""``rt-drama3 serve`` as a user starts it, with the embedded voice, and clients of other people."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integrations.tools import level
from tests.ports import free_port
from tests.small import WAIT

TEXT = "We like red boats."
KEY = "a-key-of-the-operator"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    folder = tmp_path_factory.mktemp("serve")
    command = [sys.executable, "-m", "rt_drama3", "serve", "--port", str(port)]
    command += ["--data-folder", str(folder), "--step-mode", "eager", "--threads", "1"]
    environment = {**os.environ, "RT_DRAMA3_SERVER_API_KEYS": KEY}
    with Path(folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, env=environment)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 4 * WAIT
        while not ready(address):
            assert time.monotonic() < deadline, "it did not start"
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(WAIT)
        finally:
            process.kill()


def ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def plain(url: str, sample_rate: int) -> bytes:
    """The same without any of the packages."""
    answer = httpx.post(
        f"{url}/v1/tts",
        json={"text": TEXT, "format": "pcm", "sample_rate": sample_rate, "seed": 7},
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=4 * WAIT,
        trust_env=False,
    )
    answer.raise_for_status()
    return answer.content


@pytest.mark.slow
def test_openai(url: str) -> None:
    openai = pytest.importorskip("openai", reason="needs the package openai")
    client = openai.OpenAI(api_key=KEY, base_url=f"{url}/v1")
    heard = client.audio.speech.create(
        model="any", voice="alloy", input=TEXT, response_format="pcm", extra_body={"seed": 7}
    ).read()
    assert len(heard) == len(plain(url, 24_000))  # groups of frames, made by the clock, round
    assert level(heard) > 0.01
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").audio.speech.create(
            model="any", voice="alloy", input=TEXT
        )


@pytest.mark.slow
def test_fish_audio_sdk(url: str) -> None:
    fishaudio = pytest.importorskip("fishaudio", reason="needs the package fish-audio-sdk")
    client = fishaudio.FishAudio(api_key=KEY, base_url=url)
    config = fishaudio.TTSConfig(format="pcm", sample_rate=16_000)
    whole = bytes(client.tts.convert(text=TEXT, config=config))
    live = b"".join(
        client.tts.stream_websocket(iter(["We like ", "red ", "boats."]), config=config)
    )
    for heard in (whole, live):
        assert 0.5 < len(heard) / 2 / 16_000 < 5
        assert level(heard) > 0.01
    with pytest.raises(fishaudio.exceptions.AuthenticationError):
        fishaudio.FishAudio(api_key="wrong", base_url=url).tts.convert(text=TEXT)
