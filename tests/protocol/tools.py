"""Clients of the sessions for tests: speak in maps, check every answer against the schema."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
import msgpack

from rt_drama3.protocol import (
    Cancel,
    Event,
    FishLiveSession,
    ModelFacts,
    NativeSession,
    ProtocolLimits,
    Start,
    Utterance,
    load_schema,
)

FACTS = ModelFacts("nano", 44_100, 2_048, 10)


@dataclass(frozen=True)
class Send:
    """A message that the session wanted sent."""

    data: bytes


@dataclass(frozen=True)
class Close:
    """The close frame of the session."""

    code: int
    reason: str


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def as_json(value: object) -> Any:
    """A message as the schemas and the documentation write it."""
    if isinstance(value, bytes):
        return {"bin": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return value


@cache
def validator(schema: str, definition: str) -> jsonschema.Draft202012Validator:
    whole = load_schema(schema)
    part = {"$ref": f"#/$defs/{definition}", "$defs": whole["$defs"]}
    return jsonschema.Draft202012Validator(part)


def check(message: object, schema: str, definition: str) -> None:
    """Fails unless the message is what the schema says."""
    validator(schema, definition).validate(as_json(message))


def decode(data: bytes, schema: str) -> dict[str, Any]:
    """A message of the server, which must be within the size that any client takes."""
    message = msgpack.unpackb(data)
    if "take" not in message:
        assert len(data) <= 65_536
    key = "type" if schema == "native" else "event"
    check(message, schema, f"server_{message[key]}")
    return message


class Client:
    """Feeds a session and keeps what came of it.

    Attributes:
        said: everything that the session wanted sent, decoded.
        utterance: of the last Start.
        closed: the Close, once there was one.
    """

    def __init__(self, session: NativeSession | FishLiveSession, schema: str, clock: Clock) -> None:
        self.session: Any = session
        self.schema = schema
        self.clock = clock
        self.said: list[dict[str, Any]] = []
        self.utterance: Any = None
        self.closed: Close | None = None

    def send(self, message: Mapping[str, Any] | bytes | str) -> list[Event | Send | Close]:
        """Sends one message to the server; returns the events, then the answers."""
        data = msgpack.packb(message) if isinstance(message, Mapping) else message
        return self.take(self.session.receive(data))

    def take(self, events: Sequence[Event]) -> list[Event | Send | Close]:
        """Does what a server does with events, except for opening streams."""
        answers = [Send(data) for data in self.session.data_to_send()]
        self._decode(answer.data for answer in answers)
        found: list[Event | Send | Close] = [*events, *answers]
        if self.session.close_frame is not None and self.closed is None:
            self.closed = Close(*self.session.close_frame)
            found.append(self.closed)
        for event in events:
            match event:
                case Start(utterance):
                    self.utterance = utterance
                case Cancel(utterance):
                    self.hear(utterance.cancelled, 3)
        return found

    def hear(self, report: Callable[..., None], *arguments: Any) -> list[dict[str, Any]]:
        """Reports something to the session; returns what it says to the client then."""
        return self._decode(self.bytes_of(report, *arguments))

    def _decode(self, messages: Iterable[bytes]) -> list[dict[str, Any]]:
        decoded = [decode(data, self.schema) for data in messages if self.schema]
        self.said += decoded
        return decoded

    def bytes_of(self, report: Callable[..., None], *arguments: Any) -> list[bytes]:
        """The messages of a report, as bytes."""
        assert self.session.data_to_send() == []
        report(*arguments)
        messages: list[bytes] = self.session.data_to_send()
        return messages

    def last(self) -> dict[str, Any]:
        return self.said[-1]


def kinds(events: Sequence[Event | Send | Close]) -> list[str]:
    """Names of events, in order."""
    return [type(event).__name__ for event in events]


def native(limits: ProtocolLimits | None = None) -> Client:
    clock, ids = Clock(), iter(range(1, 1_000_000))
    session = NativeSession(FACTS, limits, clock, lambda: f"utterance-{next(ids)}")
    return Client(session, "native", clock)


def fish(limits: ProtocolLimits | None = None, model: str = "s2-pro") -> Client:
    clock, ids = Clock(), iter(range(1, 1_000_000))
    session = FishLiveSession(FACTS, limits, clock, lambda: f"utterance-{next(ids)}", model)
    return Client(session, "fish_live", clock)


def started(client: Client, **fields: Any) -> Utterance:
    """Starts an utterance and lets the server accept it."""
    if client.schema == "native":
        client.send({"type": "start", **fields})
    else:
        client.send({"event": "start", "request": {"text": "", **fields}})
    client.hear(client.utterance.ready)
    return client.utterance
