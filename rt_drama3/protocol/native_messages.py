"""The native dialect's utterance and messages, as maps (schema/native.json)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rt_drama3.protocol.events import Event
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.refusals import Refused, show
from rt_drama3.protocol.session import Session, U
from rt_drama3.protocol.utterance import (
    AudioPart,
    Outcome,
    Padding,
    StampsLike,
    State,
    Utterance,
)
from rt_drama3.scenes.takes import FAMILY, SCHEMA

VERSION = 1
LONGEST_PING = 64  # characters of data

# The limits in ``ready``: those that a client can respect by itself.
_ANNOUNCED = (
    "message_bytes",
    "message_characters",
    "pending_characters",
    "references",
    "reference_bytes",
    "reference_seconds",
    "max_seconds",
    "audio_bytes",
    "idle_seconds",
)


def error_message(error: Refused, scope: str, request_id: str | None = None) -> dict[str, Any]:
    """An ``error``; its scope is what it ended: the message, the utterance or the connection."""
    head = {"type": "error", "id": request_id, "code": error.code, "message": error.message}
    return {**head, **error.details(), "scope": scope}


def cancelled_message(
    request_id: str | None, generated: Mapping[str, Any], sent: Mapping[str, Any]
) -> dict[str, Any]:
    """A ``cancelled``."""
    return {"type": "cancelled", "id": request_id, "generated": generated, "sent": sent}


def pong_message(ping: Fields, now: float) -> dict[str, Any]:
    """A ``pong``.

    Args:
        ping: the message to answer.
        now: seconds.

    Raises:
        Refused: ``bad_field``: the ping's data cannot be echoed.
    """
    data = ping.value("data")
    if isinstance(data, str | memoryview):
        if len(data) > LONGEST_PING:
            raise Refused(
                "bad_field",
                f"data has {len(data)} characters; the limit is {LONGEST_PING}. A whole number "
                "is accepted, too.",
            )
    elif data is not None:
        data = ping.integer("data", 0, (1 << 63) - 1)
    return {"type": "pong", "data": data, "server_ms": round(1e3 * now, 3)}


NOTHING_GENERATED = {"frames": 0, "seconds": 0.0}
NOTHING_SENT = {"messages": 0, "bytes": 0, "samples": 0, "seconds": 0.0}


class NativeUtterance(Utterance):
    """An utterance on ``/v1/stream``.

    Attributes:
        ended: called once when it ends, with whether text for it may still arrive.
        unknown: unknown fields of its start.
    """

    ended: Callable[[bool], None]
    unknown: tuple[str, ...] = ()

    def padding(self, ended: bool) -> Padding:
        # Players fail on an encoded file without any sound; PCM may be empty.
        silent = not self.order.output.kind.sample_bytes and not self.sent.samples
        return Padding.SILENCE if ended and silent else Padding.NONE

    def _say_ready(self, voice: str) -> None:
        output = self.order.output
        self._send(
            {
                "type": "ready",
                "id": self.id,
                "version": VERSION,
                "model": self.facts.name,
                "voice": voice,
                "format": output.format,
                "content_type": output.content_type(),
                "sample_rate": output.sample_rate,
                "channels": 1,
                "bitrate": output.bitrate,
                "frame_ms": _milliseconds(self.facts.frame_seconds),
                "limits": {name: getattr(self.limits, name) for name in _ANNOUNCED},
                "ignored": list(self.unknown),
                "notices": list(self.order.notices),
            }
        )

    def queued(self, position: int) -> None:
        self._send_unless_over({"type": "queued", "id": self.id, "position": position})

    def segment(self, index: int, text: str, first_frame: int) -> None:
        self._send_unless_over(
            {
                "type": "segment",
                "id": self.id,
                "index": index,
                "text": text,
                "first_sample": self.output_samples(first_frame),
            }
        )

    def notice(self, text: str) -> None:
        self._send_unless_over({"type": "notice", "id": self.id, "text": text})

    def _say_cancelled(self, generated_frames: int) -> None:
        seconds = round(generated_frames * self.facts.frame_seconds, 3)
        generated = {"frames": generated_frames, "seconds": seconds}
        self._send(cancelled_message(self.id, generated, self._sent()))

    def _audio_message(
        self, number: int, part: AudioPart, stamps: StampsLike | None
    ) -> Mapping[str, Any]:
        message = {
            "type": "audio",
            "id": self.id,
            "seq": number,
            "first_sample": part.first_sample,
            "samples": part.samples,
            "audio": part.data,
        }
        if self.order.timings and stamps is not None:
            message["stamps"] = {
                "prefilled": _milliseconds(stamps.prefilled - stamps.accepted),
                "sampled": [_milliseconds(at - stamps.accepted) for at in stamps.sampled],
                "decoded": _milliseconds(stamps.decoded - stamps.accepted),
                "sent": _milliseconds(self.clock() - stamps.accepted),
            }
        return message

    def _done_message(self, outcome: Outcome) -> Mapping[str, Any]:
        message = {
            "type": "done",
            "id": self.id,
            "frames": outcome.frames,
            "segments": outcome.segments,
            "seed": outcome.seed,
            "complete": outcome.complete,
            "sent": self._sent(),
            "timings": {
                "first_audio_ms": None
                if self.first_audio is None
                else _milliseconds(self.first_audio),
                "total_ms": _milliseconds(self.clock() - self.accepted),
                **{name: round(value, 3) for name, value in outcome.timings.items()},
            },
        }
        if self.order.take and outcome.codes is not None:
            message["take"] = {
                "family": FAMILY,
                "schema": SCHEMA,
                "text": outcome.text,
                "num_codebooks": outcome.codes.shape[0],
                "frames": outcome.codes.shape[1],
                "vq_codes": np.ascontiguousarray(outcome.codes, "<u2").tobytes(),
            }
        return message

    def _end(self) -> None:
        before, self.state = self.state, State.OVER
        self.ended(before is State.OPEN)

    def _sent(self) -> dict[str, Any]:
        sent = self.sent
        seconds = round(sent.samples / self.order.output.sample_rate, 3)
        return {**vars(sent), "seconds": seconds}

    def _send_unless_over(self, message: Mapping[str, Any]) -> None:
        if self.state is not State.OVER:
            self._send(message)


class TypedSession(Session[U]):
    """What the dialects with these messages share: ``ping``, and how they report errors."""

    _key = "type"

    def _ping(self, fields: Fields) -> list[Event]:
        self._send(pong_message(fields, self._clock()))
        return []

    def _unknown(self, kind: object) -> list[Event]:
        known = ", ".join(self._kinds)
        raise Refused("unknown_type", f"type is {show(kind)}; known: {known}.")

    def _refuse(self, error: Refused, scope: str = "message") -> list[Event]:
        if not self._budget.take_error():
            return self.close("too_many_errors", f"the last one: {error.message}")
        self._report(error, scope)
        return []

    def _end_connection(self, error: Refused) -> list[Event]:
        self._report(error, "connection")
        self._close_with(error)
        return self._stop_running()

    def _report(self, error: Refused, scope: str) -> None:
        running = self._running()
        self._send(error_message(error, scope, running.id if running else None))


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 3)
