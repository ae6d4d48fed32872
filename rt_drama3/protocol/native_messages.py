"""The native dialect's utterance: what the server says, as maps (schema/native.json)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.order import SpeechOrder
from rt_drama3.protocol.refusals import Refused
from rt_drama3.protocol.utterance import Outcome, Piece, StampsLike, State, Utterance
from rt_drama3.protocol.wire import pack
from rt_drama3.scenes.takes import FAMILY, SCHEMA

VERSION = 1
LONGEST_PING = 64  # characters of data

# What the limits are called in ``ready``: those that a client can keep by itself.
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
    """An ``error``; its scope says what it ended: the message, the utterance or the connection."""
    return {
        "type": "error",
        "id": request_id,
        "code": error.code,
        "message": error.message,
        "remedy": error.remedy,
        "retriable": error.kind.retriable,
        "scope": scope,
    }


def cancelled_message(
    request_id: str | None, generated: Mapping[str, Any], sent: Mapping[str, Any]
) -> dict[str, Any]:
    """A ``cancelled``."""
    return {"type": "cancelled", "id": request_id, "generated": generated, "sent": sent}


def pong_message(ping: Fields, now: float) -> dict[str, Any]:
    """A ``pong``.

    Args:
        ping: that it answers.
        now: seconds.

    Raises:
        Refused: ``bad_field``: the ping's data cannot come back.
    """
    data = ping.value("data")
    if isinstance(data, str | memoryview):
        if len(data) > LONGEST_PING:
            raise Refused(
                "bad_field",
                f"data has {len(data)} characters; at most {LONGEST_PING} may be, or a whole "
                "number in their place.",
            )
    elif data is not None:
        data = ping.integer("data", 0, (1 << 63) - 1)
    return {"type": "pong", "data": data, "server_ms": round(1e3 * now, 3)}


NOTHING_GENERATED = {"frames": 0, "seconds": 0.0}
NOTHING_SENT = {"messages": 0, "bytes": 0, "samples": 0, "seconds": 0.0}


class NativeUtterance(Utterance):
    """An utterance on ``/v1/stream``.

    Args:
        ended: called once when it ends, with whether text for it may still be on its way.
        unknown: fields of its start that are not known here.
    """

    def __init__(
        self,
        request_id: str,
        order: SpeechOrder,
        facts: ModelFacts,
        limits: ProtocolLimits,
        clock: Callable[[], float],
        ended: Callable[[bool], None],
        unknown: tuple[str, ...] = (),
    ) -> None:
        super().__init__(request_id, order, facts, limits, clock)
        self._ended = ended
        self._unknown = unknown

    @property
    def owes_silence(self) -> bool:
        # Players fail at an encoded file without any sound; of PCM nothing is nothing.
        return not self.order.output.kind.sample_bytes and not self.sent.samples

    def ready(self, voice: str = "") -> list[bytes]:
        output = self.order.output
        return self._unless_over(
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
                "ignored": list(self._unknown),
                "notices": list(self.order.notices),
            }
        )

    def queued(self, position: int) -> list[bytes]:
        return self._unless_over({"type": "queued", "id": self.id, "position": position})

    def segment(self, index: int, text: str, first_frame: int) -> list[bytes]:
        return self._unless_over(
            {
                "type": "segment",
                "id": self.id,
                "index": index,
                "text": text,
                "first_sample": self.output_samples(first_frame),
            }
        )

    def cancelled(self, generated_frames: int) -> list[bytes]:
        if not self.owes_cancelled:
            return []
        self.owes_cancelled = False
        seconds = round(generated_frames * self.facts.frame_seconds, 3)
        generated = {"frames": generated_frames, "seconds": seconds}
        return [pack(cancelled_message(self.id, generated, self._sent()))]

    def _audio_message(self, number: int, piece: Piece, stamps: StampsLike | None) -> bytes:
        message = {
            "type": "audio",
            "id": self.id,
            "seq": number,
            "first_sample": piece.first_sample,
            "samples": piece.samples,
            "audio": piece.data,
        }
        if self.order.timings and stamps is not None:
            message["stamps"] = {
                "prefilled": _milliseconds(stamps.prefilled - stamps.accepted),
                "sampled": [_milliseconds(at - stamps.accepted) for at in stamps.sampled],
                "decoded": _milliseconds(stamps.decoded - stamps.accepted),
                "sent": _milliseconds(self.clock() - stamps.accepted),
            }
        return pack(message)

    def _done_messages(self, outcome: Outcome) -> list[bytes]:
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
        return [pack(message)]

    def _end(self) -> None:
        before, self.state = self.state, State.OVER
        self._ended(before is State.OPEN)

    def _sent(self) -> dict[str, Any]:
        sent = self.sent
        seconds = round(sent.samples / self.order.output.sample_rate, 3)
        return {**vars(sent), "seconds": seconds}

    def _unless_over(self, message: Mapping[str, Any]) -> list[bytes]:
        return [] if self.state is State.OVER else [pack(message)]


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 3)
