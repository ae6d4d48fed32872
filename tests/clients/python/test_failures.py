"""A scripted server that breaks: what is retried, what raises, and the error messages."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rt_drama3_client import (
    AccessDenied,
    AsyncClient,
    BadRequest,
    BadServerMessage,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    ServerError,
    ServerSilent,
    Settings,
    Unavailable,
)
from tests.clients.python.fake import QUICK, Peer, Script, run, served
from tests.small import WAIT

SOON = 0.05  # a timeout that is meant to run out


async def dropped_after_text(peer: Peer) -> None:
    await peer.take_until("text")
    peer.drop()


async def dropped_after_audio(peer: Peer) -> None:
    await peer.take_until("start")
    await peer.ready()
    await peer.segment("Hello.")
    await peer.audio()
    peer.drop()


async def spoken(peer: Peer) -> None:
    await peer.speak()


def failing(code: str, scope: str, retriable: bool) -> Script:
    async def script(peer: Peer) -> None:
        await peer.take_until("start")
        await peer.error(code, scope, retriable)
        if scope == "connection":
            await peer.socket.close(1001)
        else:
            await peer.speak()

    return script


def test_connection_lost_before_audio_is_replaced_and_everything_resent() -> None:
    async def work() -> None:
        async with served(dropped_after_text, spoken) as (server, client):
            async with client.stream(seed=7) as speech:
                await speech.push("Hello ")
                audio = asyncio.create_task(speech.read())
                await speech.push("there.")
                await speech.flush()
                await speech.finish()
                assert await audio == b"\0\1" * 100
            received = server.peers[1].came
            assert [message["type"] for message in received] == [
                *("start", "text", "text", "flush", "finish"),
            ]
            assert "".join(message.get("text", "") for message in received[1:]) == "Hello there."
            assert received[0] == server.peers[0].came[0]
            assert speech.timings.attempts == 2

    run(work())


def test_push_detects_a_lost_connection() -> None:
    async def work() -> None:
        async with served(dropped_after_text, spoken) as (server, client):
            async with client.stream() as speech:
                number = 0
                while len(server.peers) < 2:  # no audio is read meanwhile
                    await speech.push(f"{number} ")
                    number += 1
                    await asyncio.sleep(0.001)
                await speech.finish()
                await speech.read()
            received = "".join(message.get("text", "") for message in server.peers[1].came)
            assert received == "".join(f"{n} " for n in range(number))

    run(work())


def test_connection_lost_after_audio_raises_with_what_was_received() -> None:
    async def work() -> None:
        async with served(dropped_after_audio) as (server, client):
            with pytest.raises(ConnectionLost, match=r"0\.10 s of audio were received") as caught:
                await client.speak("Hello.").read()
            received = caught.value.received
            assert received.audio == b"\0\1" * 100
            assert (received.messages, received.samples, received.seconds) == (1, 100, 0.1)
            assert received.text == ("Hello.",)
            assert caught.value.request_id == "u1"
            assert len(server.peers) == 1
            chunks = []
            audio = aiter(client.speak("Hello."))
            chunks.append(await anext(audio))
            with pytest.raises(ConnectionLost):
                chunks.append(await anext(audio))
            assert chunks == [b"\0\1" * 100]

    run(work())


def test_file_keeps_what_was_received_and_an_existing_one_without_audio(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "x.pcm"
        path.write_bytes(b"precious")
        async with served(dropped_after_text, settings=replace(QUICK, attempts=1)) as (_, client):
            with pytest.raises(ConnectionLost):
                await client.speak(["Hello."]).save(path)
        assert path.read_bytes() == b"precious"
        async with served(dropped_after_audio) as (_, client):
            with pytest.raises(ConnectionLost):
                await client.speak("Hello.").save(path)
        assert path.read_bytes() == b"\0\1" * 100

    run(work())


def test_attempts_are_bounded() -> None:
    async def work() -> None:
        async with served(dropped_after_text, settings=replace(QUICK, attempts=4)) as (server, c):
            with pytest.raises(ConnectionLost):
                await c.speak(["Hello."]).read()
            assert len(server.peers) == 4

    run(work())


def test_full_server_is_retried_beyond_the_attempts() -> None:
    async def full(peer: Peer) -> None:
        for _ in range(5):
            await peer.take_until("start")
            await peer.error("overloaded", "utterance", True)
        await peer.speak()

    async def work() -> None:
        async with served(full, settings=replace(QUICK, attempts=2)) as (_, client):
            speech = client.speak("Hello.")
            assert await speech.read()
            assert speech.timings.attempts == 6
        impatient = replace(QUICK, attempts=2, ready_timeout=0.1)
        async with served(full, settings=impatient) as (_, client):
            with pytest.raises(Overloaded):
                await client.speak("Hello.").read()

    run(work())


@pytest.mark.parametrize(
    ("code", "scope", "connections"),
    [
        ("overloaded", "utterance", 1),
        ("not_ready", "utterance", 1),
        ("shutting_down", "connection", 2),
        ("idle", "connection", 2),
    ],
)
def test_retriable_error_is_retried(code: str, scope: str, connections: int) -> None:
    async def work() -> None:
        async with served(failing(code, scope, True), spoken) as (server, client):
            assert await client.speak("Hello.").read()
            assert len(server.peers) == connections

    run(work())


@pytest.mark.parametrize(
    ("code", "scope", "retriable", "kind"),
    [
        ("bad_field", "utterance", False, BadRequest),
        ("backlog_full", "message", True, Overloaded),
        ("internal", "connection", False, ServerError),
        ("never_heard_of", "utterance", False, ServerError),
    ],
)
def test_other_error_raises(
    code: str, scope: str, retriable: bool, kind: type[ServerError]
) -> None:
    async def work() -> None:
        async with served(failing(code, scope, retriable)) as (server, client):
            with pytest.raises(kind) as caught:
                await client.speak("Hello.").read()
            error = caught.value
            assert (error.code, error.message, error.remedy) == (code, "no.", "Do it.")
            assert (error.retriable, error.scope) == (retriable, scope)
            assert [kinds.count("start") for kinds in server.kinds] == [1]

    run(work())


def test_refused_text_raises_even_if_done_follows() -> None:
    async def script(peer: Peer) -> None:
        for text in (True, False):
            await peer.take_until("finish")
            await peer.ready()
            if text:
                await peer.segment("Hello.")
                await peer.audio()
            await peer.error("bad_text", "message", False)
            await peer.done()

    async def work() -> None:
        async with served(script) as (server, client):
            for came in (100, 0):
                with pytest.raises(BadRequest) as caught:
                    await client.speak(["Hello.", " <|im_end|>"]).read()
                assert (caught.value.code, caught.value.request_id) == ("bad_text", "u1")
                assert caught.value.received.samples == came
            assert len(server.peers) == 1  # the utterance was over, its connection free

    run(work())


def test_retriable_error_after_audio_raises() -> None:
    async def script(peer: Peer) -> None:
        await peer.take()
        await peer.ready()
        await peer.audio()
        await peer.error("engine_failed", "utterance", True)

    async def work() -> None:
        async with served(script) as (server, client):
            with pytest.raises(Unavailable) as caught:
                await client.speak("Hello.").read()
            assert caught.value.received.samples == 100
            assert server.kinds == [["start"]]

    run(work())


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"", b"\xc1", b"\x81\xa4type", b"\x90", b"\x81\x01\x02", "text", b"\xdf\xff\xff\xff\xff"),
        *(b"\x81\xa4type\xa5audio", b"\x82\xa4type\xa5audio\xa3seq\xa1x", b"\x81\xa4type\xa4done"),
    ],
)
def test_invalid_message_raises_and_ends_the_connection(garbage: bytes | str) -> None:
    async def script(peer: Peer) -> None:
        await peer.take()
        await peer.socket.send(garbage)

    async def work() -> None:
        async with served(script, spoken) as (server, client):
            with pytest.raises(BadServerMessage):
                await client.speak("Hello.").read()
            assert await client.speak("Hello.").read()
            assert len(server.peers) == 2

    run(work())


def test_invalid_websocket_frames_are_a_lost_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.take()
        peer.socket.transport.write(200 * b"?")

    async def work() -> None:
        async with served(script, spoken) as (_, client):
            assert await client.speak("Hello.").read()

    run(work())


def test_unknown_message_is_ignored() -> None:
    async def script(peer: Peer) -> None:
        await peer.take()
        await peer.say("news", id="u1", what=[1, 2])
        await peer.ready()
        await peer.audio()
        await peer.done()

    async def work() -> None:
        async with served(script) as (_, client):
            assert await client.speak("Hello.").read()

    run(work())


def test_dead_peer_is_detected() -> None:
    async def frozen(peer: Peer) -> None:
        await peer.take()
        await peer.ready()
        peer.freeze()

    async def frozen_later(peer: Peer) -> None:
        await peer.take()
        await peer.ready()
        await peer.audio()
        peer.freeze()

    async def work() -> None:
        settings = replace(QUICK, ping_seconds=SOON)
        async with served(frozen, spoken, frozen_later, settings=settings) as (server, client):
            assert await client.speak("Hello.").read()
            assert len(server.peers) == 2
        async with served(frozen_later, settings=settings) as (server, client):
            with pytest.raises(ConnectionLost, match="not even a pong") as caught:
                await client.speak("Hello.").read()
            assert caught.value.received.samples == 100
            assert len(server.peers) == 1

    run(work())


def test_frozen_idle_connection_is_not_reused() -> None:
    async def script(peer: Peer) -> None:
        await peer.speak()
        peer.freeze()

    async def work() -> None:
        async with served(script, spoken, settings=replace(QUICK, ping_seconds=SOON)) as (s, c):
            assert await c.speak("Hello.").read()
            assert await c.speak("Hello.").read()
            assert len(s.peers) == 2

    run(work())


@pytest.mark.parametrize("queued", [False, True])
def test_unresponsive_server_times_out(queued: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.take()
        await peer.ready()
        if queued:
            await peer.say("queued", id="u1", position=2)

    async def work() -> None:
        times = {"queue_timeout" if queued else "timeout": SOON}
        async with served(script, settings=replace(QUICK, **times)) as (server, client):
            with pytest.raises(ServerSilent, match=f"nothing for {SOON} s") as caught:
                await client.speak("Hello.").read()
            assert isinstance(caught.value, TimeoutError)
            assert len(server.peers) == 1

    run(work())


def test_server_that_waits_for_text_does_not_time_out() -> None:
    async def work() -> None:
        settings = replace(QUICK, timeout=SOON)
        async with served(spoken, settings=settings) as (_, client), client.stream() as speech:
            await speech.push("Hello ")
            events = speech.events()
            assert await anext(events) is speech.ready
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(4 * SOON):
                    await anext(events)
            await speech.finish()
            assert await speech.read()

    run(work())


def test_server_without_a_handshake() -> None:
    async def work() -> None:
        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = Settings(connect_timeout=SOON, attempts=1)
        async with server, AsyncClient(url, settings=settings) as client:
            with pytest.raises(ConnectFailed, match="did not respond within"):
                await client.speak("Hello.").read()
            speech = AsyncClient(url, settings=Settings(connect_timeout=WAIT)).speak("Hello.")
            reading = asyncio.create_task(speech.read())
            await asyncio.sleep(0)  # it begins to connect
            assert speech.timings.attempts == 1
            report = await speech.cancel()  # does not wait for the handshake
            assert (report.id, report.generated_frames) == (None, 0)
            with pytest.raises(ClientError, match="cancelled"):
                await reading

    run(work())


def test_no_server() -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()
        await server.wait_closed()
        async with AsyncClient(url, settings=QUICK) as client:
            with pytest.raises(ConnectFailed, match=f"{url} cannot be connected to") as caught:
                await client.speak("Hello.").read()
            assert caught.value.retriable

    run(work())


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"code": "unauthorized", "message": "no key.", "remedy": "Send one."}, AccessDenied),
        (503, {"code": "not_ready", "message": "wait.", "retriable": False}, Unavailable),
        (502, "<html>", Unavailable),
        (404, "", ServerError),
    ],
)
def test_refused_handshake(status: int, body: Any, kind: type[ServerError]) -> None:
    async def work() -> None:
        def refuse(connection: Any, request: Any) -> Any:
            asked.append(request.path)
            return connection.respond(status, body if isinstance(body, str) else json.dumps(body))

        asked: list[str] = []
        async with served(spoken, process_request=refuse) as (_, client):
            with pytest.raises(kind) as caught:
                await client.speak("Hello.").read()
            if isinstance(body, dict):
                assert caught.value.message == body["message"]
            assert len(asked) == (QUICK.attempts if caught.value.retriable else 1)
            assert set(asked) == {"/v1/stream"}

    run(work())
