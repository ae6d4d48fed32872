"""FishLiveSession: one connection on /v1/tts/live, as the Fish Audio clients in the wild use it.

They start, send text, flush, stop, and start again on the same socket, some without waiting for the
``finish``; then one utterance is spoken after the other. Some never stop, none ever cancels. They
know the events ``audio`` and ``finish`` and skip all others, so errors and notices about a single
message are events of their own. An error that ends an utterance is reported by ``finish`` with
reason ``error``, and the connection is closed after it, as clients expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rt_drama3.protocol.events import Event, Finish, Start, Text
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.fish_request import read_request
from rt_drama3.protocol.order import SpeechOrder
from rt_drama3.protocol.refusals import Refused, show
from rt_drama3.protocol.session import Session
from rt_drama3.protocol.text_buffer import TextBuffer
from rt_drama3.protocol.utterance import (
    AudioPart,
    Outcome,
    Padding,
    StampsLike,
    State,
    Utterance,
)

MAX_WAITING = 16  # stopped utterances in front of a new one


class FishUtterance(Utterance):
    """An utterance on ``/v1/tts/live``.

    Attributes:
        lost: the error about the first text of it that could not be spoken; ``finish`` reports it.
        refused: the error about its start, if that has to wait for its turn to be reported.
    """

    lost: Refused | None = None
    refused: Refused | None = None
    _early: Outcome | None = None  # the stream ended before the client's stop
    _since: int = 0  # samples sent when the first text arrived that is not flushed yet
    _silent: bool = False  # sound of that text was asked for, and there was none

    def _say_ready(self, voice: str) -> None:
        for notice in self.order.notices:
            self._send(warning_message(notice))

    def queued(self, position: int) -> None:
        """Clients of this dialect have no event for it."""

    def segment(self, index: int, text: str, first_frame: int) -> None:
        """Clients of this dialect have no event for it."""

    def notice(self, text: str) -> None:
        self._send(warning_message(text))

    def expect_sound(self) -> None:
        """The client asks for the sound of its text so far, if any arrived since it last did."""
        # Audio since then counts, even of earlier text: it is sound for a client that waits.
        if self.text.unflushed and self._since == self.sent.samples:
            self._silent = True

    def take_text(self, text: str) -> str:
        flushed = not self.text.unflushed
        passed = super().take_text(text)
        if flushed:
            self._since = self.sent.samples
        return passed

    def padding(self, ended: bool) -> Padding:
        # Clients flush and wait, some for hours. Without the tail, the last milliseconds of what
        # they hear now would arrive as the first ones of what they ask for next.
        if not ended and self.state is not State.OPEN:
            return Padding.NONE
        if self._silent:
            return Padding.SILENCE
        return Padding.NONE if ended else Padding.TAIL

    def audio(self, data: bytes, samples: int, stamps: StampsLike | None = None) -> None:
        if samples and data:  # otherwise an encoder gathers it, and nothing is heard yet
            self._silent = False
        super().audio(data, samples, stamps)

    def done(self, outcome: Outcome) -> None:
        # A finish before the client's stop would end the client's reading too early.
        if self.state is State.OPEN:
            self._early = outcome
        else:
            super().done(outcome)

    def stopped(self) -> None:
        """The client sent its stop; finishes if the stream has ended already."""
        self.state = State.FINISHING
        if self._early is not None:
            super().done(self._early)

    @property
    def ended_early(self) -> bool:
        """Whether its stream has ended, although the client may still send text."""
        return self._early is not None

    def finish_message(self, error: Refused | None) -> Mapping[str, Any]:
        """The ``finish``."""
        return finish_message(error, round(1e3 * (self.clock() - self.accepted), 3))

    def _audio_message(
        self, number: int, part: AudioPart, stamps: StampsLike | None
    ) -> Mapping[str, Any]:
        return {"event": "audio", "audio": part.data}

    def _done_message(self, outcome: Outcome) -> Mapping[str, Any]:
        return self.finish_message(self.lost)


class FishLiveSession(Session[FishUtterance]):
    """The server's side of one connection on ``/v1/tts/live``; see ``Session``."""

    _key = "event"
    _kinds = ("start", "text", "flush", "stop")
    _warnings = 0  # about unknown events
    _stopped: tuple[FishUtterance, ...] = ()  # before the last one, and still speaking

    def _start(self, fields: Fields) -> list[Event]:
        running, events = self._running(), list[Event]()
        if running is not None and running.refused:
            return []  # the connection ends when its turn comes
        if running is not None and running.state is State.FINISHING:
            self._stopped += (running,)  # it is spoken to its end, and its finish is due
        elif running is not None:
            # A client that starts again before its stop no longer wants what runs: a barge-in.
            events = self._stop_one(running)
        self._stopped = self._still_speaking()
        buffer = TextBuffer(self._limits)
        order, refused = SpeechOrder(), None
        try:
            request = fields.map("request")
            if request is None:
                raise fields.refuse("request", "a map is needed")
            text = request.text("text", self._limits.pending_characters) or ""
            order = read_request(
                request, buffer.push(text), False, self._facts, self._limits, self._model
            )
            self._check_room(order)
        except Refused as error:
            if not self._stopped:
                return [*events, *self._end_connection(error)]
            refused = error  # those before it are still spoken
        else:
            self._budget.forgive()
        utterance = self._begin(FishUtterance, order, buffer)
        utterance.refused = refused
        return [*events, Start(utterance, refused)]

    def _check_room(self, order: SpeechOrder) -> None:
        """Bounds what waits behind utterances that are still spoken.

        Raises:
            Refused: ``backlog_full``.
        """
        if len(self._stopped) > MAX_WAITING:
            raise Refused(
                "backlog_full",
                f"{len(self._stopped)} utterances wait to be spoken; the limit is {MAX_WAITING}.",
            )
        if not self._stopped:
            return
        characters = len(order.text) + sum(one.text.pending for one in self._stopped)
        if characters > self._limits.pending_characters:
            raise Refused(
                "backlog_full",
                f"{characters} characters wait to be spoken; the limit is "
                f"{self._limits.pending_characters} (pending_characters).",
            )
        orders = [order, *(one.order for one in self._stopped)]
        size = sum(len(clip.audio or b"") for one in orders for clip in one.references)
        if size > self._limits.message_bytes:
            raise Refused(
                "backlog_full",
                f"the clips of waiting utterances are {size} bytes; the limit is "
                f"{self._limits.message_bytes} (message_bytes).",
            )

    def _flush(self, fields: Fields) -> list[Event]:
        running = self._running()
        if running is not None:
            running.expect_sound()
        return super()._flush(fields)

    def _text(self, fields: Fields) -> list[Event]:
        running = self._running()
        if running is None or running.state is State.FINISHING:
            when = "without a start" if running is None else "after stop"
            raise Refused("out_of_order", f"text came {when}.")
        if running.refused:
            return []
        text = fields.text("text", self._limits.message_characters)
        if text is None:
            raise fields.refuse("text", "a string is needed")
        if running.ended_early:
            raise Refused("out_of_order", "text came after the speech had reached its limit.")
        passed = running.take_text(text)
        return [Text(running, passed)] if passed else []

    def _stop(self, fields: Fields) -> list[Event]:
        running = self._running()
        if running is None:  # every stop gets a finish; the client waits for it
            self._send(finish_message(None, 0.0))
            return []
        if running.state is State.FINISHING:
            return []
        running.expect_sound()
        events = self._held_text(running)
        if self._closed:
            return events
        running.stopped()
        return events if running.state is State.OVER else [*events, Finish(running)]

    def _unknown(self, kind: object) -> list[Event]:
        # Harmless, and perhaps some client's heartbeat: warn a few times, ignore all.
        self._warnings += 1
        if self._warnings <= self._limits.errors:
            self._send(warning_message(f"event {show(kind)} is not known and was ignored."))
        return []

    def _refuse(self, error: Refused) -> list[Event]:
        """The message is lost, but the utterance continues."""
        running = self._running()
        if running is None:  # it may have been a start, whose client waits for a finish
            return self._end_connection(error)
        if not self._budget.take_error():
            return self.close("too_many_errors", f"the last one: {error.message}")
        running.lost = running.lost or error
        message = error.message
        self._send({"event": "error", "error": message, "message": message, **error.details()})
        return []

    def _fail(self, utterance: FishUtterance, error: Refused) -> list[Event]:
        return self._end(error, utterance.finish_message(error))

    def _end_connection(self, error: Refused) -> list[Event]:
        running = self._running()
        last = running.finish_message(error) if running else finish_message(error, 0.0)
        return self._end(error, last)

    def _stop_running(self, *, answer: bool = False) -> list[Event]:
        """Stops everything: what runs, and what is spoken before it."""
        before, self._stopped = self._still_speaking(), ()
        events = [event for one in before for event in self._stop_one(one)]
        return [*events, *super()._stop_running(answer=answer)]

    def _still_speaking(self) -> tuple[FishUtterance, ...]:
        return tuple(one for one in self._stopped if one.state is not State.OVER)

    def _end(self, error: Refused, last: Mapping[str, Any]) -> list[Event]:
        self._send(last)
        self._close_with(error)
        return self._stop_running()


def finish_message(error: Refused | None, milliseconds: float) -> Mapping[str, Any]:
    """A ``finish``, with its error if there is one."""
    reason = "error" if error else "stop"
    details = {"message": error.message, **error.details()} if error else {}
    return {"event": "finish", "reason": reason, "time": milliseconds, **details}


def warning_message(message: str) -> Mapping[str, Any]:
    """A ``warning``, which readers skip."""
    return {"event": "warning", "message": message}
