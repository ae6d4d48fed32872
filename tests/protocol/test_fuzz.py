"""Anything at all sent to sessions: no exception, answers by the schema, no memory kept."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_drama3.errors import DeviceError
from rt_drama3.protocol import (
    Cancel,
    Event,
    Finish,
    Flush,
    Outcome,
    ProtocolLimits,
    Start,
    State,
    Text,
)
from tests.protocol.tools import Client, Close, Send, fish, native

# Small limits are met often; errors must not end the connection all the time.
LIMITS = ProtocolLimits(
    message_characters=200, pending_characters=500, references=2, errors=30, late_messages=5
)

text = st.text("ab <|>/:1speakrimt_nd.\n😀", max_size=20)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**64 - 1) | st.floats() | text | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=4,
)
NAMES = (
    "text", "final", "voice", "references", "history", "format", "sample_rate", "bitrate", "take",
    "quality", "gain_db", "temperature", "head_temperature", "top_p", "top_k", "seed", "version",
    "max_seconds", "timings", "repetition_aware", "request", "prosody", "reference_id", "latency",
    "mp3_bitrate", "opus_bitrate", "data", "id", "guidance", "steering", "previous_takes",
)  # fmt: skip
TYPES = ("start", "text", "flush", "finish", "stop", "cancel", "ping", "unknown")


@st.composite
def messages(draw: st.DrawFn) -> Any:
    """Right ones, nearly right ones, and bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=50) | text)
    kind = draw(st.sampled_from(TYPES) | junk)
    message = {"type": kind, "event": kind, "text": draw(text), "request": {}}
    if draw(st.integers(0, 3)) == 0:
        message.update(draw(st.dictionaries(st.sampled_from(NAMES), junk, max_size=3)))
    return message


class Server:
    """Does with events what a server does, and knows what may be said when."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def send(self, message: Any) -> None:
        self.take(self.client.send(message))

    def take(self, events: list[Event | Send | Close]) -> None:
        for place, event in enumerate(events):
            if isinstance(event, Start | Text | Flush | Finish):
                assert event.utterance is self.client.utterance
                if not isinstance(event, Start):
                    assert event.utterance.state is not State.OVER
            if isinstance(event, Text):
                assert event.text
            if isinstance(event, Cancel):
                assert event.utterance.state is State.OVER
                assert self.client.bytes_of(event.utterance.audio, b"xx", 1) == []
            if isinstance(event, Close):
                assert place == len(events) - 1
                assert len(event.reason) <= 123

    def act(self, what: int) -> None:
        """The stream of the last utterance does something."""
        utterance = self.client.utterance
        if utterance is None:
            return
        if what == 0:
            self.client.hear(utterance.done, Outcome())
        elif what == 1:
            self.take(self.client.take(self.client.session.fail(utterance, DeviceError("x"))))
        elif what == 2:
            utterance.waiting(0)
        else:
            self.client.hear(utterance.ready)
            self.client.hear(utterance.audio, bytes(8), 4)


@pytest.mark.parametrize("make", [native, fish])
@settings(max_examples=150, deadline=None)
@given(st.lists(messages() | st.integers(0, 5), max_size=25))
def test_any_sequence_of_messages(
    make: Callable[[ProtocolLimits], Client], steps: list[Any]
) -> None:
    server = Server(make(LIMITS))
    for step in steps:
        if isinstance(step, int):
            server.act(step)
        else:
            server.send(msgpack.packb(step) if isinstance(step, dict) else step)
    ends = [
        said["id"]
        for said in server.client.said
        if said.get("type") == "done" or (said.get("scope") == "utterance" and said["id"])
    ]
    assert len(ends) == len(set(ends))


def mutated(draw: random.Random, right: list[bytes]) -> bytes:
    """A right message, cut, changed, doubled or replaced."""
    data = bytearray(draw.choice(right))
    for _ in range(draw.randrange(4)):
        place = draw.randrange(len(data)) if data else 0
        match draw.randrange(5):
            case 0:
                del data[place:]
            case 1 if data:
                data[place] = draw.randrange(256)
            case 2:
                data[place:place] = draw.randbytes(draw.randrange(6))
            case 3:
                data += draw.choice(right)
            case _:
                # A declared length far beyond the message.
                data[place:place] = draw.choice([b"\xdd", b"\xdf", b"\xc6", b"\xdb"]) + b"\xff" * 4
    return bytes(data)


def unchecked(make: Callable[[ProtocolLimits], Client]) -> Client:
    """A client that does not look at the answers, which takes longer than making them."""
    client = make(LIMITS)
    client.schema = ""
    return client


@pytest.mark.parametrize(("make", "key"), [(native, "type"), (fish, "event")])
def test_ten_thousand_mutated_messages_leave_nothing_behind(
    make: Callable[[ProtocolLimits], Client], key: str
) -> None:
    draw = random.Random(4)
    clip = {"text": "Said.", "audio": bytes(500)}
    start = {
        key: "start", "text": "Hi. ", "references": [clip], "format": "wav", "seed": 5,
        "request": {"text": "", "references": [clip], "prosody": {"volume": 3}},
    }  # fmt: skip
    right = [msgpack.packb(start), msgpack.packb({key: "text", "text": "Words, words. "})]
    right += [msgpack.packb({key: name}) for name in TYPES]
    server, connections = Server(unchecked(make)), 1
    tracemalloc.start()
    settled = 0
    for number in range(12_000):
        server.send(mutated(draw, right))
        server.act(draw.randrange(6))
        if server.client.closed:
            server, connections = Server(unchecked(make)), connections + 1
        server.client.said.clear()
        if number == 3_000:
            settled, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now - settled < 200_000
    assert peak - settled < 1_000_000
    assert connections > 10
