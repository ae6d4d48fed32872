"""What the fuzzers feed: everything that decodes bytes of a client, and what must hold of it.

An input is one byte that names the target and the bytes for it. ``seeds`` makes the inputs to begin
with from the examples of docs/protocol.md, so nothing binary is kept in the repository.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import msgpack

from rt_drama3.errors import RtDrama3Error
from rt_drama3.protocol import (
    Cancel,
    FishLiveSession,
    Mute,
    NativeSession,
    Outcome,
    ProtocolLimits,
    Refused,
    Start,
    State,
    as_refused,
    fish_error,
    openai_error,
    parse_fish_tts,
    parse_openai_speech,
    wire,
)
from rt_drama3.protocol.wire import pack, unpack
from tests.fuzz.mutations import broken, changed, spoiled
from tests.protocol.tools import FACTS, Clock

# Small limits are met often; errors must not end a connection all the time.
LIMITS = ProtocolLimits(
    message_bytes=20_000, message_characters=200, pending_characters=500, references=2,
    reference_bytes=10_000, errors=30, late_messages=5, items=300,
)  # fmt: skip
LARGEST = 65_536  # bytes of a message that any client takes
JSON = (
    b'\xef\xbb\xbf{"a": "this is a longer string, as clips are", "b\\\\": ["\\"", "\\\\\\\\"], '
    b'"c": "another long string \\u00e9 with an escape", "d": 1e3}'
)
ACTS = 6  # things that the stream behind an utterance can do


def _tried(work: Callable[[], Any]) -> tuple[Any, Refused | None]:
    """What came of it, or why a client is refused; anything else is a bug."""
    try:
        return work(), None
    except RtDrama3Error as error:
        refused = as_refused(error)
    assert refused.message.isprintable()
    return None, refused


def decoder(data: bytes) -> None:
    """One MessagePack map: accepted exactly when the library takes it and its keys are texts."""
    with mock.patch.object(wire, "LONG", 24):  # its way with long values is met often
        found, error = _tried(lambda: unpack(data, LIMITS))
    if error is not None:
        assert error.code != "bad_message" or not _plain_map(data), error.message
        return
    assert _plain_map(data) or _has(found, memoryview)  # too long to be text: any bytes
    assert pack(unpack(pack(found), LIMITS)) == pack(found)


def _plain_map(data: bytes) -> bool:
    """Whether it is one MessagePack map with text keys that occur once, without extensions."""

    def pairs(items: list[tuple[Any, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        if not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
            raise ValueError
        return dict(items)

    def extension(code: int, content: bytes) -> None:
        raise ValueError

    try:
        found = msgpack.unpackb(
            data, object_pairs_hook=pairs, ext_hook=extension, strict_map_key=False
        )
    except (ValueError, TypeError, msgpack.UnpackException):
        return False
    # Timestamps are extensions that the library reads by itself.
    return isinstance(found, dict) and not _has(found, msgpack.Timestamp)


def _has(value: object, kind: type) -> bool:
    """Whether there is one of a kind somewhere inside."""
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return any(_has(item, kind) for item in inside)
    return isinstance(value, kind)


def json_decoder(data: bytes) -> None:
    """One JSON object: accepted exactly when the standard library takes it, with the same value."""
    with mock.patch.object(wire, "LONG", 24):  # its way with long strings is met often
        found, error = _tried(lambda: wire.parse_json(data, LIMITS))
    if error is not None:
        assert error.code != "bad_message" or _plain_json(data) is None, error.message
        return
    views: list[memoryview] = []

    def text(view: memoryview) -> str:  # what is too long to be text may be any bytes
        views.append(view)
        return str(view, "utf-8", "replace")

    rewritten = json.dumps(found, default=text)
    if views:
        data = data.decode("utf-8", "replace").encode()
    assert rewritten == json.dumps(_plain_json(data))


def _plain_json(data: bytes) -> dict[str, Any] | None:
    """The object, where it is one with keys that occur once and numbers that JSON has."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) < len(items):
            raise ValueError
        return dict(items)

    def constant(name: str) -> None:
        raise ValueError

    try:
        text = data.decode("utf-8-sig")
        found = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def conversation(session: NativeSession | FishLiveSession, data: bytes) -> None:
    """Messages in order, and between them what the streams of a server do."""
    server = _Server(session)
    for step in steps(data):
        if isinstance(step, int):
            server.act(step)
        else:
            server.take(session.receive(step))
    server.take(session.disconnected())


def steps(data: bytes) -> Iterator[bytes | int]:
    """Cuts an input: 0xF0.. is an act; anything else and two bytes of length are a message."""
    place = 0
    while place < len(data):
        if data[place] >= 0xF0:
            yield data[place] & 0x0F
            place += 1
            continue
        end = place + 3 + int.from_bytes(data[place + 1 : place + 3], "big")
        yield data[place + 3 : end]
        place = end


def step_of(message: bytes) -> bytes:
    """A message as ``steps`` reads it."""
    return b"\0" + min(len(message), 0xFFFF).to_bytes(2, "big") + message[:0xFFFF]


class _Server:
    """Acts on events as a server does, and knows which messages are allowed when."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.utterance: Any = None
        self.asked: list[Any] = []  # in the order of their turns
        self.closed = False
        self.ended: set[str] = set()

    def take(self, events: list[Any]) -> None:
        self.hear()
        for event in events:
            match event:
                case Start(utterance):
                    # On the live route one that was stopped may still have to be spoken.
                    waiting = getattr(self.session, "_stopped", [])
                    self.asked = [one for one in self.asked if one.state is not State.OVER]
                    assert all(one in waiting for one in self.asked)
                    self.asked.append(utterance)
                    self.utterance = utterance
                    utterance.order.settings(FACTS)
                case Cancel(utterance):
                    assert utterance.state is State.OVER
                    utterance.audio(b"xx", 1)
                    assert self.session.data_to_send() == []
                    utterance.cancelled(3)
                    self.hear()
                case Mute():
                    assert self.utterance is None or self.utterance.state is State.OVER
                case _:
                    assert event.utterance is self.utterance
                    assert event.utterance.state is not State.OVER

    def hear(self) -> None:
        assert not self.closed or self.session.data_to_send() == []
        if self.session.close_frame is not None:
            code, reason = self.session.close_frame
            assert len(reason.encode("ascii")) <= 123
            assert 1000 <= code < 5000
            self.closed = True
        for data in self.session.data_to_send():
            assert len(data) <= LARGEST
            message = msgpack.unpackb(data)
            failed = message.get("scope") == "utterance" and message["id"]
            if message.get("type") == "done" or failed:
                assert message["id"] not in self.ended
                self.ended.add(message["id"])

    def act(self, what: int) -> None:
        running = (one for one in self.asked if one.state is not State.OVER)
        utterance = next(running, self.utterance)
        if utterance is None:
            return
        match what % ACTS:
            case 0:
                utterance.done(Outcome())
            case 1:
                self.take(self.session.fail(utterance, RtDrama3Error("x")))
            case 2:
                utterance.waiting(0)
            case 3:
                utterance.ready()
                utterance.queued(1)
            case 4:
                utterance.segment(0, utterance.order.text, 1)
            case _:
                width = utterance.order.output.kind.sample_bytes or 8
                utterance.audio(bytes(8), 8 // width)
        self.hear()


def native(data: bytes) -> None:
    """One connection on /v1/stream."""
    conversation(NativeSession(FACTS, LIMITS, Clock()), data)


def fish(data: bytes) -> None:
    """One connection on /v1/tts/live."""
    conversation(FishLiveSession(FACTS, LIMITS, Clock()), data)


def fish_json(data: bytes) -> None:
    """A body of POST /v1/tts as JSON."""
    _body(lambda: parse_fish_tts(data, "application/json", FACTS, LIMITS))


def fish_msgpack(data: bytes) -> None:
    """A body of POST /v1/tts as MessagePack."""
    _body(lambda: parse_fish_tts(data, "application/msgpack", FACTS, LIMITS))


def openai(data: bytes) -> None:
    """A body of POST /v1/audio/speech."""
    _body(lambda: parse_openai_speech(data, FACTS, LIMITS))


def _body(parse: Callable[[], Any]) -> None:
    order, error = _tried(parse)
    if error is not None:
        for shape in (fish_error, openai_error):
            status, body = shape(error, "id")
            assert 400 <= status < 500
            json.dumps(body, ensure_ascii=False).encode()
        return
    assert order.final
    order.settings(FACTS)


def clip(data: bytes) -> None:
    """The bytes of a reference's audio file."""
    from rt_drama3.audio import read_audio

    found, error = _tried(lambda: read_audio(data, max_seconds=2))
    if error is not None:
        assert error.kind.http < 500
        return
    samples, rate = found
    assert rate > 0
    assert 0 < len(samples) <= 2 * rate + 1


TARGETS: tuple[Callable[[bytes], None], ...] = (
    decoder, native, fish, fish_json, fish_msgpack, openai, clip,
    json_decoder,
)  # fmt: skip


def one_input(data: bytes) -> None:
    """What a fuzzer calls."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


def seeds() -> list[bytes]:
    """Inputs for every target, from the documentation's examples and a few files."""
    from tests.protocol.examples import examples

    found = examples()
    mine = [data for name, data in found.items() if name.startswith("native")]
    theirs = [data for name, data in found.items() if name.startswith("fish")]
    start = {
        "type": "start", "event": "start", "text": "Hi <|speaker:1|> [soft] you. ", "format": "wav",
        "seed": 5, "temperature": 0.7, "top_p": 0.9, "max_seconds": 2.5, "gain_db": -3,
        "references": [{"text": "Said.", "vq_codes": bytes(40)}, {"text": "A", "audio": b"RIFF"}],
        "history": [{"text": "Before.", "vq_codes": bytes(40)}], "quality": "high", "take": True,
        "previous_takes": [{"text": "Then.", "codes": [[1, 2]] * 10}, {"text": "And then."}],
        "guidance": 2.5, "steering": [{"name": "glad", "strength": -1.5}],
        "request": {"text": "", "references": [[{"text": "S", "audio": b"a"}]], "latency": "normal",
                    "reference_id": ["anna", "b"], "mp3_bitrate": 64, "format": "mp3"},
    }  # fmt: skip
    body = {
        "text": "Hello.", "input": "Hello.", "voice": {"id": "x"}, "response_format": "wav",
        "stream_format": "sse", "speed": 1.5, "instructions": "x", "reference_id": "a" * 32,
        "prosody": {"speed": 1.1, "volume": 2}, "sample_rate": 24000, "opus_bitrate": -1000,
        "references": [{"text": "Said.", "audio": "data:audio/wav;base64,AAAA"}], "best_of": 2,
        "previous_takes": [{"family": "fish_drama3", "schema": "drama3_take_v1", "text": "Then.",
                            "vq_codes": "AAAA"}],
        "guidance": 2, "steering": [{"name": "glad", "strength": 1}], "take": True,
    }  # fmt: skip
    mine.append(msgpack.packb(start))
    theirs.append(msgpack.packb(start))
    inputs: dict[Callable[[bytes], None], list[bytes]] = {
        decoder: [*mine, *theirs, b"\x81\xa1a\xdb\0\0\0\x40" + bytes(64)],
        native: [*map(step_of, mine), b"\xf3".join(map(step_of, mine)) + b"\xf0\xf1\xf2\xf4\xf5"],
        fish: [*map(step_of, theirs), b"\xf5".join(map(step_of, theirs)) + b"\xf0\xf1\xf2\xf3\xf4"],
        fish_json: [json.dumps(body).encode()],
        fish_msgpack: [msgpack.packb(body)],
        openai: [json.dumps(body).encode()],
        clip: sounds(),
        json_decoder: [json.dumps(body).encode(), JSON, b'{"a key that is long, too": 1}'],
    }
    return [bytes([TARGETS.index(target)]) + data for target in TARGETS for data in inputs[target]]


def sounds() -> list[bytes]:
    """A moment of sound as files of some formats."""
    import numpy as np

    from rt_drama3.audio import StreamEncoder

    found = []
    for name in ("wav", "mp3", "flac", "opus", "aac"):
        encoder = StreamEncoder(name, 48_000)
        found.append(encoder.push(np.zeros(2_000, np.float32)) + encoder.flush())
    return found


def mutated(data: bytes, rng: random.Random) -> bytes:
    """An input with a message of it changed in its values, which bytes alone rarely manage."""
    if not data:
        return data
    target = TARGETS[data[0] % len(TARGETS)]
    if target in (fish_json, openai, json_decoder):
        with contextlib.suppress(ValueError, RecursionError):
            return data[:1] + json.dumps(changed(json.loads(data[1:]), rng), default=str).encode()
    if target in (decoder, fish_msgpack):
        return data[:1] + _changed(data[1:], rng)
    if target in (native, fish):
        parts = list(steps(data[1:])) or [b"\x80"]
        place = rng.randrange(len(parts))
        part = parts[place]
        new = rng.randrange(ACTS) if isinstance(part, int) else _changed(part, rng)
        cut = place + rng.randrange(2)
        parts[cut : place + 1] = [new, *rng.sample(parts, min(len(parts), rng.randrange(3)))]
        found = [bytes([0xF0 | p]) if isinstance(p, int) else step_of(p) for p in parts]
        return data[:1] + b"".join(found)
    return broken(data, rng)


def _changed(message: bytes, rng: random.Random) -> bytes:
    try:
        found = msgpack.unpackb(message, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return broken(message, rng)
    return spoiled(found, rng)
