"""HTTP: request bodies of Fish's and OpenAI's speech routes, error bodies, headers and SSE events.

Every parser takes bytes and returns an order, or raises ``Refused``; error bodies have the shape of
their API. A body of megabytes (references as base64) takes tens of milliseconds: parse it in a
thread.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rt_drama3.errors import RtDrama3Error
from rt_drama3.protocol.directing import read_directing, read_reference
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.fish_request import SPEEDS, read_request, speed_notices
from rt_drama3.protocol.formats import negotiate
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.order import (
    NORMALIZE,
    Sampling,
    SpeechOrder,
    checked_voice,
    whole_text,
)
from rt_drama3.protocol.refusals import Refused, as_refused, clean, show
from rt_drama3.protocol.utterance import Outcome
from rt_drama3.protocol.wire import parse_json, unpack
from rt_drama3.scenes.takes import FAMILY, SCHEMA

OPENAI_FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
OPENAI_RATE = 24_000  # every client assumes this rate for raw PCM; wav follows it
JSON_TYPES = ("application/json", "")  # clients that send none send JSON
MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
MAX_TAKES = 32  # to choose the best from
RETRY_SECONDS = 1


def parse_fish_tts(
    body: bytes, content_type: str, facts: ModelFacts, limits: ProtocolLimits, model: str = ""
) -> SpeechOrder:
    """The body of ``POST /v1/tts``.

    Args:
        body: TTSRequest.
        content_type: application/json or application/msgpack, with or without parameters.
        facts, limits: those of the server.
        model: the ``model`` header.

    Raises:
        Refused: the body cannot be served.
    """
    fields = Fields(read_map(body, content_type, limits))
    text = whole_text(fields.text("text", limits.pending_characters))
    order = read_request(fields, text, True, facts, limits, model)
    return replace(order, best_of=_best_of(fields))


def parse_openai_speech(
    body: bytes, facts: ModelFacts, limits: ProtocolLimits, content_type: str = ""
) -> SpeechOrder:
    """The body of ``POST /v1/audio/speech``; ``content_type`` is JSON's, or none.

    Beyond OpenAI's own fields, ``sample_rate``, ``bitrate``, ``seed``, ``temperature``,
    ``top_p``, ``references``, ``guidance``, ``steering``, ``previous_takes``, ``best_of``,
    ``normalize`` and ``take`` are accepted, and ``input`` may be longer than 4096 characters.

    Raises:
        Refused: the body cannot be served.
    """
    if media_type(content_type) not in JSON_TYPES:
        raise Refused(
            "unsupported_media_type",
            f"Content-Type is {show(content_type)}.",
            "Send application/json.",
        )
    fields = Fields(parse_json(body, limits))
    text = whole_text(fields.text("input", limits.pending_characters), "input")
    name = fields.choice("response_format", OPENAI_FORMATS, "unsupported_format") or "mp3"
    rate = fields.integer("sample_rate", 1, 1_000_000)
    bitrate = fields.integer("bitrate", 1, 10_000_000)
    default_rate = OPENAI_RATE if name in ("pcm", "wav") else 0
    instructions = fields.text("instructions", limits.transcript_characters) or None
    notices = speed_notices(fields.number("speed", *SPEEDS))
    if instructions:
        notices += ("instructions are ignored: write directions into the text, as [whispering].",)
    voice = _openai_voice(fields)
    return SpeechOrder(
        text=text,
        final=True,
        voices=(voice,) if voice else (),
        references=tuple(
            read_reference(entry, facts, limits, base64_too=True)
            for entry in fields.maps("references", limits.references)
        ),
        directing=read_directing(fields, facts, limits, base64_too=True),
        best_of=_best_of(fields),
        take=fields.flag("take"),
        output=negotiate(name, rate, bitrate, facts, default_rate),
        sampling=Sampling(
            temperature=fields.number("temperature", 0, 10),
            top_p=fields.number("top_p", 0, 1, above=True),
            seed=fields.integer("seed", 0, 2**64 - 1),
        ),
        normalize=fields.choice("normalize", NORMALIZE) or "auto",
        sse=fields.choice("stream_format", ("sse", "audio")) == "sse",
        model=clean(fields.text("model", 256) or ""),
        instructions=instructions,
        notices=notices,
    )


def read_map(
    body: bytes, content_type: str, limits: ProtocolLimits, remedy: str = ""
) -> dict[str, Any]:
    """A body that is a map, in JSON or MessagePack.

    Args:
        body: as it was received.
        content_type: with or without parameters; none counts as JSON.
        limits: those of the server.
        remedy: a hint for other types, if the route takes more than maps.

    Raises:
        Refused: ``unsupported_media_type``, or what ``parse_json`` raises.
    """
    kind = media_type(content_type)
    if kind in JSON_TYPES:
        return parse_json(body, limits)
    if kind not in MSGPACK_TYPES:
        raise Refused("unsupported_media_type", f"Content-Type is {show(content_type)}.", remedy)
    try:
        return unpack(body, limits)
    except Refused as error:
        raise error.advising(bad_message="Send one MessagePack map.") from None


def media_type(content_type: str) -> str:
    """A Content-Type without its parameters."""
    return content_type.split(";")[0].strip().lower()


def _best_of(fields: Fields) -> int:
    """``best_of``: takes to choose from; 0 if there is no choice."""
    count = fields.integer("best_of", 1, MAX_TAKES)
    return count if count is not None and count > 1 else 0


def _openai_voice(fields: Fields) -> str | None:
    """``voice``: a name, or a map with an ``id``."""
    value = fields.value("voice")
    if isinstance(value, dict):
        value = Fields(value, "voice").value("id")
    return None if value is None or value == "" else checked_voice(fields, "voice", value)


def fish_error(error: RtDrama3Error, request_id: str = "") -> tuple[int, dict[str, Any]]:
    """Status and JSON body of an error on Fish's routes; SDKs read ``message`` or ``detail``."""
    refused = as_refused(error)
    status, message = refused.kind.http, refused.message
    body = {"status": status, "message": message, "detail": message}
    return status, {**body, **_details(refused, request_id)}


def openai_error(error: RtDrama3Error, request_id: str = "") -> tuple[int, dict[str, Any]]:
    """Status and JSON body of an error on OpenAI's routes."""
    refused = as_refused(error)
    status = refused.kind.http
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )
    # Its clients show only the message.
    message = f"{refused.message} {refused.remedy}".strip()
    body = {"message": message, "type": kind, "param": None}
    return status, {"error": {**body, **_details(refused, request_id)}}


def error_headers(error: RtDrama3Error, request_id: str = "") -> dict[str, str]:
    """Headers of an error's response."""
    headers = {"X-Request-Id": request_id} if request_id else {}
    if as_refused(error).kind.retriable:
        headers["Retry-After"] = str(RETRY_SECONDS)
    return headers


def audio_headers(order: SpeechOrder, request_id: str) -> dict[str, str]:
    """Headers of a response with audio."""
    output = order.output
    headers = {
        "Content-Type": "text/event-stream" if order.sse else output.content_type(),
        "X-Request-Id": request_id,
        "X-Sample-Rate": str(output.sample_rate),
        "X-Channels": "1",
    }
    if output.kind.sample_bytes:
        headers["X-Bit-Depth"] = str(8 * output.kind.sample_bytes)
    if order.notices:
        headers["X-Notice"] = " ".join(order.notices)
    return headers


def sse_delta(audio: bytes) -> bytes:
    """An event with audio in the response's format."""
    encoded = base64.b64encode(audio).decode()
    return _sse({"type": "speech.audio.delta", "audio": encoded})


def sse_done(input_tokens: int, output_tokens: int, take: Mapping[str, Any] | None = None) -> bytes:
    """The last event.

    Args:
        input_tokens: of the text.
        output_tokens: frames of audio.
        take: for a client that asked for it.
    """
    usage = {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }
    event = {"type": "speech.audio.done", "usage": usage}
    return _sse(event if take is None else {**event, "take": take})


def take_of(outcome: Outcome) -> dict[str, Any] | None:
    """A finished take as an artefact in JSON; None if nothing was spoken."""
    codes = outcome.codes
    if codes is None or not codes.shape[1]:
        return None
    facts = {"family": FAMILY, "schema": SCHEMA, "text": outcome.text, "codes": codes.tolist()}
    return {**facts, "seed": outcome.seed, "complete": outcome.complete}


def sse_error(error: RtDrama3Error, request_id: str = "") -> bytes:
    """An error after the first event, when the status has been sent already."""
    return _sse({"type": "error", **openai_error(error, request_id)[1]})


def _sse(message: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(message, separators=(",", ":")).encode() + b"\n\n"


def _details(error: Refused, request_id: str) -> dict[str, Any]:
    return error.details() | ({"request_id": request_id} if request_id else {})
