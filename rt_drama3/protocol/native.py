"""NativeSession: one connection on /v1/stream, message by message, without a socket.

``start`` .. ``done`` any number of times, one utterance at a time; docs/protocol.md describes the
order of messages, schema/native.json their fields.
"""

from __future__ import annotations

from rt_drama3.protocol.directing import read_directing, read_grid, read_reference
from rt_drama3.protocol.events import Event, Finish, Mute, Start, Text
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.formats import read_output
from rt_drama3.protocol.native_messages import (
    NOTHING_GENERATED,
    NOTHING_SENT,
    VERSION,
    NativeUtterance,
    TypedSession,
    cancelled_message,
    error_message,
)
from rt_drama3.protocol.order import (
    MAX_DECIBELS,
    NORMALIZE,
    Reference,
    SpeechOrder,
    checked_text,
    read_sampling,
    read_voice,
    transcript,
)
from rt_drama3.protocol.refusals import Refused
from rt_drama3.protocol.text_buffer import TextBuffer
from rt_drama3.protocol.utterance import State

QUALITIES = ("low_latency", "high")


class NativeSession(TypedSession[NativeUtterance]):
    """The server's side of one connection on ``/v1/stream``; see ``Session``."""

    _kinds = ("start", "text", "flush", "finish", "cancel", "ping")
    _late = 0  # messages for an ended utterance that may still arrive

    def _start(self, fields: Fields) -> list[Event]:
        # What runs is replaced even when the new start is wrong: the text that follows it is not
        # meant for the old utterance.
        events = self._stop_running(answer=True)
        self._late = 0
        fields.value("type")
        try:
            version = fields.integer("version", 0, 1 << 32)
            if version not in (None, VERSION):
                raise Refused(
                    "unsupported_version",
                    f"version is {version}; this server speaks {VERSION}.",
                )
            order, buffer = self._read_order(fields)
        except Refused as error:
            self._late = self._limits.late_messages
            return [*events, *self._refuse(error, "utterance")]
        self._budget.forgive()
        utterance = self._begin(NativeUtterance, order, buffer)
        utterance.ended, utterance.unknown = self._when_ended, fields.unknown()
        return [*events, Start(utterance)]

    def _text(self, fields: Fields) -> list[Event]:
        text = fields.text("text", self._limits.message_characters)
        if text is None:
            raise fields.refuse("text", "a string is needed")
        running = self._running()
        if running is None:
            if self._late:
                self._late -= 1
                return []
            raise Refused("out_of_order", "text came without a start.")
        if running.state is State.FINISHING:
            raise Refused("out_of_order", "text came after finish.")
        passed = running.take_text(text)
        return [Text(running, passed)] if passed else []

    def _finish(self, fields: Fields) -> list[Event]:
        running = self._running()
        if running is None:
            if self._late:
                self._late = 0
                return []
            raise Refused("out_of_order", "finish came without a start.")
        if running.state is State.FINISHING:
            return []
        running.state = State.FINISHING
        events = self._held_text(running)
        return events if self._closed else [*events, Finish(running)]

    def _cancel(self, fields: Fields) -> list[Event]:
        events = self._stop_running(answer=True)
        if events:
            return events
        last = self._utterance.id if self._utterance else None
        self._send(cancelled_message(last, NOTHING_GENERATED, NOTHING_SENT))
        return [Mute()]

    def _when_ended(self, was_open: bool) -> None:
        self._late = self._limits.late_messages if was_open else 0

    def _fail(self, utterance: NativeUtterance, error: Refused) -> list[Event]:
        self._send(error_message(error, "utterance", utterance.id))
        return self._stop_running()

    def _read_order(self, fields: Fields) -> tuple[SpeechOrder, TextBuffer]:
        buffer = TextBuffer(self._limits)
        text = fields.text("text", self._limits.pending_characters) or ""
        final = fields.flag("final")
        if not final:
            text = buffer.push(text)
        elif text.strip():
            checked_text(text)
        voice = read_voice(fields, "voice")
        order = SpeechOrder(
            text=text,
            final=final,
            voices=(voice,) if voice else (),
            references=self._references(fields, "references"),
            history=self._references(fields, "history"),
            directing=read_directing(fields, self._facts, self._limits, base64_too=False),
            output=read_output(fields, self._facts, "pcm"),
            quality=fields.choice("quality", QUALITIES) or QUALITIES[0],
            gain_db=fields.number("gain_db", -MAX_DECIBELS, MAX_DECIBELS) or 0.0,
            sampling=read_sampling(fields),
            normalize=fields.choice("normalize", NORMALIZE) or "auto",
            max_seconds=fields.number("max_seconds", 0, self._limits.max_seconds, above=True),
            timings=fields.flag("timings"),
            take=fields.flag("take"),
        )
        return order, buffer

    def _references(self, fields: Fields, name: str) -> tuple[Reference, ...]:
        """Clips as audio or codes; turns of the history only as codes."""
        return tuple(
            self._reference(entry, name == "references")
            for entry in fields.maps(name, self._limits.references)
        )

    def _reference(self, entry: Fields, audio_too: bool) -> Reference:
        if audio_too:
            return read_reference(entry, self._facts, self._limits, base64_too=False)
        text = transcript(entry, self._limits)
        codes = read_grid(entry, "vq_codes", self._facts, self._limits, base64_too=False)
        return Reference(text, codes=codes)
