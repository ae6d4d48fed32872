"""The messages that the real Fish Audio SDK builds and reads; skipped where it is not installed."""

from __future__ import annotations

from typing import Any

import pytest

from rt_drama3.errors import DeviceError
from rt_drama3.protocol import Outcome, ProtocolLimits, Sampling, parse_fish_tts
from tests.protocol.tools import FACTS, Send, check, fish, kinds

fishaudio = pytest.importorskip("fishaudio", reason="needs the fish-audio-sdk package")
ormsgpack = pytest.importorskip("ormsgpack", reason="comes with the fish-audio-sdk package")

SPOKEN = [b"\1\0" * 10, b"\2\0" * 30_000]


class Socket:
    """What the SDK's reader needs of a WebSocket."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = iter(messages)

    def receive_bytes(self) -> bytes:
        return next(self._messages)


def conversation(legacy: bool, **settings: Any) -> tuple[list[Any], Any]:
    """The SDK's own messages of one utterance, with text around a flush; and its module."""
    if legacy:
        import fish_audio_sdk as types
        from fish_audio_sdk.schemas import CloseEvent, StartEvent, TextEvent

        return [
            StartEvent(request=types.TTSRequest(text="", **settings)),
            TextEvent(text="Hello there. "),
            CloseEvent(),
        ], types
    import fishaudio.types as types  # type: ignore[no-redef]

    return [
        types.StartEvent(request=types.TTSRequest(text="", **settings)),
        types.TextEvent(text="Hello there. "),
        types.FlushEvent(),
        types.TextEvent(text="And more. "),
        types.CloseEvent(),
    ], types


@pytest.mark.parametrize("legacy", [False, True])
def test_the_sdks_messages_start_speak_and_stop(legacy: bool) -> None:
    client = fish()
    for _ in range(3):  # the same socket
        asked, types = conversation(legacy, format="pcm", sample_rate=16_000)
        clip = types.ReferenceAudio(audio=b"RIFF" * 1_000, text="Said.")
        asked[0].request.references = [clip]
        asked[0].request.prosody = types.Prosody(speed=1.0, volume=3.0)
        names: list[str] = []
        for message in asked:
            packed = ormsgpack.packb(message.model_dump())
            check(ormsgpack.unpackb(packed), "fish_live", "client")
            names += kinds(client.send(packed))
        flush = [] if legacy else ["Flush", "Text"]
        assert names == ["Start", "Text", *flush, "Finish"]
        order = client.utterance.order
        assert (order.output.format, order.output.sample_rate) == ("pcm", 16_000)
        assert order.references[0].audio == b"RIFF" * 1_000
        assert order.sampling == Sampling()
        assert order.gain_db == 3
        client.hear(client.utterance.done, Outcome())


def test_the_sdk_reads_the_servers_messages() -> None:
    from fishaudio.exceptions import WebSocketError
    from fishaudio.resources.realtime import iter_websocket_audio

    client = fish(ProtocolLimits(audio_bytes=10_240))
    asked, _ = conversation(False, prosody={"speed": 2.0}, format="pcm")
    for message in asked:
        client.send(ormsgpack.packb(message.model_dump()))
    utterance = client.utterance
    answers = [
        # A warning about the speed, among others that readers skip.
        *client.bytes_of(utterance.ready),
        *(event.data for event in client.send({"event": "new"}) if isinstance(event, Send)),
        *(data for pcm in SPOKEN for data in client.bytes_of(utterance.audio, pcm, len(pcm) // 2)),
        *client.bytes_of(utterance.done, Outcome()),
    ]
    assert len(answers) > 5
    assert b"".join(iter_websocket_audio(Socket(answers))) == b"".join(SPOKEN)

    client.send(ormsgpack.packb(asked[0].model_dump()))
    client.session.fail(client.utterance, DeviceError("out of memory"))
    answers = client.session.data_to_send()
    with pytest.raises(WebSocketError):
        list(iter_websocket_audio(Socket(answers)))


def test_the_sdks_http_body() -> None:
    from fishaudio.types import TTSRequest

    request = TTSRequest(text="Hello.", format="opus", reference_id="anna")
    body = ormsgpack.packb(request.model_dump(exclude_none=True))
    order = parse_fish_tts(body, "application/msgpack", FACTS, ProtocolLimits(), "s2-pro")
    assert (order.text, order.final, order.voices) == ("Hello.", True, ("anna",))
    assert (order.output.sample_rate, order.output.bitrate) == (48_000, 32_000)
