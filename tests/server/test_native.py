"""/v1/stream over real sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from rt_drama3.engine.speech import SpeechRequest
from tests.protocol.tools import check
from tests.server.tools import LONG, Place, audio_of
from tests.small import heard, until


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100, 48_000])
def test_every_sample_arrives_at_every_rate(ending: Place, rate: int) -> None:
    with ending.native() as client:
        client.send("start", text="Hello there.", final=True, sample_rate=rate, seed=3)
        messages = client.take_until("done", "error")
    ready, *_, done = messages
    assert ready["sample_rate"] == rate
    assert done["type"] == "done"
    assert done["frames"] > 1
    wanted = -(-done["frames"] * 2048 * rate // 44_100)
    audio = audio_of(messages)
    assert len(audio) == 2 * wanted
    assert done["sent"]["samples"] == wanted
    assert done["sent"]["bytes"] == len(audio)


def test_the_audio_is_the_engines(ending: Place) -> None:
    with ending.native() as client:
        client.send("start", text="Hello there.", final=True, format="pcm_f32", seed=3)
        messages = client.take_until("done")
    assert ending.engine is not None
    pcm, _ = heard(ending.engine.open(SpeechRequest("Hello there.", seed=3)))
    np.testing.assert_array_equal(np.frombuffer(audio_of(messages), "<f4"), pcm)


def test_messages_are_in_order_and_as_published(ending: Place) -> None:
    with ending.native() as client:
        client.send("start", timings=True, take=True)
        client.send("text", text="Hello there. And ")
        client.send("text", text="another one. ")
        client.send("finish")
        messages = client.take_until("done")
    for message in messages:
        check(message, "native", "server_" + message["type"])
    kinds = [message["type"] for message in messages if message["type"] != "queued"]
    assert kinds[:3] == ["ready", "segment", "audio"]
    audio = [message for message in messages if message["type"] == "audio"]
    assert [message["seq"] for message in audio] == list(range(len(audio)))
    place = 0
    for message in audio:
        assert message["first_sample"] == place
        assert len(message["audio"]) == 2 * message["samples"]
        place += message["samples"]
    segments = [message for message in messages if message["type"] == "segment"]
    assert [s["text"].split("|> ")[-1] for s in segments] == ["Hello there.", "And another one."]
    stamps = audio[0]["stamps"]
    times = [stamps["prefilled"], *stamps["sampled"], stamps["decoded"], stamps["sent"]]
    assert times == sorted(times)
    take = messages[-1]["take"]
    assert len(take["vq_codes"]) == 2 * take["num_codebooks"] * take["frames"]


def test_cancel_is_answered_and_the_connection_continues(endless: Place) -> None:
    with endless.native() as client:
        for _ in range(3):
            client.send("start", text=LONG, final=True)
            before = client.take_until("audio")
            client.send("cancel")
            after = client.take_until("cancelled")
            sent = audio_of(before) + audio_of(after)
            assert after[-1]["sent"]["bytes"] == len(sent)
            assert after[-1]["generated"]["frames"] >= after[-1]["sent"]["samples"] // 2048
            endless.until_free()


def test_a_new_start_replaces_the_old(endless: Place) -> None:
    with endless.native() as client:
        client.send("start", text=LONG, final=True)
        first = client.take_until("audio")[0]["id"]
        client.send("start", text="Hello.", final=True, max_seconds=0.3)
        messages = client.take_until("done")
    kinds = [m["type"] for m in messages]
    assert kinds.index("cancelled") < kinds.index("ready")
    assert messages[kinds.index("cancelled")]["id"] == first
    assert {m["id"] for m in messages[kinds.index("ready") :]} == {messages[-1]["id"]}


@pytest.mark.parametrize("text", ["", "   ", "...", "\N{GRINNING FACE}"])
def test_nothing_to_speak_ends_without_audio(endless: Place, text: str) -> None:
    with endless.native() as client:
        client.send("start", text=text, final=True)
        messages = client.take_until("done")
        client.send("start")
        client.send("text", text=text)
        client.send("flush")
        client.send("finish")
        messages += client.take_until("done")
    assert audio_of(messages) == b""


def test_one_connection_speaks_as_often_as_asked(ending: Place) -> None:
    heard = set()
    with ending.native() as client:
        for _ in range(20):
            client.send("start", seed=3)
            client.send("flush")
            client.send("text", text="Hello there")
            client.send("finish")
            heard.add(audio_of(client.take_until("done", "error")))
    assert len(heard) == 1
    assert heard.pop()


def test_cancel_of_nothing_to_speak_is_answered(endless: Place) -> None:
    with endless.native() as client:
        client.send("start", text="...", final=True)
        client.send("cancel")
        assert client.take_until("cancelled")[-1]["generated"]["frames"] == 0


def test_pings_are_answered_while_the_engine_is_busy(endless: Place) -> None:
    with endless.native() as client:
        client.send("start", text=LONG, final=True)
        client.take_until("audio")
        for number in range(5):
            client.send("ping", data=number)
            assert client.take_until("pong")[-1]["data"] == number
        assert client.socket.ping().wait(30)


def test_two_concurrent_streams(endless: Place) -> None:
    with endless.native() as one, endless.native() as two:
        for client in (one, two):
            client.send("start", text=LONG, final=True, max_seconds=2)
        ends = [client.take_until("done")[-1] for client in (one, two)]
    assert [end["frames"] for end in ends] == [43, 43]


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_client_that_vanishes_frees_the_engine(endless: Place, how: str) -> None:
    before = endless.metric("cancels_total", reason="disconnect")
    with endless.native() as client:
        client.send("start", text=LONG, final=True)
        client.take_until("audio")
        raw = client.socket.socket
        if how == "reset":
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.close()
        elif how == "half":
            raw.shutdown(socket.SHUT_WR)
        else:
            client.socket.close()
        endless.until_free()
    assert endless.metric("cancels_total", reason="disconnect") == before + 1


def test_garbage_gets_an_error_and_others_play_on(endless: Place) -> None:
    stop = threading.Event()
    garbage = [b"", b"\xc1", b"\x81\xa4type\xa5", msgpack.packb(["start"]), b"\xdf\xff\xff\xff\xff"]

    def pest() -> None:
        while not stop.is_set():
            with endless.native() as bad:
                try:
                    for data in garbage * 5:
                        bad.socket.send(data)
                    bad.socket.send("text")
                    while True:
                        bad.take()
                except ConnectionClosed as closed:
                    codes.append(closed.rcvd.code if closed.rcvd else 0)

    codes: list[int] = []
    thread = threading.Thread(target=pest)
    thread.start()
    try:
        with endless.native() as good:
            good.send("start", text=LONG, final=True, max_seconds=4)
            messages = good.take_until("done")
        until(lambda: codes, "an end of the pest")
    finally:
        stop.set()
        thread.join()
    assert messages[-1]["frames"] == 86
    assert len(audio_of(messages)) == 2 * 86 * 2048
    assert set(codes) == {4429}


def test_a_message_that_is_too_large_is_refused(endless: Place) -> None:
    size = endless.service.limits.message_bytes
    with endless.native() as client:
        client.send("text", text="x" * (size + 10))
        assert client.take()["code"] == "too_large"
        with contextlib.suppress(ConnectionClosed):  # refused while it is still sending, or after
            client.send("text", text="x" * (size + (2 << 20)))
        with pytest.raises(ConnectionClosed) as closed:
            client.take()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_an_unknown_voice_ends_the_utterance_alone(ending: Place) -> None:
    with ending.native() as client:
        client.send("start", text="Hello.", final=True, voice="missing")
        error = client.take()
        assert (error["code"], error["scope"]) == ("unknown_voice", "utterance")
        client.send("start", text="Hello.", final=True)
        assert client.take_until("done", "error")[-1]["type"] == "done"


def test_references_in_the_message_are_followed(ending: Place) -> None:
    codes = np.zeros((3, 4), "<u2").tobytes()
    with ending.native() as client:
        client.send(
            "start", text="Hi.", final=True, references=[{"text": "Hello.", "vq_codes": codes}]
        )
        assert client.take_until("done", "error")[-1]["type"] == "done"
        bad = {"text": "Hello.", "audio": b"not audio"}
        client.send("start", text="Hi.", final=True, references=[bad])
        assert client.take_until("done", "error")[-1]["type"] == "error"


@pytest.mark.slow
def test_20000_characters_to_the_last_sample(ending: Place) -> None:
    sentence = (
        "This is a sentence that is spoken and that continues until a segment is nearly full, "
    )
    text = (f"{sentence}so that there are not too many of them. " * 200)[:20_000]
    with ending.native() as client:
        client.send("start", final=False)
        for start in range(0, len(text), 997):
            client.send("text", text=text[start : start + 997])
        client.send("finish")
        messages = client.take_until("done", "error")
    done = messages[-1]
    assert done["type"] == "done"
    assert len(audio_of(messages)) == 2 * 2048 * done["frames"]
    spoken = "".join(m["text"].split("|> ")[-1] for m in messages if m["type"] == "segment")
    assert spoken.replace(" ", "") == text.replace(" ", "")


def test_random_messages_never_break_the_server(endless: Place) -> None:
    random = np.random.default_rng(7)
    kinds = ["start", "text", "flush", "finish", "cancel", "ping", "x", 7, None]
    values = ["Hello. ", "", 3, -1.5, None, True, b"\x00", [], {}, "pcm", 2**63, "<|im_end|>"]
    names = ["text", "final", "format", "sample_rate", "voice", "references", "seed", "data"]
    for route, key in (("/v1/stream", "type"), ("/v1/tts/live", "event")):
        for _ in range(30):
            with endless.connect(route) as socket, contextlib.suppress(ConnectionClosed):
                for _ in range(20):
                    chosen = random.choice(len(names), 3)
                    message = {names[n]: values[random.integers(len(values))] for n in chosen}
                    message[key] = kinds[random.integers(len(kinds))]
                    if key == "event" and message[key] == "start":
                        message["request"] = {k: message[k] for k in list(message) if k != key}
                    packed = msgpack.packb(message)
                    socket.send(packed[: random.integers(1, len(packed) + 40)])
    endless.until_free()
    assert endless.metric("errors_total", code="internal") == 0
    assert endless.get("/ready").status_code == 200
