"""FishLiveSession: one connection on /v1/tts/live, as the Fish Audio clients in the wild use it.

They start, send text, flush, stop, and start again on the same socket, some without waiting for the
``finish``; then one utterance is spoken after the other. Some never stop, none ever cancels. They
know the events ``audio`` and ``finish`` and skip all others, so errors and notices that belong to
one message go out as events of their own. Whatever ends an utterance otherwise is told by
``finish`` with reason ``error``, and the connection is closed after it, as clients expect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rt_drama3.protocol.events import Close, Event, Finish, Send, Start, Text
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.fish_request import read_request
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.order import SpeechOrder
from rt_drama3.protocol.refusals import Refused, show
from rt_drama3.protocol.session import Session, new_request_id
from rt_drama3.protocol.text_gate import TextGate
from rt_drama3.protocol.utterance import Outcome, Piece, StampsLike, State, Utterance
from rt_drama3.protocol.wire import pack

MOST_WAITING = 16  # stopped utterances in front of a new one


class FishUtterance(Utterance):
    """An utterance on ``/v1/tts/live``.

    Attributes:
        lost: the first text of it that could not be spoken; ``finish`` then says so.
    """

    rests: ClassVar[bool] = True
    lost: Refused | None = None
    _early: Outcome | None = None  # the stream ended before the client's stop
    _since: int = 0  # samples sent when the text came that was not flushed yet
    _silent: bool = False  # sound of that text was asked for, and none came

    def ready(self, voice: str = "") -> list[bytes]:
        return [] if self.state is State.OVER else [_warning(n) for n in self.order.notices]

    def queued(self, position: int) -> list[bytes]:
        return []

    def segment(self, index: int, text: str, first_frame: int) -> list[bytes]:
        return []

    def awaits_sound(self) -> None:
        """The client asks for the sound of its text so far, if there was any since it last did."""
        # Audio since then counts, also of text before it: it is sound for the one who waits.
        if self.text.unflushed and self._since == self.sent.samples:
            self._silent = True

    def take_text(self, text: str) -> str:
        flushed = not self.text.unflushed
        passed = super().take_text(text)
        if flushed:
            self._since = self.sent.samples
        return passed

    @property
    def owes_silence(self) -> bool:
        return self._silent

    def audio(self, data: bytes, samples: int, stamps: StampsLike | None = None) -> list[bytes]:
        if samples and data:  # else an encoder gathers it, and nothing is heard as yet
            self._silent = False
        return super().audio(data, samples, stamps)

    def done(self, outcome: Outcome) -> list[bytes]:
        # A finish before the client's stop would end the client's reading too early.
        if self.state is State.OPEN:
            self._early = outcome
            return []
        return super().done(outcome)

    def stopped(self) -> list[bytes]:
        """The client sent its stop; messages, if the stream has ended already."""
        self.state = State.FINISHING
        return [] if self._early is None else super().done(self._early)

    @property
    def ended_early(self) -> bool:
        """Whether there is no stream behind it any more, though the client may still send text."""
        return self._early is not None

    def finish_message(self, error: Refused | None) -> bytes:
        """The ``finish``."""
        message: dict[str, Any] = {"event": "finish", "reason": "error" if error else "stop"}
        message["time"] = round(1e3 * (self.clock() - self.accepted), 3)
        return pack({**message, **(_details(error) if error else {})})

    def _audio_message(self, number: int, piece: Piece, stamps: StampsLike | None) -> bytes:
        return pack({"event": "audio", "audio": piece.data})

    def _done_messages(self, outcome: Outcome) -> list[bytes]:
        return [self.finish_message(self.lost)]


class FishLiveSession(Session[FishUtterance]):
    """The server's side of one connection on ``/v1/tts/live``; see ``Session``.

    Args:
        facts, limits: of the server.
        model: the ``model`` header of the handshake; any name is accepted.
        clock: seconds, as ``time.monotonic``.
        new_id: makes request ids.
    """

    _key = "event"

    def __init__(
        self,
        facts: ModelFacts,
        limits: ProtocolLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = new_request_id,
        model: str = "",
    ) -> None:
        super().__init__(facts, limits, clock, new_id)
        self._model = model
        self._told = 0  # warnings about unknown events
        self._stopped: list[FishUtterance] = []  # before the last one, and not spoken to their end
        self._handlers = {
            "start": self._start,
            "text": self._text,
            "flush": self._flush,
            "stop": self._stop,
        }

    def _start(self, fields: Fields) -> list[Event]:
        running, events = self._running(), list[Event]()
        if running is not None and running.refused:
            return []  # the connection ends when it is its turn
        if running is not None and running.state is State.FINISHING:
            self._stopped.append(running)  # all of it was asked for, and has its finish to come
        elif running is not None:
            # A client that starts anew before its stop no longer wants what runs: a barge-in.
            events = self._stop_one(running)
        self._stopped = [one for one in self._stopped if one.state is not State.OVER]
        gate = TextGate(self._limits)
        order, refused = SpeechOrder(), None
        try:
            request = fields.map("request")
            if request is None:
                raise fields.refuse("request", "a map is needed")
            text = request.text("text", self._limits.pending_characters) or ""
            order = read_request(
                request, gate.push(text), False, self._facts, self._limits, self._model
            )
            self._check_room(order)
        except Refused as error:
            if not self._stopped:
                return [*events, *self._end_connection(error)]
            refused = error  # which must not silence those before it
        else:
            self._budget.forgive()
        self._utterance = FishUtterance(
            self._new_id(), order, self._facts, self._limits, self._clock
        )
        self._utterance.text = gate
        self._utterance.refused = refused
        return [*events, Start(self._utterance)]

    def _check_room(self, order: SpeechOrder) -> None:
        """Bounds what waits behind utterances that are still spoken.

        Raises:
            Refused: ``backlog_full``.
        """
        if len(self._stopped) > MOST_WAITING:
            raise Refused(
                "backlog_full", f"{len(self._stopped)} utterances wait; at most {MOST_WAITING} may."
            )
        if not self._stopped:
            return
        characters = len(order.text) + sum(one.text.pending for one in self._stopped)
        if characters > self._limits.pending_characters:
            raise Refused(
                "backlog_full",
                f"{characters} characters wait to be spoken; at most "
                f"{self._limits.pending_characters} may.",
            )
        orders = [order, *(one.order for one in self._stopped)]
        size = sum(len(clip.audio or b"") for one in orders for clip in one.references)
        if size > self._limits.message_bytes:
            raise Refused(
                "backlog_full",
                f"the clips of utterances that wait have {size} bytes; at most "
                f"{self._limits.message_bytes} may be.",
            )

    def _flush(self, fields: Fields) -> list[Event]:
        running = self._running()
        if running is not None:
            running.awaits_sound()
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
        if running is None:  # every stop has its finish, or the client would wait for it
            return [Send(pack({"event": "finish", "reason": "stop", "time": 0.0}))]
        if running.state is State.FINISHING:
            return []
        running.awaits_sound()
        events = self._rest(running)
        if self._closed:
            return events
        finished = running.stopped()
        if finished:
            return [*events, *map(Send, finished)]
        return [*events, Finish(running)]

    def _unknown(self, kind: object) -> list[Event]:
        # They do no harm and may be some client's heartbeat: tell a few times, ignore all.
        self._told += 1
        if self._told > self._limits.errors:
            return []
        return [Send(_warning(f"event {show(kind)} is not known and was ignored."))]

    def _refuse(self, error: Refused) -> list[Event]:
        """What a client sent in an utterance is lost, but the utterance goes on."""
        running = self._running()
        if running is None:  # it may have been a start: the client waits for a finish
            return self._end_connection(error)
        if not self._budget.take_error():
            return self.close("too_many_errors", f"the last one: {error.message}")
        running.lost = running.lost or error
        return [Send(pack({"event": "error", "error": error.message, **_details(error)}))]

    def _fail(self, utterance: FishUtterance, error: Refused) -> list[Event]:
        return self._end(error, utterance.finish_message(error))

    def _end_connection(self, error: Refused) -> list[Event]:
        running = self._running()
        if running is None:
            last = {"event": "finish", "reason": "error", "time": 0.0, **_details(error)}
            return self._end(error, pack(last))
        return self._end(error, running.finish_message(error))

    def _stop_running(self, *, answer: bool = False) -> list[Event]:
        """Stops everything: what runs, and what was to be spoken before it."""
        before = [one for one in self._stopped if one.state is not State.OVER]
        self._stopped = []
        events = [event for one in before for event in self._stop_one(one)]
        return [*events, *super()._stop_running(answer=answer)]

    def _end(self, error: Refused, said: bytes) -> list[Event]:
        events = self._stop_running()
        self._closed = True
        return [*events, Send(said), Close(error.kind.close, error.code)]


def _details(error: Refused) -> Mapping[str, Any]:
    return {
        "message": error.message,
        "code": error.code,
        "remedy": error.remedy,
        "retriable": error.kind.retriable,
    }


def _warning(message: str) -> bytes:
    return pack({"event": "warning", "message": message})
