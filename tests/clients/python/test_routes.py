"""Voices, models, keys and proxies."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import pytest

from rt_drama3_client import (
    AccessDenied,
    AsyncClient,
    BadRequest,
    BadServerMessage,
    ConnectFailed,
    Settings,
    UnknownVoice,
)
from tests.clients.python.fake import Peer, run, served
from tests.server.tools import Place, serving
from tests.small import ending_drama


def clip(seconds: float = 0.5) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(2)
        audio.setframerate(16_000)
        audio.writeframes(bytes(range(1, 101)) * int(seconds * 320))
    return file.getvalue()


def test_voices(ending: Place) -> None:
    async def work() -> None:
        name = "anna \N{LATIN SMALL LETTER E WITH ACUTE} 1"
        async with AsyncClient(ending.url) as client:
            before = await client.voices()
            added = await client.add_voice(name, [("What I say.", clip()), ("And more.", clip())])
            try:
                assert (added.name, added.texts) == (name, ("What I say.", "And more."))
                assert added.seconds == pytest.approx(1)
                assert [voice.name for voice in await client.voices()] == [
                    *(voice.name for voice in before),
                    name,
                ]
                speech = client.speak("Hello there.", seed=3, voice=name)
                await speech.read()
                assert speech.ready is not None
                assert speech.ready.voice == name
            finally:
                await client.delete_voice(name)
            assert await client.voices() == before
            with pytest.raises(UnknownVoice, match="1"):
                await client.delete_voice(name)
            with pytest.raises(BadRequest) as caught:
                await client.add_voice("x", [("Noise.", b"not audio")])
            assert caught.value.code == "bad_reference"
            assert caught.value.request_id
            assert await client.models() == [ending.service.facts.name]

    run(work())


def test_keys(tmp_path: Path) -> None:
    async def work(place: Place) -> None:
        async with AsyncClient(place.url, api_key="secret") as client:
            assert await client.speak("Hello there.", seed=3).read()
            assert await client.voices() == []
        for key in ("", "wrong"):
            async with AsyncClient(place.url, api_key=key) as client:
                with pytest.raises(AccessDenied, match="Authorization") as caught:
                    await client.speak("Hello.").read()
                assert caught.value.code == "unauthorized"
                assert caught.value.request_id
                with pytest.raises(AccessDenied, match="Authorization"):
                    await client.voices()

    with serving(ending_drama(), tmp_path, api_keys=("secret",)) as place:
        run(work(place))


def test_other_kind_of_server() -> None:
    async def script(peer: Peer) -> None:
        await peer.take()

    async def work() -> None:
        page = {"status": 200, "body": "<html>"}

        def answer(connection, request):  # type: ignore[no-untyped-def]
            return connection.respond(page["status"], page["body"])

        async with served(script, process_request=answer) as (_, client):
            with pytest.raises(BadServerMessage, match="JSON"):
                await client.voices()
            page.update(status=200, body="[]")
            with pytest.raises(BadServerMessage, match="object"):
                await client.models()
            page.update(body='{"data": [7]}')
            with pytest.raises(BadServerMessage, match="data"):
                await client.models()
        settings = Settings(timeout=1)
        async with AsyncClient("127.0.0.1:1", settings=settings) as client:
            with pytest.raises(ConnectFailed):
                await client.voices()

    run(work())


def test_proxy_is_used_only_for_other_machines(ending: Place) -> None:
    async def work() -> None:
        proxied = Settings(proxy="http://127.0.0.1:9", attempts=1)  # a closed port
        async with AsyncClient(ending.url, settings=proxied) as client:
            assert await client.speak("Hello there.", seed=3).read()
            assert await client.models()
        async with AsyncClient("http://192.0.2.1:9", settings=proxied) as client:
            with pytest.raises(ConnectFailed):
                await client.speak("Hello.").read()
            with pytest.raises(ConnectFailed):
                await client.models()

    run(work())
