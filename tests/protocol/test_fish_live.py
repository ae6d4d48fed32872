"""Fish's live dialect: what each client in the wild does, and what must never happen to it."""

from __future__ import annotations

from typing import Any

import pytest

from rt_drama3.errors import DeviceError
from rt_drama3.protocol import FishUtterance, Outcome, ProtocolLimits, Text
from tests.protocol.tools import Client, fish, kinds, started

# What LiveKit's plugin sends, field by field.
LIVEKIT = {
    "text": "", "chunk_length": 100, "format": "wav", "sample_rate": 24_000, "mp3_bitrate": 64,
    "opus_bitrate": 64_000, "references": [], "reference_id": "933563129e564b19a115bedd57b7406a",
    "normalize": True, "latency": "balanced", "prosody": None, "top_p": 0.7, "temperature": 0.7,
    "features": ["quality-guard"],
}  # fmt: skip
# And Pipecat's.
PIPECAT = {
    "sample_rate": 16_000, "latency": "balanced", "format": "pcm", "normalize": True,
    "prosody": {"speed": 1.0, "volume": 0}, "reference_id": None,
}  # fmt: skip


def finishes(client: Client) -> list[dict[str, Any]]:
    return [said for said in client.said if said["event"] == "finish"]


def failed(client: Client, message: Any) -> dict[str, Any]:
    """The finish of a message that ends the connection."""
    assert kinds(client.send(message))[-2:] == ["Send", "Close"]
    assert client.last()["event"] == "finish"
    assert client.last()["reason"] == "error"
    return client.last()


# --- the clients ------------------------------------------------------------------------------


def test_livekit_keeps_its_socket_and_starts_again() -> None:
    client = fish()
    for number in range(1, 30):
        utterance = started(client, **LIVEKIT)
        for sentence in ("First sentence. ", "Second one. "):
            assert kinds(client.send({"event": "text", "text": sentence})) == ["Text"]
            assert kinds(client.send({"event": "flush"})) == ["Flush"]
        assert kinds(client.send({"event": "stop"})) == ["Finish"]
        audio = client.hear(utterance.audio, b"\1\2" * 50, 50)
        assert audio == [{"event": "audio", "audio": b"\1\2" * 50}]
        assert finishes(client)[number - 1 :] == []
        client.clock.now += 1
        client.hear(utterance.done, Outcome())
        assert finishes(client)[number - 1 :] == [
            {"event": "finish", "reason": "stop", "time": 1_000.0}
        ]
    assert client.closed is None


def test_pipecat_never_stops_and_gets_no_finish() -> None:
    client = fish()
    utterance = started(client, **PIPECAT)
    for _ in range(200):
        events = client.send({"event": "text", "text": "An answer, spoken quickly. " * 100})
        assert kinds(events) == ["Text"]
        assert kinds(client.send({"event": "flush"})) == ["Flush"]
        client.hear(utterance.audio, bytes(20), 10)
        utterance.waiting(0)
    assert client.send({"event": "flush"}) == []
    assert finishes(client) == []
    # An interruption: stop, then close, then a new connection.
    assert kinds(client.send({"event": "stop"})) == ["Finish"]
    assert kinds(client.session.disconnected()) == ["Cancel"]
    assert client.hear(utterance.audio, bytes(20), 10) == []
    assert client.hear(utterance.done, Outcome()) == []


def test_a_start_while_one_runs_replaces_it() -> None:
    client = fish()
    first = started(client)
    assert kinds(client.send({"event": "start", "request": {}})) == ["Cancel", "Start"]
    assert client.hear(first.audio, bytes(2), 1) == client.hear(first.ready) == []
    assert client.hear(first.done, Outcome()) == []
    assert client.said == []  # this dialect has no word for it
    client.send({"event": "stop"})
    client.hear(client.utterance.done, Outcome())
    assert [said["reason"] for said in finishes(client)] == ["stop"]


def test_a_start_behind_a_stop_waits_for_its_turn() -> None:
    client = fish()
    first = started(client)
    client.send({"event": "text", "text": "Hello there."})
    client.send({"event": "stop"})
    assert kinds(client.send({"event": "start", "request": {"text": ""}})) == ["Start"]
    second = client.utterance
    client.send({"event": "text", "text": "Given up."})
    # One that was not stopped is replaced; the one before it is not.
    assert kinds(client.send({"event": "start", "request": {}})) == ["Cancel", "Start"]
    third = client.utterance
    assert kinds(client.send({"event": "stop"})) == ["Finish"]
    assert client.hear(first.audio, bytes(2), 1)
    client.hear(first.done, Outcome())
    assert client.hear(second.ready) == client.hear(second.done, Outcome()) == []
    client.hear(third.done, Outcome())
    assert [said["reason"] for said in finishes(client)] == ["stop", "stop"]
    assert client.session.disconnected() == []


def test_everything_that_waits_ends_with_the_connection() -> None:
    client = fish()
    for _ in range(3):
        started(client)
        client.send({"event": "stop"})
    assert kinds(client.session.disconnected()) == ["Cancel"] * 3


def test_a_failure_names_its_utterance_while_others_wait_behind_it() -> None:
    client = fish()
    first = started(client)
    client.send({"event": "stop"})
    client.clock.now += 5
    started(client)
    events = client.take(client.session.fail(first, DeviceError("the engine failed.")))
    assert kinds(events) == ["Cancel", "Cancel", "Send", "Close"]
    assert (client.last()["code"], client.last()["time"]) == ("engine_failed", 5_000.0)


@pytest.mark.parametrize("request_", [5, {"format": "ogg"}])
def test_a_wrong_start_silences_nothing_that_was_asked_for(request_: Any) -> None:
    client = fish()
    first = started(client)
    client.send({"event": "stop"})
    assert kinds(client.send({"event": "start", "request": request_})) == ["Start"]
    wrong = client.utterance
    assert client.send({"event": "text", "text": "Dropped."}) == []
    client.send({"event": "stop"})
    assert client.send({"event": "start", "request": {}}) == []
    client.hear(first.done, Outcome())
    assert [said["reason"] for said in finishes(client)] == ["stop"]
    assert client.closed is None
    client.take(client.session.fail(wrong, wrong.refused))
    assert client.last()["reason"] == "error"
    assert client.closed


def pipelined(client: Client, text: str = "", **request: Any) -> Any:
    client.send({"event": "start", "request": {"text": text, **request}})
    utterance = client.utterance
    client.send({"event": "stop"})
    return utterance.refused


def test_what_waits_is_bounded() -> None:
    client = fish()
    found = [pipelined(client) for _ in range(30)]
    assert found[:17] == [None] * 17
    assert found[17].code == "backlog_full"
    assert found[18:] == [found[17]] * 12  # nothing was started any more
    client = fish(ProtocolLimits(pending_characters=10))
    assert pipelined(client, "12345678") is None
    assert pipelined(client, "abc").code == "backlog_full"
    client = fish(ProtocolLimits(message_bytes=1_000))
    clip = {"text": "Hello.", "audio": bytes(600)}
    assert pipelined(client, references=[clip]) is None
    assert pipelined(client, references=[clip]).code == "backlog_full"


def test_the_text_of_start_is_spoken_too() -> None:
    utterance = started(client := fish(), text="Hello there. <")
    assert utterance.order.text == "Hello there. "
    assert client.send({"event": "text", "text": "3"}) == [Text(utterance, "<3")]
    assert kinds(client.send({"event": "flush"})) == ["Flush"]


def test_every_stop_has_one_finish() -> None:
    client = fish()
    assert kinds(client.send({"event": "stop"})) == ["Send"]
    assert client.last() == {"event": "finish", "reason": "stop", "time": 0.0}
    utterance = started(client)
    assert kinds(client.send({"event": "stop"})) == ["Finish"]
    assert client.send({"event": "stop"}) == []
    assert client.send({"event": "flush"}) == []
    client.hear(utterance.done, Outcome())
    assert client.hear(utterance.done, Outcome()) == []
    assert len(finishes(client)) == 2


def test_no_finish_comes_before_stop_even_if_the_speech_ended() -> None:
    client = fish()
    utterance = started(client)
    client.send({"event": "text", "text": "Hi. "})
    assert client.hear(utterance.done, Outcome()) == []
    client.send({"event": "text", "text": "More."})
    assert client.last()["code"] == "out_of_order"
    assert kinds(client.send({"event": "stop"})) == ["Send"]
    assert len(finishes(client)) == 1
    assert client.last()["reason"] == "error"
    client = fish()
    started(client).done(Outcome())
    client.send({"event": "stop"})
    assert client.last()["reason"] == "stop"


def test_a_flush_with_nothing_buffered_makes_nothing() -> None:
    client = fish()
    assert client.send({"event": "flush"}) == []
    started(client)
    assert client.send({"event": "flush"}) == []
    client.send({"event": "text", "text": "  "})
    assert client.send({"event": "flush"}) == []


def test_unknown_events_are_ignored_with_a_few_words() -> None:
    client = fish(ProtocolLimits(errors=3))
    utterance = started(client)
    for _ in range(10):
        client.send({"event": "ping"})
        client.send({"event": 5})
    assert [said["event"] for said in client.said] == ["warning"] * 3
    assert "event 'ping' is not known" in client.said[0]["message"]
    client.send({"event": "stop"})
    assert client.hear(utterance.done, Outcome())[0]["reason"] == "stop"


def test_extra_messages_are_not_mistaken_for_audio() -> None:
    client = fish()
    utterance = started(client, prosody={"speed": 1.5})
    assert [said["event"] for said in client.said] == ["warning"]
    assert "speed 1.5 is ignored" in client.last()["message"]
    assert client.hear(utterance.queued, 3) == client.hear(utterance.cancelled, 1) == []
    assert client.hear(utterance.segment, 0, "Hi.", 0) == []


def test_wav_and_large_audio_come_in_pieces_below_64_kib() -> None:
    utterance = started(client := fish(), format="wav", sample_rate=24_000)
    client.hear(utterance.audio, b"R" * 44 + bytes(200_000), 100_000)
    pieces = [said["audio"] for said in client.said]
    assert b"".join(pieces) == b"R" * 44 + bytes(200_000)
    assert all(len(piece) % 2 == 0 for piece in pieces)
    assert len(pieces) == 4


# --- what goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"garbage", "bad_message"),
        ("text frame", "bad_message"),
        ({"event": "text"}, "bad_field"),
        ({"event": "text", "text": 5}, "bad_field"),
        ({"event": "text", "text": "a<|im_end|>"}, "bad_text"),
        ({"event": "text", "text": "x" * 65_537}, "text_too_long"),
    ],
)
def test_a_lost_message_is_an_error_and_so_is_finish(message: Any, code: str) -> None:
    client = fish()
    utterance = started(client)
    assert kinds(client.send(message)) == ["Send"]
    assert (client.last()["event"], client.last()["code"]) == ("error", code)
    assert kinds(client.send({"event": "text", "text": "Hi."})) == ["Text"]
    client.send({"event": "stop"})
    assert client.send({"event": "text", "text": "late"})
    assert client.last()["code"] == "out_of_order"
    client.hear(utterance.done, Outcome())
    assert client.last()["reason"] == "error"
    assert client.last()["code"] == code  # the first one
    assert client.closed is None
    started(client)
    client.send({"event": "stop"})
    client.hear(client.utterance.done, Outcome())
    assert client.last()["reason"] == "stop"


@pytest.mark.parametrize("trigger", ["flush", "stop"])
def test_held_text_that_cannot_be_spoken(trigger: str) -> None:
    client = fish(ProtocolLimits(errors=1))
    utterance = started(client)
    client.send({"event": "text", "text": "Hi. <|speaker:"})
    last = {"flush": "Flush", "stop": "Finish"}[trigger]
    assert kinds(client.send({"event": trigger})) == [last, "Send"]
    assert isinstance(utterance, FishUtterance)
    assert utterance.lost
    assert utterance.lost.code == "bad_text"
    client = fish(ProtocolLimits(errors=1))
    started(client)
    client.send(b"garbage")
    client.send({"event": "text", "text": "<|speaker:"})
    assert kinds(client.send({"event": trigger})) == ["Cancel", "Send", "Close"]
    assert client.last()["code"] == "too_many_errors"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"garbage", "bad_message"),
        ({"event": "text", "text": "Hi."}, "out_of_order"),
        ({"event": "start"}, "bad_field"),
        ({"event": "start", "request": 5}, "bad_field"),
        ({"event": "start", "request": {"format": "ogg"}}, "unsupported_format"),
        ({"event": "start", "request": {"text": "<|voice|>"}}, "bad_text"),
    ],
)
def test_a_client_that_waits_for_a_finish_always_gets_one(message: Any, code: str) -> None:
    client = fish()
    error = failed(client, message)
    assert error["code"] == code
    assert error["message"]
    assert code != "out_of_order" or error["message"] == "text came without a start."
    assert client.send({"event": "stop"}) == []


def test_a_wrong_start_stops_what_runs() -> None:
    client = fish()
    started(client)
    assert kinds(client.send({"event": "start"})) == ["Cancel", "Send", "Close"]


def test_a_failing_stream_finishes_with_an_error_and_closes() -> None:
    client = fish()
    utterance = started(client)
    error = DeviceError("the engine failed.")
    events = client.take(client.session.fail(utterance, error))
    assert kinds(events) == ["Cancel", "Send", "Close"]
    assert (client.last()["reason"], client.last()["code"]) == ("error", "engine_failed")
    assert client.closed
    assert client.closed.code == 1011
    assert client.session.fail(utterance, error) == []
    assert client.session.close("idle", "") == []


def test_the_server_may_end_a_connection() -> None:
    client = fish()
    events = client.take(client.session.close("idle", "300 s without a message."))
    assert kinds(events) == ["Send", "Close"]
    assert client.last()["code"] == "idle"


def test_a_flood_and_many_errors_are_ended() -> None:
    client = fish(ProtocolLimits(message_burst=3, messages_per_second=1))
    started(client)
    client.send({"event": "flush"})
    client.send({"event": "flush"})
    assert kinds(client.send({"event": "flush"})) == ["Cancel", "Send", "Close"]
    assert client.last()["code"] == "too_many_messages"
    client = fish(ProtocolLimits(errors=1))
    started(client)
    client.send(b"garbage")
    assert kinds(client.send(b"garbage")) == ["Cancel", "Send", "Close"]
    assert client.last()["code"] == "too_many_errors"
