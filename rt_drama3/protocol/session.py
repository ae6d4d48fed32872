"""Session: what the dialects have in common; one connection, without a socket (sans-I/O)."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from rt_drama3.errors import RtDrama3Error
from rt_drama3.protocol.budget import Budget
from rt_drama3.protocol.events import Cancel, Event, Flush, Text
from rt_drama3.protocol.fields import Fields
from rt_drama3.protocol.limits import ModelFacts, ProtocolLimits
from rt_drama3.protocol.order import SpeechOrder
from rt_drama3.protocol.refusals import Refused, as_refused
from rt_drama3.protocol.text_buffer import TextBuffer
from rt_drama3.protocol.utterance import State, Utterance
from rt_drama3.protocol.wire import pack, unpack

U = TypeVar("U", bound=Utterance)


def new_request_id() -> str:
    """An id for one utterance, in logs and for the client."""
    return secrets.token_hex(8)


class Session(ABC, Generic[U]):
    """The server's side of one connection.

    Feed every message to ``receive`` and act on the events, in order; report what their streams do
    to the methods of their ``Utterance``. After each call, send ``data_to_send``, then close the
    connection with ``close_frame`` if there is one. No input makes it raise. Not thread-safe.

    Args:
        facts, limits: those of the server.
        clock: seconds, as ``time.monotonic``.
        new_id: makes request ids.
        model: the ``model`` header of the handshake; any name is accepted.

    Attributes:
        close_frame: code and reason (123 bytes of ASCII or fewer) once the session has ended the
            connection; nothing more is read from it.
    """

    _key: ClassVar[str]  # the field that names a message's type
    _kinds: ClassVar[tuple[str, ...]]  # the types; each is handled by the method ``_TYPE``

    def __init__(
        self,
        facts: ModelFacts,
        limits: ProtocolLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = new_request_id,
        model: str = "",
    ) -> None:
        self._facts = facts
        self._limits = limits or ProtocolLimits()
        self._clock = clock
        self._new_id = new_id
        self._model = model
        self._budget = Budget(self._limits, clock)
        self._utterance: U | None = None
        self._closed = False
        self._outgoing: list[bytes] = []
        self.close_frame: tuple[int, str] | None = None

    def receive(
        self, data: bytes | bytearray | memoryview | str | Mapping[str, object] | Refused
    ) -> list[Event]:
        """Takes one message (str for a text message) and returns what to do, in order.

        A large message may be given as the result of ``wire.unpack`` in a thread: a map or an
        error.
        """
        if self._closed:
            return []
        if not self._budget.take_message():
            return self.close("too_many_messages", "more messages came than the server takes.")
        try:
            if isinstance(data, Refused):
                raise data
            message = data if isinstance(data, Mapping) else unpack(data, self._limits)
            kind = message.get(self._key)
            if kind not in self._kinds:
                return self._unknown(kind)
            events: list[Event] = getattr(self, f"_{kind}")(Fields(message))
            return events
        except Refused as error:
            return self._refuse(error)

    def data_to_send(self) -> list[bytes]:
        """Returns the binary messages to send now, in order; each is returned once."""
        data, self._outgoing = self._outgoing, []
        return data

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, by either side."""
        return self._closed

    def close(self, code: str, message: str) -> list[Event]:
        """Ends the connection for the server's own reason: idle, slow_client, shutting_down...

        Args:
            code: one of ``refusals.KINDS``.
            message: what happened, with the value.
        """
        return [] if self._closed else self._end_connection(Refused(code, message))

    def fail(self, utterance: U, error: RtDrama3Error) -> list[Event]:
        """Reports that an utterance's stream failed or could not be opened.

        Ignored when the utterance has ended already.
        """
        if self._closed or utterance.state is State.OVER:
            return []
        return self._fail(utterance, as_refused(error))

    def disconnected(self) -> list[Event]:
        """Reports that the client is gone; returns what to stop."""
        self._closed = True
        return self._stop_running()

    def _begin(self, kind: type[U], order: SpeechOrder, text: TextBuffer) -> U:
        made = kind(self._new_id(), order, self._facts, self._limits, self._clock, self._send)
        made.text = text
        self._utterance = made
        return made

    @abstractmethod
    def _unknown(self, kind: object) -> list[Event]:
        """Handles a message of an unknown type."""

    @abstractmethod
    def _refuse(self, error: Refused) -> list[Event]:
        """Answers a message that is wrong."""

    @abstractmethod
    def _fail(self, utterance: U, error: Refused) -> list[Event]:
        """Ends an utterance that failed."""

    @abstractmethod
    def _end_connection(self, error: Refused) -> list[Event]:
        """Stops what runs, sends the reason, and closes."""

    def _flush(self, fields: Fields) -> list[Event]:
        running = self._running()
        if running is None or running.state is State.FINISHING or not running.text.unflushed:
            return []
        events = self._held_text(running)
        return events if self._closed else [*events, Flush(running)]

    def _held_text(self, running: U) -> list[Event]:
        """Passes on the text that was held back; refuses it if it cannot be spoken."""
        try:
            rest = running.text.flush()
        except Refused as error:
            return self._refuse(error)
        return [Text(running, rest)] if rest else []

    def _running(self) -> U | None:
        last = self._utterance
        return None if last is None or last.state is State.OVER else last

    def _stop_running(self, *, answer: bool = False) -> list[Event]:
        running = self._running()
        return [] if running is None else self._stop_one(running, answer)

    def _stop_one(self, utterance: U, answer: bool = False) -> list[Event]:
        utterance.stop(answer)
        return [Cancel(utterance, answer)]

    def _send(self, message: Mapping[str, Any]) -> None:
        self._outgoing.append(pack(message))

    def _close_with(self, error: Refused) -> None:
        self._closed = True
        self.close_frame = error.kind.close, error.code
