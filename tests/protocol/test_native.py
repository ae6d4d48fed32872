"""The native dialect: every order of messages, every field, every error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from rt_drama3.errors import DeviceError, Overloaded, RequestError, RtDrama3Error
from rt_drama3.protocol import Outcome, ProtocolLimits, Refused, State, Text
from tests.protocol.tools import Client, kinds, native, started


@dataclass(frozen=True)
class Stamps:
    accepted: float = 100.0
    prefilled: float = 100.005
    sampled: tuple[float, float] = (100.010, 100.056)
    decoded: float = 100.061


def refused(client: Client, message: Any) -> dict[str, Any]:
    """The error that a message is answered with, and nothing else."""
    before = len(client.said)
    assert set(kinds(client.send(message))) == {"Send"}
    assert len(client.said) == before + 1
    assert client.last()["type"] == "error"
    return client.last()


# --- the order of messages --------------------------------------------------------------------


def test_a_whole_utterance() -> None:
    client = native()
    utterance = started(client, sample_rate=16_000, timings=True)
    ready = client.last()
    assert ready["type"] == "ready"
    assert ready["id"] == "utterance-1"
    assert (ready["format"], ready["sample_rate"]) == ("pcm", 16_000)
    assert ready["frame_ms"] == pytest.approx(46.44)
    assert ready["limits"]["idle_seconds"] == 300.0
    assert kinds(client.send({"type": "text", "text": "Hello there. "})) == ["Text"]
    assert client.send({"type": "text", "text": "You"}) == [Text(utterance, "You")]
    assert kinds(client.send({"type": "flush"})) == ["Flush"]
    assert kinds(client.send({"type": "finish"})) == ["Finish"]
    assert client.hear(utterance.queued, 2) == [
        {"type": "queued", "id": "utterance-1", "position": 2}
    ]
    segment = client.hear(utterance.segment, 0, "Hello there.", 10)[0]
    assert segment["first_sample"] == 10 * 2_048 * 16_000 // 44_100
    client.clock.now = 100.062
    first, second = (
        client.hear(utterance.audio, bytes(2 * 743), 743, Stamps())[0],
        client.hear(utterance.audio, bytes(2 * 10), 10)[0],
    )
    assert (first["seq"], first["first_sample"], first["samples"]) == (0, 0, 743)
    assert first["stamps"] == {
        "prefilled": 5.0, "sampled": [10.0, 56.0], "decoded": 61.0, "sent": 62.0
    }  # fmt: skip
    assert (second["seq"], second["first_sample"]) == (1, 743)
    assert "stamps" not in second
    client.clock.now = 100.1
    outcome = Outcome(frames=1, seed=7, segments=1, timings={"rtf": 0.12345})
    done = client.hear(utterance.done, outcome)[0]
    assert done["sent"] == {"messages": 2, "bytes": 1_506, "samples": 753, "seconds": 0.047}
    assert done["timings"] == {"first_audio_ms": 62.0, "total_ms": 100.0, "rtf": 0.123}
    assert (done["seed"], done["complete"]) == (7, True)
    assert utterance.state is State.OVER


def test_many_utterances_one_after_the_other() -> None:
    client = native()
    for number in range(1, 50):
        utterance = started(client, text="Hi.", final=True)
        assert client.last()["id"] == f"utterance-{number}"
        client.hear(utterance.audio, bytes(10), 5)
        client.hear(utterance.done, Outcome())
        assert client.last()["type"] == "done"
        assert client.last()["sent"]["messages"] == 1


def test_a_final_text_needs_no_finish() -> None:
    client = native()
    utterance = started(client, text="All of it.", final=True)
    assert utterance.order.text == "All of it."
    assert client.send({"type": "finish"}) == []
    assert refused(client, {"type": "text", "text": "More."})["code"] == "out_of_order"
    assert client.hear(utterance.done, Outcome())[0]["type"] == "done"


@pytest.mark.parametrize("text", ["", "   ", "...", "😀", "\u200b!"])
def test_text_without_words_is_accepted(text: str) -> None:
    order = started(native(), text=text, final=True).order
    assert order.is_speechless(True)
    assert not started(native(), text=text).order.is_speechless(True)  # more may come
    assert not started(native(), text="1", final=True).order.is_speechless(True)


def test_directions_alone_are_speech_where_they_sound() -> None:
    order = started(native(), text="[laughs] [[loudly] so]", final=True).order
    assert not order.is_speechless(True)
    assert order.is_speechless(False)
    assert not started(native(), text="[laughs] Ha", final=True).order.is_speechless(False)


def test_a_flush_with_nothing_buffered_makes_nothing() -> None:
    client = native()
    assert client.send({"type": "flush"}) == []
    started(client)
    for _ in range(3):
        assert client.send({"type": "flush"}) == []
    client.send({"type": "text", "text": " \n"})
    assert client.send({"type": "flush"}) == []
    client.send({"type": "text", "text": "Hi"})
    assert kinds(client.send({"type": "flush"})) == ["Flush"]
    assert client.send({"type": "flush"}) == []
    client.send({"type": "finish"})
    assert client.send({"type": "flush"}) == []


def test_held_text_comes_before_flush_and_finish() -> None:
    client = native()
    utterance = started(client, text="A <")
    assert utterance.order.text == "A "
    assert kinds(client.send({"type": "flush"})) == ["Text", "Flush"]
    assert client.send({"type": "text", "text": "b <|"}) == [Text(utterance, "b ")]
    events = client.send({"type": "finish"})
    assert kinds(events) == ["Text", "Finish"]
    assert events[0] == Text(utterance, "<|")


def test_held_text_that_cannot_be_spoken_does_not_stop_the_end() -> None:
    client = native()
    utterance = started(client)
    client.send({"type": "text", "text": "Hi. <|speaker:"})
    assert kinds(client.send({"type": "flush"})) == ["Flush", "Send"]
    assert (client.last()["code"], client.last()["scope"]) == ("bad_text", "message")
    client.send({"type": "text", "text": "<|speaker:"})
    assert kinds(client.send({"type": "finish"})) == ["Finish", "Send"]
    assert client.hear(utterance.done, Outcome())[0]["type"] == "done"


def test_cancel_stops_keeps_the_connection_and_is_answered_once() -> None:
    client = native()
    utterance = started(client)
    client.send({"type": "text", "text": "A long story."})
    client.hear(utterance.audio, bytes(2_000), 1_000)
    assert client.hear(utterance.cancelled, 3) == []  # not asked for
    assert kinds(client.send({"type": "cancel"})) == ["Cancel"]
    assert client.last() == {
        "type": "cancelled",
        "id": "utterance-1",
        "generated": {"frames": 3, "seconds": 0.139},
        "sent": {"messages": 1, "bytes": 2_000, "samples": 1_000, "seconds": 0.023},
    }
    # The client gets nothing of what the stream still does.
    assert client.hear(utterance.audio, bytes(10), 5) == []
    assert client.hear(utterance.done, Outcome()) == client.hear(utterance.cancelled, 3) == []
    assert client.hear(utterance.queued, 0) == client.hear(utterance.ready) == []
    assert client.hear(utterance.segment, 0, "", 0) == []
    # A cancel that crossed with the end, or comes twice, is answered, too.
    assert kinds(client.send({"type": "cancel"})) == ["Mute", "Send"]
    assert client.last()["id"] == "utterance-1"
    assert client.last()["generated"]["frames"] == 0
    assert started(client) is not utterance


def test_cancel_before_any_start() -> None:
    client = native()
    client.send({"type": "cancel"})
    assert client.last()["id"] is None


def test_text_on_its_way_when_an_utterance_ends_is_dropped_quietly() -> None:
    client = native(ProtocolLimits(late_messages=3))
    started(client)
    client.send({"type": "cancel"})
    assert client.send({"type": "text", "text": "late"}) == []
    assert client.send({"type": "finish"}) == []  # the sender of the text has finished
    assert refused(client, {"type": "text", "text": "x"})["code"] == "out_of_order"
    started(client)
    client.send({"type": "cancel"})
    assert [client.send({"type": "text", "text": "late"}) for _ in range(3)] == [[], [], []]
    assert refused(client, {"type": "text", "text": "x"})["code"] == "out_of_order"


def test_a_limit_may_end_an_utterance_before_its_finish() -> None:
    client = native()
    utterance = started(client, max_seconds=1)
    client.hear(utterance.done, Outcome(complete=False))
    assert client.last()["complete"] is False
    assert client.send({"type": "text", "text": "late"}) == []
    assert client.send({"type": "finish"}) == []
    assert refused(client, {"type": "finish"})["code"] == "out_of_order"


def test_text_and_finish_need_a_start() -> None:
    client = native()
    for message in ({"type": "text", "text": "Hi."}, {"type": "finish"}):
        error = refused(client, message)
        assert (error["code"], error["scope"], error["id"]) == ("out_of_order", "message", None)
    utterance = started(client)
    client.send({"type": "finish"})
    client.hear(utterance.done, Outcome())
    assert refused(client, {"type": "text", "text": "Hi."})["code"] == "out_of_order"


def test_a_start_replaces_what_runs() -> None:
    client = native()
    first = started(client)
    assert kinds(client.send({"type": "start"})) == ["Cancel", "Start"]
    assert client.last()["type"] == "cancelled"
    assert client.last()["id"] == "utterance-1"
    assert client.utterance is not first
    client.hear(client.utterance.ready)
    # A wrong one as well: the text behind it was not meant for the old utterance.
    assert kinds(client.send({"type": "start", "voice": 5})) == ["Cancel", "Send"]
    error, answer = client.said[-2:]
    assert (error["scope"], answer["type"]) == ("utterance", "cancelled")
    assert client.send({"type": "text", "text": "late"}) == []


def test_ping_is_echoed() -> None:
    client = native()
    for data in (None, 0, 2**63 - 1, "x" * 64):
        client.send({"type": "ping", "data": data})
        assert client.last() == {"type": "pong", "data": data, "server_ms": 100_000.0}
    for data in ("x" * 65, -1, 2**63, 1.5, True, [1]):
        assert refused(client, {"type": "ping", "data": data})["code"] == "bad_field"


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"garbage", "bad_message"),
        ("text frame", "bad_message"),
        ({}, "unknown_type"),
        ({"type": None}, "unknown_type"),
        ({"type": ["start"]}, "unknown_type"),
        ({"type": "speak"}, "unknown_type"),
        ({"type": "x" * 100_000}, "unknown_type"),
        ({"type": "text"}, "bad_field"),
        ({"type": "text", "text": None}, "bad_field"),
        ({"type": "text", "text": b"bytes"}, "bad_field"),
        ({"type": "text", "text": 5}, "bad_field"),
        ({"type": "text", "text": "<|im_end|>"}, "bad_text"),
        ({"type": "text", "text": "<|speaker:99|> Hi"}, "bad_text"),
        ({"type": "text", "text": "x" * 65_537}, "text_too_long"),
    ],
)
def test_an_invalid_message_is_ignored_and_the_utterance_continues(message: Any, code: str) -> None:
    client = native()
    utterance = started(client)
    error = refused(client, message)
    assert (error["code"], error["scope"], error["id"]) == (code, "message", "utterance-1")
    assert kinds(client.send({"type": "text", "text": "Hi."})) == ["Text"]
    assert client.hear(utterance.audio, bytes(2), 1)


def test_too_much_waiting_text_is_refused_until_some_is_spoken() -> None:
    client = native(ProtocolLimits(pending_characters=10))
    utterance = started(client)
    client.send({"type": "text", "text": "123456"})
    error = refused(client, {"type": "text", "text": "abcdef"})
    assert (error["code"], error["retriable"]) == ("backlog_full", True)
    utterance.waiting(2)
    assert kinds(client.send({"type": "text", "text": "abcdef"})) == ["Text"]


@pytest.mark.parametrize(
    ("error", "code", "retriable"),
    [
        (Overloaded("20 streams are open."), "overloaded", True),
        (RequestError("reference 1 is not audio."), "bad_request", False),
        (DeviceError("out of memory"), "engine_failed", True),
        (RtDrama3Error("/secret/path"), "internal", False),
    ],
)
def test_a_failing_stream_ends_its_utterance_only(
    error: RtDrama3Error, code: str, retriable: bool
) -> None:
    client = native()
    utterance = started(client)
    assert kinds(client.take(client.session.fail(utterance, error))) == ["Cancel", "Send"]
    said = client.last()
    assert (said["code"], said["retriable"], said["scope"]) == (code, retriable, "utterance")
    assert "/secret" not in said["message"]
    assert client.send({"type": "text", "text": "late"}) == []
    assert client.session.fail(utterance, error) == []
    assert kinds(client.send({"type": "start"})) == ["Start"]
    assert client.session.fail(utterance, error) == []  # an old one does not end the new one


@pytest.mark.parametrize("trigger", ["text", "flush", "finish"])
def test_a_client_that_errs_too_often_is_ended(trigger: str) -> None:
    client = native(ProtocolLimits(errors=2))
    started(client)
    for _ in range(2):
        refused(client, b"garbage")
    if trigger == "text":
        events = client.send(b"garbage")
    else:
        client.send({"type": "text", "text": "<|speaker:"})
        events = client.send({"type": trigger})
    assert kinds(events) == ["Cancel", "Send", "Close"]
    assert (client.last()["code"], client.last()["scope"]) == ("too_many_errors", "connection")
    assert client.closed
    assert (client.closed.code, client.closed.reason) == (4429, "too_many_errors")
    assert client.send({"type": "ping"}) == []


def test_an_accepted_start_forgives_errors() -> None:
    client = native(ProtocolLimits(errors=2))
    for _ in range(20):
        refused(client, b"garbage")
        refused(client, b"garbage")
        started(client)


def test_a_flood_of_messages_is_ended() -> None:
    client = native(ProtocolLimits(messages_per_second=10, message_burst=5))
    for _ in range(5):
        client.send({"type": "ping"})
    client.clock.now += 0.2
    client.send({"type": "ping"})
    client.send({"type": "ping"})
    assert client.closed is None
    assert kinds(client.send({"type": "ping"})) == ["Send", "Close"]
    assert client.last()["code"] == "too_many_messages"


@pytest.mark.parametrize(
    ("code", "close"), [("idle", 4408), ("slow_client", 4409), ("shutting_down", 1001)]
)
def test_the_server_may_end_a_connection(code: str, close: int) -> None:
    client = native()
    started(client)
    events = client.take(client.session.close(code, "300 s without a message."))
    assert kinds(events) == ["Cancel", "Send", "Close"]
    assert (client.last()["scope"], client.last()["id"]) == ("connection", "utterance-1")
    assert client.closed
    assert client.closed.code == close
    assert client.session.close(code, "again") == []


def test_a_client_that_disconnects_stops_its_stream() -> None:
    client = native()
    started(client)
    assert kinds(client.session.disconnected()) == ["Cancel"]
    assert client.session.disconnected() == []
    assert client.send({"type": "ping"}) == []
    assert native().session.disconnected() == []


def test_what_was_unpacked_elsewhere_is_taken_and_so_is_its_refusal() -> None:
    client = native()
    client.take(client.session.receive({"type": "ping", "data": 3}))
    assert client.last()["data"] == 3
    client.take(client.session.receive(Refused("too_large", "that is too large.")))
    assert (client.last()["code"], client.last()["scope"]) == ("too_large", "message")


def test_a_ping_that_is_too_long_gets_the_limit() -> None:
    client = native()
    said = refused(client, {"type": "ping", "data": "x" * 65})
    assert said["message"].startswith("data has 65 characters; the limit is 64")
    client.send({"type": "ping", "data": "x" * 64})
    assert client.last()["data"] == "x" * 64


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"text": " ", "vq_codes": b"\0" * 20}, "references[1].text is empty"),
        ({"text": "Hi.", "vq_codes": [[1], [2]]}, "references[1].vq_codes is not 10 lists"),
        ({"text": "Hi.", "vq_codes": b"\0"}, "references[1].vq_codes has 1 bytes"),
        ({"text": "Hi.", "audio": b""}, "references[1].audio is empty"),
        ({"text": "Hi.", "audio": "http://\0"}, "references[1].audio is "),
        ({"text": "Hi.", "audio": b"x", "vq_codes": b"x"}, "references[1].audio and vq_codes"),
    ],
)
def test_a_wrong_reference_is_named(wrong: dict[str, Any], message: str) -> None:
    good = {"text": "Hi.", "vq_codes": bytes(20)}
    said = refused(native(), {"type": "start", "references": [good, wrong]})
    assert said["code"] == "bad_reference"
    assert said["message"].startswith(message)
