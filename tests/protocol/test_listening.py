"""A listener's session and the messages to it, without a socket."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt_drama3.protocol import (
    ListenOptions,
    ListenSession,
    ListenStream,
    Mute,
    ProtocolLimits,
    Refused,
)
from tests.protocol.tools import FACTS, Clock, check, kinds


def session(limits: ProtocolLimits | None = None) -> ListenSession:
    return ListenSession(FACTS, limits, Clock())


def test_options() -> None:
    assert ListenOptions.read({}, FACTS, "mix") == ListenOptions(44_100, "mix")
    given_ones = {"sample_rate": "16000", "mode": "queue", "other": "x"}
    assert ListenOptions.read(given_ones, FACTS, "mix") == ListenOptions(16_000, "queue")
    for wrong in ({"sample_rate": "44101"}, {"sample_rate": ""}, {"mode": "MIX"}):
        with pytest.raises(Refused):
            ListenOptions.read(wrong, FACTS, "mix")


def test_what_a_listener_may_say() -> None:
    one = session()
    assert kinds(one.receive(msgpack.packb({"type": "stop"}))) == ["Mute"]
    assert one.receive(msgpack.packb({"type": "ping", "data": "x"})) == []
    [pong] = one.data_to_send()
    assert msgpack.unpackb(pong) == {"type": "pong", "data": "x", "server_ms": 100_000.0}
    assert one.receive(msgpack.packb({"type": "start"})) == []
    [error] = one.data_to_send()
    assert "known: ping, stop" in msgpack.unpackb(error)["message"]


def test_the_end() -> None:
    one = session()
    assert one.close("slow_client", "1 s of audio was not read.") == []
    [error] = one.data_to_send()
    check(msgpack.unpackb(error), "listen", "server_error")
    assert one.close_frame == (4409, "slow_client")
    assert one.close("idle", "") == []
    assert one.receive(msgpack.packb({"type": "stop"})) == []


@given(st.lists(st.one_of(st.binary(max_size=60), st.text(max_size=10)), max_size=30))
def test_nothing_that_comes_raises(messages: list[bytes | str]) -> None:
    one = session(ProtocolLimits(errors=5))
    for message in messages:
        for event in one.receive(message):
            assert isinstance(event, Mute)
        for data in one.data_to_send():
            found = msgpack.unpackb(data)
            check(found, "listen", f"server_{found['type']}")


def test_audio_is_cut_into_messages_of_whole_samples() -> None:
    stream = ListenStream("1", "r", "0", 100, ProtocolLimits(audio_bytes=1_024))
    pcm = bytes(range(256)) * 10
    messages = [msgpack.unpackb(data) for data in stream.audio(pcm)]
    assert b"".join(message["pcm"] for message in messages) == pcm
    assert [message["first_sample"] for message in messages] == [100, 612, 1124]
    assert [message["seq"] for message in messages] == [0, 1, 2]
    end = msgpack.unpackb(stream.end(False))
    check(end, "listen", "server_end")
    assert end["samples"] == 100 + 1_280
    assert msgpack.unpackb(stream.begin())["after"] == "0"
