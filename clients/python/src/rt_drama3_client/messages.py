"""The messages of the native dialect: what goes out as bytes, what comes in as objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar

import msgpack

from rt_drama3_client.errors import BadServerMessage, ServerError, server_error

VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True)
class Ready:
    """The server accepted the utterance.

    Attributes:
        id: names it, in the server's logs as well.
        model, voice: that speak.
        format, content_type, sample_rate, bitrate: of the audio; rate in Hz.
        frame_ms: milliseconds of audio that the model makes at once.
        limits: that the server keeps, by name.
        ignored: fields of the request that the server does not know.
        notices: words on what cannot be honoured.
    """

    id: str
    model: str
    voice: str
    format: str
    content_type: str
    sample_rate: int
    bitrate: int | None
    frame_ms: float
    limits: Mapping[str, float]
    ignored: tuple[str, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Queued:
    """So many utterances are in front of this one."""

    position: int


@dataclass(frozen=True)
class Segment:
    """From sample ``first_sample`` on, at the output rate, this piece of the text is heard."""

    index: int
    text: str
    first_sample: int


class AudioChunk(bytes):
    """Audio of one message: bytes, with where they belong.

    Attributes:
        seq: counts from 0 within the utterance.
        first_sample: place of its first sample in the utterance, at the output rate.
        samples: how many it brings (for encoded audio: how many went into the encoder).
        arrived: when it came, by ``time.perf_counter``.
        stamps: the server's, in milliseconds since it accepted the utterance; empty unless the
            utterance was asked for with ``timings=True``, and for the end that a resampler or an
            encoder had held back.
    """

    seq: int
    first_sample: int
    samples: int
    arrived: float
    stamps: Mapping[str, Any]

    @classmethod
    def make(cls, fields: _Fields, arrived: float) -> Self:
        """From the fields of an ``audio`` message."""
        chunk = cls(fields.get("audio", bytes))
        chunk.seq = fields.get("seq", int)
        chunk.first_sample = fields.get("first_sample", int)
        chunk.samples = fields.get("samples", int)
        chunk.arrived = arrived
        chunk.stamps = fields.maybe("stamps", dict) or {}
        return chunk


@dataclass(frozen=True)
class Sent:
    """Audio that the server sent; ``samples`` at the output rate."""

    messages: int = 0
    bytes: int = 0
    samples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Take:
    """What was spoken, to go on from: it can be one of the next ``previous_takes``.

    Its ``vq_codes`` can also be those of a reference or of the history.

    Attributes:
        num_codebooks, frames: of the codes.
        vq_codes: uint16 little-endian, ``[num_codebooks, frames]``, row by row.
        text: that was spoken.
        family, schema: of which models, and how it is written; empty where the server did not say.
    """

    num_codebooks: int
    frames: int
    vq_codes: bytes
    text: str = ""
    family: str = ""
    schema: str = ""

    def as_field(self) -> dict[str, Any]:
        """As one of ``previous_takes`` in a message."""
        marks = {"family": self.family, "schema": self.schema}
        said = {name: value for name, value in marks.items() if value}
        return {"text": self.text, "vq_codes": self.vq_codes, **said}


@dataclass(frozen=True)
class Done:
    """All of it was spoken and sent.

    Attributes:
        id: of the utterance.
        frames: of the model.
        segments: pieces of text.
        seed: that gives the same speech again.
        complete: false where a length limit cut it.
        sent: in all.
        timings: the server's; ``rtf`` is a ratio, the others are milliseconds.
        take: where it was asked for.
    """

    id: str
    frames: int
    segments: int
    seed: int | None
    complete: bool
    sent: Sent
    timings: Mapping[str, float | None]
    take: Take | None


@dataclass(frozen=True)
class Cancelled:
    """What came of an utterance that was cancelled.

    What the listener cannot have heard is ``generated_seconds`` less ``sent.seconds``, and what
    the player still held.

    Attributes:
        id: of the utterance; None when it had not begun.
        generated_frames, generated_seconds: made by the model.
        sent: audio that the server sent.
        finished: it had ended by itself before.
        acknowledged: false where the connection broke before the server answered; the figures are
            then of what came here.
    """

    id: str | None = None
    generated_frames: int = 0
    generated_seconds: float = 0.0
    sent: Sent = Sent()
    finished: bool = False
    acknowledged: bool = True


@dataclass(frozen=True)
class Pong:
    """An answer to a ping.

    Attributes:
        data: that was sent.
        server_ms: the server's clock, milliseconds.
        seconds: there and back.
    """

    data: object
    server_ms: float
    seconds: float = 0.0


Event: TypeAlias = Ready | Queued | Segment | AudioChunk | Done
ServerMessage: TypeAlias = Event | Cancelled | Pong | ServerError


def pack(kind: str, **fields: Any) -> bytes:
    """One outgoing message; fields that are None are left out."""
    message = {"type": kind, **{name: value for name, value in fields.items() if value is not None}}
    packed: bytes = msgpack.packb(message, use_bin_type=True)
    return packed


def unpack(data: bytes | str, arrived: float) -> tuple[str | None, ServerMessage | None]:
    """One incoming message.

    Args:
        data: payload of a WebSocket message.
        arrived: when it came.

    Returns:
        The id of the utterance that it is about, and the message; None for a type that is not
        known here, which a newer server may send.

    Raises:
        BadServerMessage: it is not a message of the protocol.
    """
    if isinstance(data, str):
        raise BadServerMessage(f"the server sent text: {data[:60]!r}.")
    try:
        found = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadServerMessage(
            f"the server sent {len(data)} bytes that are not MessagePack: {data[:16].hex(' ')}."
        ) from error
    if not isinstance(found, dict):
        raise BadServerMessage(f"the server sent a {type(found).__name__} instead of a map.")
    fields = _Fields(found)
    kind = fields.get("type", str)
    name = fields.maybe("id", str)
    return name, _message(kind, name, fields, arrived)


def _message(kind: str, name: str | None, fields: _Fields, arrived: float) -> ServerMessage | None:
    if kind == "audio":
        return AudioChunk.make(fields, arrived)
    if kind == "segment":
        get = fields.get
        return Segment(get("index", int), get("text", str), get("first_sample", int))
    if kind == "ready":
        return _ready(fields)
    if kind == "queued":
        return Queued(fields.get("position", int))
    if kind == "done":
        return _done(fields)
    if kind == "cancelled":
        made = _Fields(fields.get("generated", dict))
        frames, seconds = made.get("frames", int), made.number("seconds")
        return Cancelled(name, frames, seconds, _sent(fields))
    if kind == "pong":
        return Pong(fields.maybe("data", object), fields.number("server_ms"))
    if kind == "error":
        return server_error(
            fields.get("code", str),
            fields.get("message", str),
            remedy=fields.maybe("remedy", str) or "",
            retriable=bool(fields.maybe("retriable", bool)),
            request_id=name,
            scope=fields.maybe("scope", str) or "utterance",
        )
    return None


def _ready(fields: _Fields) -> Ready:
    get = fields.get
    return Ready(
        id=get("id", str),
        model=fields.maybe("model", str) or "",
        voice=fields.maybe("voice", str) or "",
        format=get("format", str),
        content_type=fields.maybe("content_type", str) or "",
        sample_rate=get("sample_rate", int),
        bitrate=fields.maybe("bitrate", int),
        frame_ms=fields.number("frame_ms"),
        limits=fields.maybe("limits", dict) or {},
        ignored=tuple(map(str, fields.maybe("ignored", list) or ())),
        notices=tuple(map(str, fields.maybe("notices", list) or ())),
    )


def _done(fields: _Fields) -> Done:
    get = fields.get
    take = fields.maybe("take", dict)
    return Done(
        id=get("id", str),
        frames=get("frames", int),
        segments=get("segments", int),
        seed=fields.maybe("seed", int),
        complete=get("complete", bool),
        sent=_sent(fields),
        timings=fields.maybe("timings", dict) or {},
        take=None if take is None else _take(_Fields(take)),
    )


def _sent(fields: _Fields) -> Sent:
    sent = _Fields(fields.get("sent", dict))
    return Sent(
        messages=sent.get("messages", int),
        bytes=sent.get("bytes", int),
        samples=sent.get("samples", int),
        seconds=sent.number("seconds"),
    )


def _take(fields: _Fields) -> Take:
    get, maybe = fields.get, fields.maybe
    return Take(
        num_codebooks=get("num_codebooks", int),
        frames=get("frames", int),
        vq_codes=get("vq_codes", bytes),
        text=maybe("text", str) or "",
        family=maybe("family", str) or "",
        schema=maybe("schema", str) or "",
    )


class _Fields:
    """A map from the server, whose fields are looked at before they are believed."""

    def __init__(self, found: Mapping[Any, Any]) -> None:
        self._found = found

    def get(self, name: str, kind: type[T]) -> T:
        value = self._found.get(name)
        if not isinstance(value, kind):
            raise self._wrong(name, value)
        return value

    def maybe(self, name: str, kind: type[T]) -> T | None:
        return None if self._found.get(name) is None else self.get(name, kind)

    def number(self, name: str) -> float:
        value = self._found.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value)
        return float(value)

    def _wrong(self, name: str, value: object) -> BadServerMessage:
        kind = str(self._found.get("type", "part"))[:20]
        return BadServerMessage(f"{name} of the server's {kind} is {value!r:.60}.")
